"""Hypothesis strategies for programs that get far when they run, and for ones that almost belong to the language.

`legal` draws from typed expressions, so that most of its programs search, loop and print before anything fails;
`sources` of the grammar's own strategies is blind to types. `nearly_legal` damages texts of both kinds.
"""

from __future__ import annotations

import re

from hypothesis import strategies as st
from program_strategies import sources

Text = st.SearchStrategy[str]

SNIPPETS = [
    "import os",
    "().__class__",
    "getattr(x, 'a')",
    "'{0.a}'.format(x)",
    "yield x",
    "try:\n    pass\nexcept* E:\n    pass",
    "x = 10 ** 10",
    "1 << 99",
    "lambda *a: a",
    "f'{x!r:>9}'",
    "async def f(): await g()",
    "print(__builtins__)",
    "del x",
    "x: int = 1",
    "while True: pass",
    "(y := 3)",
    "{**x}",
    "def g(): return g()\ng()",
    "'a' * 10 * 1000000",
    "[0] * 1000000 * 1000000",
    "range(9999999999)",
    "bm25('', k=0)",
    "read('nope')",
]
CHARACTERS = "()[]{}:,.='\"\\#\n\t @*_-+%&|~^<>;!\x00é\ud800ﬁ𝔁0f"


TEMPLATES: dict[str, list[str]] = {
    "number": [
        *("n", "0", "1", "3", "7", "len(hits)", "p.rank", "1.5", "len(seen)"),
        *("(<number> + <number>)", "(<number> - <number>)", "(<number> * <number>)", "(<number> // <number>)"),
        *(
            "(<number> % <number>)",
            "(<number> / <number>)",
            "(-<number>)",
            "len(<text>)",
            "len(<words>)",
            "len(<hits>)",
        ),
        *(
            "min(<number>, <number>)",
            "max(<number>, <number>)",
            "sum([<number> for h in <hits>])",
            "round(<number>, 2)",
        ),
        *("int(<number>)", "(<number> if <condition> else <number>)", "f(<number>)", "abs(<number>)"),
    ],
    "text": [
        *("question", "p.title", "p.text", "word", "p.id", "'Lyon'", "'Currency of Chad'", "'é ☃'", '"a\'b"', "''"),
        *("(<text> + <text>)", "<text>.upper()", "<text>.strip()", "<text>.title()", "<text>[:5]", "<text>[1:]"),
        *("<text>.replace('a', 'bb')", "str(<number>)", "str(<words>)", "str(<condition>)", "str(<passage>)"),
        *("str(<hits>)", "' '.join(<words>)", 'f"""a {n} {word}"""', 'f"""{{{p}{p.title}"""', 'f"""{seen}"""'),
        "(<text> if <condition> else <text>)",
    ],
    "words": [
        *("seen", "['a', 'b']", "question.split()", "[h.title for h in hits]", "[]", "[<text>, <text>]"),
        *("<text>.split()", "sorted(<words>)", "sorted(set(<words>))", "[<text> for h in <hits> if <condition>]"),
        *("list(reversed(<words>))", "(<words> + <words>)", "<words>[:<number>]", "list(table)"),
        "[a + b for a, b in zip(<words>, <words>)]",
    ],
    "hits": [
        *("hits", "bm25(question, k=2)", "bm25(<text>, k=3)", "fuse(<hits>, <hits>, k=3)", "rerank(<text>, <hits>)"),
        *(
            "unique(<hits> + <hits>)",
            "links(<passage>, k=2)",
            "[h for h in <hits> if <condition>]",
            "<hits>[:<number>]",
        ),
        *(
            "sorted(<hits>, key=lambda h: h.title)",
            "list({h.id: h for h in hits}.values())",
            "rerank(<text>, <hits>, 2)",
        ),
    ],
    "passage": ["p", "hits[0]", "hits[-1]", "read('p7')", "max(hits, key=lambda h: h.score)"],
    "condition": [
        *("True", "seen", "p in hits", "n > 2", "p.rank == 0", "'a' in word", "(<number> < <number>)"),
        *(
            "(<number> == <number>)",
            "(<text> in <text>)",
            "(<text> == <text>)",
            "(<text> < <text>)",
            "(not <condition>)",
        ),
        *("(<condition> and <condition>)", "(<condition> or <condition>)", "any([<condition> for h in <hits>])"),
        "(<passage> in <hits>)",
    ],
    "statement": [
        *(
            "print(<number>)",
            "print(<text>)",
            "print(<words>)",
            "print(<hits>)",
            "print(<passage>)",
            "print(<condition>)",
        ),
        *("print(<text>, <passage>, sep=<text>)", "n = <number>", "n += <number>", "word = <text>", "seen = <words>"),
        *("seen.append(<text>)", "hits = <hits>", "p = <passage>", "table[<text>] = <number>", "hits = hits + <hits>"),
        "print(table, table.get(<text>, 0))",
    ],
}
"""Kind of an expression or statement -> how it may be written; a kind in angle brackets is written in turn."""

