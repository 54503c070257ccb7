"""The name `rpl` on the package index is another project: nothing that users read may tell them to install it."""

import re
import tomllib
from importlib.metadata import metadata
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


@pytest.mark.parametrize("extra", ["lucene", "milvus", "vllm", "serve", "minilm"])
def test_install_lines_name_extras_that_exist(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extra in project["optional-dependencies"]
    assert install_line(extra) == f"pip install 'retrieval-program-learning[{extra}]'"
