"""README and documentation tell the truth: the site builds, commands run, tables and links name what exists."""

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from rpl.cli.main import COMMANDS, LIGHTNING_COMMANDS, run
from rpl.training.metric_names import is_documented

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import hooks  # noqa: E402 - the generator of the tables lies beside the pages

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs" / f"{name}.md" for name in (
    "tutorial", "data", "retrieval", "training", "algorithm", "language", "results", "scale", "sandbox", "commands",
    "concepts", "configuration", "extending", "index", "metrics", "operators", "troubleshooting",
))]  # fmt: skip
"""All pages, in the order in which their commands can be run one after the other."""

TEXT = "\n".join(page.read_text() for page in PAGES)


def shell_lines():
    """The commands of all shell blocks, each once, continuation lines joined, comments dropped."""
    seen = set()
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.split(" #")[0].strip()
            if command and not command.startswith("#") and command not in seen:
                seen.add(command)
                yield command


LINES = list(shell_lines())
RPL_LINES = [line for line in LINES if line.startswith("rpl ")]


def test_every_command_is_documented():
    documented = {line.split()[1] for line in RPL_LINES}
    assert documented >= set(COMMANDS) | {"fit", "validate", "test"}


@pytest.mark.parametrize("line", RPL_LINES)
def test_rpl_lines_name_commands_and_files_that_exist(line):
    words = shlex.split(line)
    assert words[1] in LIGHTNING_COMMANDS | COMMANDS
    for word in words:
        if word.startswith("configs/"):
            assert (ROOT / word).is_file(), word


