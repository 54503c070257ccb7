"""Imports go one way, and the light parts stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "rpl"

# room -> rooms it may import
FOUNDATION = {"errors", "types", "files", "progress"}
ALLOWED = {
    "errors": set(),
    "types": set(),
    "files": {"errors"},
    "progress": set(),
    "estimate": {"errors"},
    "answers": FOUNDATION,
    "programs": FOUNDATION,
    "atlas": FOUNDATION,
    "retrieval": FOUNDATION | {"atlas"},
    "executors": FOUNDATION | {"programs", "retrieval"},
    "rollouts": FOUNDATION | {"answers", "programs", "retrieval", "executors"},
    "repair": FOUNDATION | {"answers", "programs", "retrieval", "executors", "rollouts"},
    "evaluation": FOUNDATION | {"answers", "programs", "retrieval", "executors", "rollouts"},
    "metrics": FOUNDATION | {"answers"},
    "modules": FOUNDATION
    | {"estimate", "answers", "programs", "retrieval", "executors", "rollouts", "repair", "evaluation", "metrics"},
    "datamodules": FOUNDATION | {"answers", "programs", "atlas", "retrieval", "repair"},
}
TOP = {"cli", "lightning_cli", "commands", "callbacks", "cycle", "__main__", "__init__"}

LIGHT = ["rpl", "rpl.types", "rpl.errors", "rpl.answers", "rpl.cli", "rpl.programs.grammar", "rpl.executors.restricted"]
HEAVY = {"torch", "numpy", "transformers", "lightning", "faiss", "sentence_transformers", "vllm", "pyserini", "bm25s"}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module] if node.module != "rpl" else [f"rpl.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("rpl.")}
    return rooms


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_table(path):
    here = room(path)
    if here in TOP:
        return
    assert here in ALLOWED, f"{here} is a new room: enter it in the table"
    wrong = imported_rooms(path) - ALLOWED[here] - {here, "__version__"}
    assert not wrong, f"{path.name} imports {wrong}"


def test_the_table_would_catch_a_wrong_import(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from rpl.modules import grpo\n")
    assert imported_rooms(bad) - ALLOWED["programs"] == {"modules"}


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_nothing_heavy(module):
    code = f"import sys, {module}; print(' '.join(sorted(set(sys.modules) & {HEAVY!r})))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == ""
