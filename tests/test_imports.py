"""Imports go one way between rooms, in circles nowhere, and the light parts stay light.

A room is a folder of the package; its sub-rooms are rooms of their own. `rooms.yaml` names, for each room, the rooms
it may import from, and no more than it does: an entry that nothing uses is a wall that was not put up.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1] / "rpl"

ALLOWED = yaml.safe_load((Path(__file__).parent / "rooms.yaml").read_text())

LAYERS = [
    "core",
    "atlas credit programs",
    "retrieval",
    "datamodules executors policy sampling",
    "environment estimate mutation",
    "repair rollouts",
    "agents",
    "evaluation",
    "modules",
    "training",
    "reports",
    "schedule",
    "cli",
]
"""Top rooms, lowest first; a room imports from its own row and those above it in this list."""

LIGHT = [
    "rpl",
    "rpl.core.records",
    "rpl.core.errors",
    "rpl.core.answers",
    "rpl.cli.main",
    "rpl.programs.grammar",
    "rpl.executors.runtime.restricted",
]
HEAVY = {"torch", "numpy", "transformers", "lightning", "faiss", "sentence_transformers", "vllm", "pyserini", "bm25s"}


def module_name(path: Path, root: Path = ROOT) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(path: Path, root: Path = ROOT) -> str:
    """`retrieval/library/health.py` lies in `retrieval.library`; what lies directly in the package, in ``."""
    return ".".join(path.relative_to(root).parts[:-1])


def imported(path: Path, modules: dict[str, Path], root: Path = ROOT) -> set[str]:
    """The project's modules that a file imports, wherever in the file; not what only type checkers read.

    Relative imports count, and so do texts that name a module of ours, as `importlib.import_module` and class paths do.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    package = module_name(path, root).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    names: set[str] = set()
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            names |= {f"{base}.{alias.name}" for alias in node.names} | {base}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names |= {str(a.value) for a in node.args if isinstance(a, ast.Constant)}
    # `from rpl.a import b` names the module `rpl.a.b` if there is one, and `rpl.a` if not
    found = {name for name in names if name in modules}
    return {name for name in found if modules[name].name != "__init__.py" or not _only_a_prefix(name, names, modules)}


def _only_a_prefix(name: str, names: set[str], modules: dict[str, Path]) -> bool:
    return any(other.startswith(name + ".") and other in modules for other in names)


def import_graph(root: Path = ROOT) -> tuple[dict[str, set[str]], dict[str, Path]]:
    modules = {module_name(path, root): path for path in root.rglob("*.py")}
    return {name: imported(path, modules, root) - {name, root.name} for name, path in modules.items()}, modules


GRAPH, MODULES = import_graph()


def room_graph() -> dict[str, set[str]]:
    rooms: dict[str, set[str]] = {room(path): set() for path in MODULES.values()}
    for name, targets in GRAPH.items():
        here = room(MODULES[name])
        rooms[here] |= {room(MODULES[target]) for target in targets} - {here}
    rooms.pop("", None)
    return rooms


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other in a circle (strongly connected components of two or more)."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += graph.get(name, ())
        reach[start] = seen
    groups = {tuple(sorted(b for b in reach[a] | {a} if a in reach.get(b, ()))) for a in graph if a in reach[a]}
    return [list(group) for group in sorted(groups)]


def test_each_room_is_in_the_table():
    assert set(room_graph()) == set(ALLOWED)


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_imports_follow_the_table(name):
    assert room_graph()[name] == set(ALLOWED[name])


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_the_table_follows_the_layers(name):
    height = {top: number for number, row in enumerate(LAYERS) for top in row.split()}
    here = name.split(".")[0]
    for other in ALLOWED[name]:
        assert height[other.split(".")[0]] <= height[here], f"{name} stands below {other}"


def test_top_rooms_import_each_other_one_way():
    tops: dict[str, set[str]] = {}
    for name, targets in room_graph().items():
        tops.setdefault(name.split(".")[0], set()).update(t.split(".")[0] for t in targets)
    assert circles({name: targets - {name} for name, targets in tops.items()}) == []


def test_sub_rooms_import_each_other_one_way():
    subs = {name: targets for name, targets in room_graph().items() if "." in name}
    assert circles({name: {target for target in targets if target in subs} for name, targets in subs.items()}) == []


def test_no_modules_import_each_other_in_a_circle():
    assert circles(GRAPH) == []


def test_wrong_imports_of_any_kind_are_seen(tmp_path):
    root = tmp_path / "rpl"
    (root / "low" / "deep").mkdir(parents=True)
    (root / "high").mkdir()
    for folder in (root, root / "low", root / "low" / "deep", root / "high"):
        (folder / "__init__.py").write_text("")
    (root / "high" / "thing.py").write_text("from ..low.deep import bad\n")
    texts = {
        "absolute": "import rpl.high.thing\n",
        "name": "from rpl.high import thing\n",
        "relative": "from ...high.thing import x\n",
        "late": "def f():\n    from rpl.high.thing import x\n",
        "dynamic": "import importlib\nimportlib.import_module('rpl.high.thing')\n",
    }
    for kind, text in texts.items():
        (root / "low" / "deep" / "bad.py").write_text(text)
        graph, _ = import_graph(root)
        assert graph["rpl.low.deep.bad"] == {"rpl.high.thing"}, kind
        assert circles(graph) == [["rpl.high.thing", "rpl.low.deep.bad"]]
    harmless = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rpl.high.thing import x\n"
    (root / "low" / "deep" / "bad.py").write_text(harmless)
    assert import_graph(root)[0]["rpl.low.deep.bad"] == set()


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_nothing_heavy(module):
    code = f"import sys, {module}; print(' '.join(sorted(set(sys.modules) & {HEAVY!r})))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == ""