@pytest.mark.parametrize("line", [x for x in LINES if x.startswith("make ")])
def test_make_targets_exist(line):
    target = shlex.split(line)[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_shell_lines_are_only_of_known_kinds():
    kinds = {shlex.split(line)[0] for line in LINES}
    assert kinds <= {"rpl", "make", "pip", "git", "cd", "cat"}, kinds


TINY = {"smollm2-135m": "tiny", "runs/quickstart/model": "tiny"}


def tiny_version(line, tmp_path):
    """The same command on the tiny model and the small atlas, writing below `tmp_path`."""
    words = [TINY.get(word, word) for word in shlex.split(line)[1:]]
    words = [str(ROOT / w) if w.startswith("configs/") else w for w in words]
    words = [str(tmp_path / w) if w.startswith(("my/", "runs/")) or w == "repairs.jsonl" else w for w in words]
    if words[0] in LIGHTNING_COMMANDS:
        words += ["-c", str(ROOT / "configs/tiny.yaml"), "--trainer.logger.save_dir", str(tmp_path)]
        words += ["--trainer.default_root_dir", str(tmp_path)]
    elif words[0] == "doctor" and "-c" in words:
        words += ["--model.policy", "tiny"]
    elif words[0] == "export":
        words[1] = str(next(tmp_path.rglob("*.ckpt")))
    elif words[0] == "cycle":
        words = ["cycle", "-c", str(ROOT / "configs/tiny_cycle.yaml"), "--run_dir", str(tmp_path / "runs/quickstart")]
    elif words[0] == "harvest":
        words += ["--questions", "atlas-mini", "--environment.library.corpus", "atlas-mini", "--num_questions", "4"]
        words += ["--harvest.max_new_tokens", "8", "--harvest.control_questions", "1", "--harvest.num_samples", "1"]
    elif words[0] == "ask":
        words += ["--rollout.max_new_tokens", "8"]
    return words


def serve_and_stop(words):
    """Starts a server on a free port, asks whether it is ready, and interrupts it as Ctrl-C would."""
    command = [sys.executable, "-m", "rpl", *words[: words.index("--port")], "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        url = next(match[0] for line in server.stderr if (match := re.search(r"http://[\w.:]+", line)))
        assert any(line.startswith("rpl: ready") for line in server.stderr)
        with urllib.request.urlopen(f"{url}/ready", timeout=30) as reply:
            assert reply.status == 200
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0, server.stderr.read()


def test_all_pages_are_listed():
    assert set(PAGES) >= set((ROOT / "docs").glob("*.md"))


def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    operators = (tmp_path / "site" / "operators" / "index.html").read_text()
    assert "query_edit" in operators
    pages = [page.read_text() for page in (tmp_path / "site").rglob("index.html")]
    assert not any("<!-- table:" in page or "arithmatex" in page for page in pages)
    assert sum(page.count("<math") for page in pages) > 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def said(node):
    """The texts that an expression can say, with `…` for what is filled in."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(parts):
            return "".join(map(said, parts))
        case ast.BinOp(left, ast.Add(), right):
            return said(left) + said(right)
    return "…"


def test_the_messages_of_troubleshooting_are_those_of_the_code():
    texts = {
        said(node)
        for path in (ROOT / "rpl").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp)
    }
    tables = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## No message")[0]
    messages = re.findall(r"^\| `(.+?)` \|", tables, re.MULTILINE)
    assert len(messages) > 30

    def found(message):
        wanted = re.compile(".*".join(map(re.escape, message.split("…"))), re.DOTALL)
        return any(wanted.search(text) for text in texts)

    assert [message for message in messages if not found(message)] == []
    assert not found("a message that nothing says")


def test_every_setting_has_a_meaning():
    rows = [re.split(r"(?<!\\)\|", line) for line in hooks.configuration().splitlines() if line.startswith("| `")]
    assert len(rows) > 150
    assert [cells[1].strip() for cells in rows if not cells[4].strip()] == []


def test_every_logged_name_is_documented(finished_cycle):
    lines = (finished_cycle / "metrics.jsonl").read_text().splitlines()
    names = {json.loads(line)["name"] for line in lines}
    assert len(names) > 20
    assert {name for name in names if not is_documented(name)} == set()


def test_the_examples_of_extending_run(tmp_path):
    """Adds all of them to a copy of the package, and runs the tests that the page shows for them."""
    for part in ("rpl", "tests/fakes"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / part, tmp_path / part)
    page = (ROOT / "docs" / "extending.md").read_text()
    files = re.findall(r'```(python|diff) title="(.+?)"\n(.*?)```', page, re.DOTALL)
    for kind, name, text in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if kind == "python" else with_additions(path.read_text(), text))
    tests = [name for _, name, _ in files if name.startswith("tests/")]
    assert len(tests) == page.count("\n## A") == 5
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]


def with_additions(text, diff):
    """A file with the lines that a diff adds; the other lines of the diff say where, and stand there exactly once."""
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] or "\n" for line in lines if not line.startswith("+"))
    assert text.count(old) == 1, old
    return text.replace(old, "".join(line[1:] or "\n" for line in lines))


def test_the_commands_run_in_the_order_of_the_pages(tmp_path, monkeypatch, finished_cycle):
    """All `rpl` lines, one after the other, as a reader would run them (tiny model, small atlas).

    The line of the schedule goes on in a folder that the same line wrote: it is run from its beginning only once.
    """
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished_cycle, tmp_path / "runs/quickstart", symlinks=True)
    (tmp_path / "my").mkdir()
    (tmp_path / "my/corpus.jsonl").write_text('{"id": "a", "title": "Owls", "text": "Owls hunt at night."}\n')
    (tmp_path / "my/questions.jsonl").write_text(
        '{"id": "q", "question": "When do owls hunt?", "answers": ["at night"], "gold_docs": ["a"]}\n'
    )
    for name, text in re.findall(r"```python\n# (\S+)\n(.*?)```", TEXT, re.DOTALL):
        (tmp_path / name).write_text(text)
    for line in RPL_LINES:
        if "--print_config" in line or "fsdp.yaml" in line or "hotpot" in line:
            continue
        if line.startswith(("rpl data fetch", "rpl index fetch", "rpl index import")):
            # What they read is not here; tests/retrieval/test_fetching.py runs them against a server of its own.
            continue
        words = tiny_version(line, tmp_path)
        serve_and_stop(words) if words[0] == "serve-retrieval" else run(words)