MAX_EXPANSIONS = 3
"""How deep expressions nest."""


@st.composite
def _written(draw: st.DrawFn, kind: str) -> str:
    def write(kind: str, depth: int) -> str:
        options = TEMPLATES[kind]
        if depth == 0:
            options = [option for option in options if not re.search("<[a-z]+>", option)]
        return re.sub("<([a-z]+)>", lambda found: write(found[1], depth - 1), draw(st.sampled_from(options)))

    return write(kind, MAX_EXPANSIONS)


def _join(*parts: Text | str) -> Text:
    drawn = [st.just(part) if isinstance(part, str) else part for part in parts]
    return st.tuples(*drawn).map("".join)


_words, _hits, _condition = _written("words"), _written("hits"), _written("condition")


def _indent(block: str) -> str:
    return "\n".join("    " + line for line in block.split("\n"))


def _nest(block: Text) -> Text:
    inner = block.map(_indent)
    return st.one_of(
        _join(block, "\n", block),
        _join("for p in ", _hits, ":\n", inner),
        _join("for i, word in enumerate(", _words, "):\n", inner, "\n    if i > 3:\n        break"),
        _join("if ", _condition, ":\n", inner, "\nelse:\n", inner),
        _join("k = 0\nwhile k < 3 and ", _condition, ":\n    k += 1\n", inner),
        _join("def f(n, seen=", _words, "):\n", inner, "\n    return n"),
    )


_START = """\
hits = bm25(question, k=3)
p, n, word, seen, table = hits[0], 2, 'word', ['a'], {}
def f(n):
    return n + 1
"""

legal = st.recursive(_written("statement"), _nest, max_leaves=8).map(_START.__add__)
"""Programs of the language that mostly run to their end."""


@st.composite
def nearly_legal(draw: st.DrawFn) -> str:
    """Programs with one to three damages: characters, lines or whole constructs put in, taken out or doubled."""
    program = draw(st.one_of(legal, sources))
    for _ in range(draw(st.integers(1, 3))):
        lines = program.split("\n")
        place = draw(st.integers(0, max(0, len(program) - 1)))
        row = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.sampled_from(["character", "cut", "line", "double", "snippet", "name", "swap"]))
        if kind == "character":
            program = program[:place] + draw(st.sampled_from(CHARACTERS)) + program[place:]
        elif kind == "cut":
            program = program[:place] + program[place + draw(st.integers(1, 5)) :]
        elif kind == "line":
            program = "\n".join(lines[:row] + lines[row + 1 :])
        elif kind == "double":
            program = "\n".join(lines[:row] + [lines[row]] * draw(st.integers(2, 30)) + lines[row:])
        elif kind == "snippet":
            margin = lines[row][: len(lines[row]) - len(lines[row].lstrip())]
            snippet = draw(st.sampled_from(SNIPPETS)).replace("\n", "\n" + margin)
            program = "\n".join([*lines[:row], margin + snippet, *lines[row:]])
        elif kind == "name":
            old, new = draw(
                st.sampled_from([("p", "_p"), ("hits", "q"), ("bm25", "dense"), ("print", "len"), ("n", "p")])
            )
            program = program.replace(old, new)
        else:
            other = draw(st.integers(0, len(lines) - 1))
            lines[row], lines[other] = lines[other], lines[row]
            program = "\n".join(lines)
    return program


any_program = st.one_of(legal, sources, nearly_legal())
"""All of the above."""
