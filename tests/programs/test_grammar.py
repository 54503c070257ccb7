import ast
import sys
import threading
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_strategies import profile, sources

from rpl.core.errors import ForbiddenConstruct, ProgramError, ProgramSyntaxError
from rpl.programs.grammar import (
    ATTRIBUTES,
    BUILTINS,
    MAX_DEPTH,
    MAX_INT,
    MAX_LOOP_DEPTH,
    MAX_SOURCE_CHARS,
    MAX_STRING_CHARS,
    PRIMITIVES,
    canonical,
    parse,
)

SEED = "for p in bm25(question, k=1):\n    print(p)"


@profile
@given(sources)
def test_canonical_text_parses_to_itself_and_means_the_same(source: str) -> None:
    program = parse(source)
    assert parse(program.source) == program
    assert parse(program.source).source == program.source
    assert parse(program.source).size == program.size
    assert ast.dump(program.tree) == ast.dump(_without_kinds(ast.parse(source)))


@profile
@given(sources)
def test_what_parses_compiles(source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(parse(source).source, "<program>", "exec")


def _without_kinds(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.kind = None
    return tree


@pytest.mark.parametrize(
    "spelling",
    [
        "for p in bm25( question,k = 1 ) :\n  print( p )  # all",
        "for p in (bm25(question, k=1)): print(p);",
        SEED + "\n\n",
    ],
)
def test_spellings_of_one_program_are_one_program(spelling: str) -> None:
    assert parse(spelling) == parse(SEED)
    assert hash(parse(spelling)) == hash(parse(SEED))


def test_size_counts_nodes_without_operators() -> None:
    assert parse("x = 1 + 2").size == 6  # Module, Assign, Name, BinOp, Constant, Constant
    assert parse(SEED).size == 12


def test_the_tree_is_fresh_each_time() -> None:
    program = parse(SEED)
    program.tree.body.clear()
    assert ast.unparse(program.tree) == SEED


REFUSALS = {
    "import os": "the primitives are already bound",
    "from os import path": "the primitives are already bound",
    "class A: pass": "functions, lists and dicts",
    "with x: pass": "nothing to open",
    "async def f(): pass": "return their results directly",
    "try: pass\nexcept E: pass": "test the value with if",
    "try: pass\nexcept* E: pass": "test the value with if",
    "raise x": "print a message",
    "assert x": "test with if",
    "def f(): yield 1": "collect values in a list",
    "def f(): yield from x": "collect values in a list",
    "async def f(): await x": "return their results directly",
    "global x": "pass values as arguments",
    "def f():\n    nonlocal x": "pass values as arguments",
    "del x": "assign a new value",
    "x: int = 1": "leave it out",
    "def f(a: int): pass": "leave it out",
    "def f() -> int: pass": "leave it out",
    "(x := 1)": "on a line of its own",
    "match x:\n    case 1: pass": "if and elif",
    "x ** 2": "multiply",
    "x @ y": "use +",
    "1 << 3": "use +",
    "x >> 3": "use +",
    "~x": "use +",
    "x **= 2": "multiply",
    "@g\ndef f(): pass": "call the function on the value",
    "def f(a, /): pass": "leave out the /",
    "def f(*, a): pass": "leave out the *",
    "def f(*a): pass": "pass a list",
    "def f(**a): pass": "pass a dict",
    "lambda *a: a": "pass a list",
    "bm25(**x)": "write the arguments out",
    "{**x}": "d.update",
    "{*x}": "list and tuple displays",
    "a, *b = x": "list and tuple displays",
    "x[*a]": "one slice at a time",
    "x[1:2, 3]": "one slice at a time",
    "p.title = 'x'": "assign to a name",
    "p.title += 'x'": "write d[k]",
    "d[k] += 1": "write d[k] = d[k] + 1",
    "x = (y for y in z)": "list comprehension",
    "f(y for y in z)": "list comprehension",
    "a.append(y for y in z)": "list comprehension",
    "max((y for y in z), 1)": "list comprehension",
    "sum([], (y for y in z))": "list comprehension",
    "print(y for y in z)": "list comprehension",
    "min(z, default=(y for y in z))": "list comprehension",
    "x = '\\ud800'": "the character itself",
    "f'\\udfff{x}'": "the character itself",
    "[y async for y in z]": "return their results directly",
    "f'{x!r}'": "write {x}",
    "f'{x=}'": "write {x}",
    "f'{x:>3}'": "round(x, 2)",
    "f'{x:{y}}'": "round(x, 2)",
    "x = ...": "strings and real numbers",
    "x = b'a'": "strings and real numbers",
    "x = 2j": "strings and real numbers",
    "x = 1e999": "use at most",
    f"x = {MAX_INT + 1}": f"at most {MAX_INT}",
    f"x = '{'a' * (MAX_STRING_CHARS + 1)}'": f"at most {MAX_STRING_CHARS} characters",
    "print = 1": "choose another name",
    "for bm25 in x: pass": "choose another name",
    "def links(p): return p": "choose another name",
    "lambda len: len": "choose another name",
    "[1 for sorted in x]": "choose another name",
    "_x = 1": "underscore",
    "def _f(): pass": "underscore",
    "f(_x=1)": "underscore",
    "é = 1": "ASCII",
    "eval('1')": "cannot run other code",
    "open('f')": "cannot run other code",
    "getattr(p, 'x')": "cannot be inspected",
    "type(p)": "cannot be inspected",
    "map(f, x)": "list comprehension",
    "chr(1)": "the built-in functions are abs, all",
    "re.findall('a', x)": "there are no modules",
    "json.loads(x)": "there are no modules",
}


@pytest.mark.parametrize("source", REFUSALS)
def test_it_refuses_with_line_and_hint(source: str) -> None:
    with pytest.raises(ForbiddenConstruct) as caught:
        parse("x = 1\n\n" + source)
    assert REFUSALS[source] in str(caught.value)
    assert "not part of the program language" in str(caught.value)
    assert caught.value.line in (3, 4)
    assert caught.value.kind == "forbidden"


ESCAPES = [
    "().__class__.__base__.__subclasses__()",
    "p.__init__.__globals__['os']",
    "print.__self__",
    "bm25.__globals__",
    "'{0.__class__}'.format(p)",
    "'{x.y}'.format_map({'x': p})",
    "str.format('{0.a}', p)",
    "any(x for x in y).gi_frame",
    "(lambda: 0).__code__",
    "(lambda x=().__class__: x)()",
    "def f(a=p.__dict__): pass",
    "f'{p.__class__}'",
    "f'''{f'{p.__class__}'}'''",
    "[c for c in ().__class__.__mro__]",
    "sorted(x, key=lambda y: y.gi_code)",
    "x.cr_frame.f_back.f_globals",
    "p.__\uff43lass__",  # a full-width letter that Python reads as c
    "__\uff49mport__('os')",
    "__builtins__['eval']",
    "__import__('os')",
    "p.tb_frame",
    "'a'.translate(x)",
    "'a'.encode('rot13')",
    "{}.fromkeys(x)",
    "print(p, file=p.write)",
    "def f(): return f.func_globals",
    "vars()['x']",
    "p.mro()",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_known_escapes_are_refused(source: str) -> None:
    with pytest.raises(ForbiddenConstruct):
        parse(source)


def test_no_attribute_reaches_into_the_interpreter() -> None:
    for names in ATTRIBUTES.values():
        assert not {n for n in names if n.startswith("_") or n in ("format", "format_map", "translate", "encode")}
    for kind in (str, list, dict, set):
        assert all(hasattr(kind, name) for name in ATTRIBUTES[kind.__name__])


BROKEN = {
    "": (1, "empty"),
    "# nothing": (1, "empty"),
    "for p in": (1, "invalid syntax"),
    "x = 1\ny = (": (2, "invalid syntax"),
    "x = 1\ny = '\0'": (2, "null byte"),
    "x = '\udc00'": (None, "invalid text"),
    "return 1": (1, "outside a function"),
    "x = 1\nbreak": (2, "outside a loop"),
    "while x:\n    def f():\n        continue": (3, "outside a loop"),
    "for x in y: pass\nelse: break": (2, "outside a loop"),
    "bm25('a', k=1, k=2)": (1, "given twice"),
    "def f(a, a): pass": (1, "stands twice"),
    "x" * (MAX_SOURCE_CHARS + 1): (1, "characters"),
    "9" * 5000: (1, "so large a number"),
}


@pytest.mark.parametrize("source", BROKEN, ids=range(len(BROKEN)))
def test_broken_text_is_a_syntax_error_with_its_line(source: str) -> None:
    line, message = BROKEN[source]
    with pytest.raises(ProgramSyntaxError, match=message) as caught:
        parse(source)
    assert caught.value.line == line
    assert caught.value.kind == "syntax"


GENERATORS = [
    "any((y for y in z))",
    "sum((y for y in z), 1)",
    "', '.join((y for y in z))",
    "zip((y for y in z), (y for y in z))",
]


@pytest.mark.parametrize("source", GENERATORS)
def test_generators_may_stand_where_they_are_read(source: str) -> None:
    assert parse(source).source == source


MISTAKES = {
    "```python\nprint(1)\n```": (1, "leave out the markdown fence"),
    "print(1)\n```": (2, "leave out the markdown fence"),
    "<program>\nprint(1)": (1, "leave out the tags"),
    "print(\u201cLyon\u201d)": (1, "use straight quotes"),
    ">>> print(1)": (1, "leave out the prompt signs"),
    "!ls": (1, "no shell commands"),
    "x = 1\nif x && y:\n    pass": (2, "write `and`"),
    "x++": (1, "`x += 1`"),
    "let x = 1": (1, "write Python"),
    "x = 1\nLet us search for it.": (2, "write Python only"),
    "x = bm25('a'": (1, "'(' was never closed"),
    "x = [1, 2": (1, "'[' was never closed"),
    "x = 'a": (1, "unterminated string literal"),
    "if x\n    pass": (1, "expected ':'"),
    "if x:\npass": (2, "expected an indented block after 'if' statement on line 1"),
    "  x = 1": (1, "unexpected indent"),
    "print 'a'": (1, "Missing parentheses in call to 'print'"),
    "x = = 1": (1, "invalid syntax at `= 1`"),
    "for x of y: pass": (1, "invalid syntax at `of y: pass`"),
}


@pytest.mark.parametrize("source", MISTAKES)
def test_syntax_errors_say_where_and_what_to_write(source: str) -> None:
    line, message = MISTAKES[source]
    with pytest.raises(ProgramSyntaxError) as caught:
        parse(source)
    assert message in str(caught.value)
    assert str(caught.value).startswith("invalid syntax")
    assert caught.value.line == line
    assert len(str(caught.value)) < 160


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A program with a few characters put in, left out or repeated."""
    text = draw(sources)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.integers(0, 3)))
        put = draw(
            st.sampled_from([*"(){}[]'\"\\\n\r\t\f f:=!#@`~0é\ufeff", "f'", "{{", '"""', "\\u12", "if ", "lambda "])
        )
        text = text[:start] + draw(st.sampled_from([put, text[start:stop] * 2])) + text[stop:]
    return text


@settings(profile, max_examples=100)
@given(damaged())
def test_damaged_text_parses_or_is_refused(source: str) -> None:
    try:
        program = parse(source)
    except ProgramError:
        return
    assert parse(program.source) == program
    assert parse(program.source).source == program.source


DEEP = [
    "(" * 5000 + ")" * 5000,
    "-" * 19_000 + "1",
    "not " * 4_000 + "x",
    "+".join("1" * 5_000),
    "x" + ".text" * 3_000,
    "x" + "[0]" * 5_000,
    "lambda: " * 2_000 + "1",
    "1 if 1 else " * 1_000 + "1",
    "if x: pass\n" + "elif x: pass\n" * 1_000,
    "\n".join(" " * i + "if x:" for i in range(60)) + "\n" + " " * 60 + "pass",
    "\n".join(" " * i + "for x in y:" for i in range(MAX_LOOP_DEPTH + 1)) + "\n" + " " * 20 + "pass",
    "f(" * 90 + ")" * 90,
    "[" * 60 + "]" * 60,
]


@pytest.mark.parametrize("source", DEEP, ids=range(len(DEEP)))
def test_deep_nesting_is_a_syntax_error_and_never_a_crash(source: str) -> None:
    with pytest.raises(ProgramSyntaxError):
        parse(source)


def test_nesting_up_to_the_limit_parses() -> None:
    # Module, Expr, then the lists
    assert parse("[" * (MAX_DEPTH - 2) + "]" * (MAX_DEPTH - 2)).size == MAX_DEPTH
    loops = "\n".join("    " * i + "for x in y:" for i in range(MAX_LOOP_DEPTH)) + "\n" + "    " * 20 + "pass"
    assert parse(loops).source.count("for") == MAX_LOOP_DEPTH


F_STRINGS = {
    "f'{x}'": "f'{x}'",
    'f"{p.title}: {p.text}"': "f'{p.title}: {p.text}'",
    "f\"{', '.join(x)}\"": "f\"{', '.join(x)}\"",
    "f'it\\'s {x}'": "f'it\\'s {x}'",
    "f'{x}\\n'": "f'{x}\\n'",
    "f'''{x}\n{y}'''": "f'{x}\\n{y}'",
    "f'{{x}} {y}'": "f'{{x}} {y}'",
    "f'{ {1: 2} }'": "f'{ {1: 2}}'",
    "'a' f'{x}' 'b'": "f'a{x}b'",
    "f''": "f''",
}


@pytest.mark.parametrize("source", F_STRINGS)
def test_fstrings_print_the_same_on_every_python(source: str) -> None:
    assert canonical(f"x = {source}") == f"x = {F_STRINGS[source]}"
    assert canonical(canonical(f"x = {source}")) == canonical(f"x = {source}")


@pytest.mark.parametrize("source", ["f'{p['x']}'", "f'{'\\n'.join(x)}'", "f'{x\n}'", "f'{x # y\n}'", "f\"{'\\n'}\""])
def test_fstrings_that_only_newer_pythons_read_are_refused_everywhere(source: str) -> None:
    with pytest.raises(ProgramError):
        parse(source)


@pytest.mark.parametrize("source", ["x = '\\d'", "x = 1 is 2", "x = 'a' 'b'", "x = 0in y", "x = f'\\{y}'"])
def test_doubtful_text_neither_warns_nor_fails(source: str) -> None:
    parse(source)  # warnings are errors in this suite


def test_primitives_name_their_parameters_and_defaults() -> None:
    assert str(PRIMITIVES["bm25"].signature) == "(query, k=10)"
    assert str(PRIMITIVES["fuse"].signature) == "(*lists, k=None)"
    assert PRIMITIVES["rerank"].signature.bind("q", [], k=3).arguments == {"query": "q", "passages": [], "k": 3}
    assert not PRIMITIVES.keys() & BUILTINS


def test_it_parses_in_a_thread() -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(canonical(SEED))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [SEED] * 8
    assert sys.getrecursionlimit() >= 1000


@pytest.mark.parametrize(
    "inner", ["(lambda: 1)", "(1 if x else (lambda: 2))", "[lambda: 1]", "(lambda y: y)(3)", "x != 1"]
)
def test_functions_inside_f_strings_survive_the_round_trip(inner):
    text = canonical(f"print(f'{{{inner}}}')")
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(f"print(f'{{{inner}}}')"))
    assert canonical(text) == text
