"""One record a primitive: what is derived from it, and that a new one takes its record and its function alone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rpl
from rpl.programs.primitives import FULL_TEXT, PASSAGE_LISTS, PRIMITIVES, SEARCHES, SERVED, Argument, Primitive

ADDED = {
    "rpl/programs/primitives.py": (
        '    Primitive("unique"',
        '    Primitive("last", (_PASSAGES, Argument("k", "count", 1)), "worker", "the last passages of a list"),\n',
    ),
    "rpl/retrieval/fusion.py": ('"fuse": rec', '"last": lambda passages, k: passages[-k:], '),
}
"""Path -> what stands there, and what is put before it: a primitive that the worker computes.

`docs/extending.md` adds one that the library serves.
"""

SCRIPT = """
import json, sys
from rpl.core.records import Question, to_dict
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.mutation.donors import Donors
from rpl.mutation.localise import localise
from rpl.mutation.registry import mutate
from rpl.policy.prompts import user_message
from rpl.programs.grammar import parse
from rpl.retrieval.library_config import LibraryConfig

question = "Borders and currency of a country"
config = EnvironmentConfig(library=LibraryConfig(corpus="atlas-mini", bm25="memory"), workers=1)
with Environment(config) as environment:
    environment.connect(len)
    traces = environment.executor.run_many([(parse(source).source, question) for source in sys.argv[1:]])
    offered = environment.library.primitives
gold = tuple(traces[0].calls[0].result_ids)
print(json.dumps({
    "traces": to_dict(traces),
    "prompt": user_message("documented", thinking=False),
    "mutants": [m.program.source for m in mutate(parse(sys.argv[1]), Donors(queries=("Lyon",)))],
    "offered": offered,
    "failure": localise(Question("q", "q", ("a",), gold), traces[0]).kind,
}))
"""


def run_with(tmp_path: Path, *programs: str) -> dict:
    """Runs programs in a copy of the package to which the primitive was added."""
    shutil.copytree(Path(rpl.__file__).parent, tmp_path / "rpl", ignore=shutil.ignore_patterns("__pycache__"))
    for path, (anchor, new) in ADDED.items():
        text = (tmp_path / path).read_text(encoding="utf-8")
        assert text.count(anchor) == 1
        (tmp_path / path).write_text(text.replace(anchor, new + anchor), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *programs], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_new_primitive_of_the_worker_is_its_record_and_its_function(tmp_path):
    source = "hits = bm25(question, k=3)\nfor p in last(hits):\n    print(p)"
    found = run_with(tmp_path, source, "last('Chad')")
    search, last = found["traces"][0]["calls"]
    assert len(search["result_ids"]) == 3
    assert (last["name"], last["line"]) == ("last", 2)
    assert last["args"] == {"passages": search["result_ids"], "k": 1}
    assert last["result_ids"] == found["traces"][0]["printed_ids"] == search["result_ids"][-1:]
    assert found["traces"][1]["error"]["message"] == "last: passages must be a list of passages, got str"
    assert "last(passages, k=1): the last passages of a list" in found["prompt"]
    assert "last" not in found["offered"]
    assert found["failure"] == "lost_in_rerank", "it was handed gold and dropped it"
    assert f"{source}\n    for q in links(p):\n        print(q)" in found["mutants"]


def test_the_groups_of_primitives():
    assert SEARCHES == FULL_TEXT == ("bm25", "dense")
    assert SERVED == ("bm25", "dense", "rerank", "read", "links")
    assert PASSAGE_LISTS == ("bm25", "dense", "fuse", "rerank", "links", "unique")


@pytest.mark.parametrize(
    ("name", "args", "ids"),
    [
        ("rerank", {"query": "a", "passages": ["p1", "p2"], "k": None}, ("p1", "p2")),
        ("fuse", {"lists": [["p1"], ["p2", "p1"]], "k": 1}, ("p1", "p2", "p1")),
        ("links", {"passage": "p1", "k": 1}, ()),
    ],
)
def test_a_call_received_these_passages(name, args, ids):
    assert PRIMITIVES[name].passage_ids(args) == ids


def test_arguments_beside_lists_are_given_by_name():
    mixed = Primitive("join", (Argument("lists", "lists"), Argument("k", "count", 3)), "worker", "")
    assert str(mixed.signature) == "(*lists, k=3)"
    assert not mixed.is_search
