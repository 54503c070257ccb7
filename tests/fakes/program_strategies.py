"""Hypothesis strategies for programs of the language, as source text."""

from hypothesis import settings
from hypothesis import strategies as st

profile = settings(derandomize=True, max_examples=60, deadline=None, database=None)

names = st.sampled_from(["p", "x", "hits", "question", "seen"])
texts = st.one_of(
    st.sampled_from(["Lyon", "Currency of Chad", "", "it's", 'a "b"', "'\"", "{x}", "back\\slash", "two\nlines", "é☃"]),
    st.text(max_size=6),
)
atoms = st.one_of(
    names, texts.map(repr), st.integers(0, 99).map(str), st.sampled_from(["True", "None", "1.5", "[]", "{}"])
)


def _fill(template: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(lambda values: template.format(*values))


def _grow(e: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operator = st.sampled_from(["+", "-", "*", "/", "//", "%", "==", "!=", "<", "in", "and", "or", "is", "not in"])
    plain = st.sampled_from(["p", "question", "p.title", "len(hits)", "', '.join(seen)"])
    literal = st.sampled_from(["", "a ", "'q' ", "\\n", "{{}}", "\\\\", "é"])
    return st.one_of(
        _fill("({} {} {})", e, operator, e),
        _fill("(not {})", e),
        _fill("(-{})", e),
        _fill("({} if {} else {})", e, e, e),
        _fill("[{}, {}]", e, e),
        _fill("({}, *{})", e, names),
        _fill("{{{}: {}}}", e, e),
        _fill("bm25({}, k={})", e, st.integers(1, 30).map(str)),
        _fill("dense({})", e),
        _fill("fuse({}, {}, k=3)", e, e),
        _fill("rerank({}, {}, 5)", e, e),
        _fill("links({})", names),
        _fill("{}[:{}]", names, e),
        _fill("{}[len({})]", names, e),
        _fill("[y for y in {} if {}]", e, e),
        _fill("any(y in {} for y in {})", e, e),
        _fill("sorted({}, key=lambda z: {})", e, e),
        _fill("{}.text.lower()", names),
        _fill('f"""{}{{{}}}{}"""', literal, plain, literal),
    )


expressions = st.recursive(atoms, _grow, max_leaves=5)


def _indent(block: str) -> str:
    return "\n".join("    " + line for line in block.split("\n"))


def _nest(block: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    inner = block.map(_indent)
    return st.one_of(
        _fill("{}\n{}", block, block),
        _fill("for p in {}:\n{}\n    print(p)", expressions, inner),
        _fill("for p, x in {}:\n{}\n    break", expressions, inner),
        _fill("while {}:\n{}\nelse:\n{}", expressions, inner, inner),
        _fill("if {}:\n{}\nelif {}:\n{}\nelse:\n{}", expressions, inner, expressions, inner, inner),
        _fill("def f(a, b={}):\n{}\n    return {}", expressions, inner, expressions),
    )


simple = st.one_of(
    _fill("print({})", expressions),
    _fill("{} = {}", names, expressions),
    _fill("{} += {}", names, expressions),
    _fill("hits[str({})] = {}", expressions, expressions),
    _fill("{}", expressions),
    st.just("pass"),
)
sources = st.recursive(simple, _nest, max_leaves=4)
