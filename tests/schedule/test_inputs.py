"""A run is identified by content, and a phase by what it was made from: what depends on a change is done again."""

import json
import shutil
from pathlib import Path

import pytest

from rpl.cli.main import run
from rpl.core.errors import CheckpointError
from rpl.core.files import write_json
from rpl.schedule.inputs import begin, check_outputs, check_run, phase_inputs, phase_outputs

TINY = str(Path(__file__).parents[2] / "configs" / "tiny_cycle.yaml")


@pytest.fixture
def again(finished_cycle, tmp_path):
    """A finished run of one's own, and the command that goes on with it."""
    folder = tmp_path / "run"
    shutil.copytree(finished_cycle, folder, symlinks=True)
    return folder, lambda: run(["cycle", "-c", TINY, "--run_dir", str(folder)])


def times(folder):
    return {
        p.relative_to(folder).as_posix(): p.stat().st_mtime_ns
        for p in folder.rglob("*")
        if p.is_file() and p.name not in (".lock", "clock.json")
    }


def test_a_policy_that_was_replaced_after_its_phase_is_refused_by_name(again):
    folder, cycle = again
    weights = folder / "03-rl-2" / "policy" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-7] ^= 1
    weights.write_bytes(bytes(data))
    (folder / "04-eval" / "done.json").unlink()
    records = folder / "04-eval" / "policy-rl-2.jsonl"
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:5]))
    before = times(folder / "04-eval")
    with pytest.raises(
        CheckpointError, match=r"03-rl-2: what this phase left was changed .*policy\.weights: '\w+' there"
    ):
        cycle()
    assert times(folder / "04-eval") == before


@pytest.mark.parametrize("key", ["corpus_digest", "bm25_k1", "questions", "weights", "tokenizer"])
def test_other_contents_under_the_same_names_are_refused_by_name(again, key):
    folder, cycle = again
    identity = json.loads((folder / "identity.json").read_text())
    write_json(folder / "identity.json", identity | {key: "other"})  # as if the run had begun with that
    before = times(folder)
    with pytest.raises(
        CheckpointError, match=rf"other contents under the same names \({key}: 'other' there, .* here\)"
    ):
        cycle()
    assert times(folder) == before


def test_a_run_of_a_version_without_digests_is_refused_with_what_to_do(again):
    folder, cycle = again
    (folder / "identity.json").unlink()
    with pytest.raises(CheckpointError, match=r"recorded no digests.* give another run_dir or delete it"):
        cycle()


def test_a_deleted_phase_is_done_again_and_nothing_that_does_not_depend_on_it(again):
    folder, cycle = again
    weights = (folder / "02-sft" / "policy" / "model.safetensors").read_bytes()
    results = (folder / "results.json").read_text()
    shutil.rmtree(folder / "02-sft")
    before = times(folder)
    cycle()
    after = times(folder)
    assert (folder / "02-sft" / "policy" / "model.safetensors").read_bytes() == weights
    redone = {name.split("/")[0] for name in after if after[name] != before.get(name)}
    # the same policy came out, so that what was made from it stands
    assert redone & {"00-rl", "01-harvest", "03-rl-2", "04-eval"} == set()
    assert (folder / "results.json").read_text() == results


def test_what_was_made_from_another_policy_is_done_again_and_the_rest_is_not(again, capsys):
    folder, cycle = again
    inputs = json.loads((folder / "04-eval" / "inputs.json").read_text())
    write_json(folder / "04-eval" / "inputs.json", inputs | {"after rl-2.weights": "of another policy"})
    before = times(folder)
    cycle()
    after = times(folder)
    changed = {name for name in after if after[name] != before[name] and name.startswith("0")}
    assert changed == {
        f"04-eval/{name}"
        for name in ("inputs.json", "done.json", "policy-rl-2.jsonl", "fixed-1-rl-2.jsonl", "fixed-2-rl-2.jsonl")
    }
    assert "04-eval is done again, as it was made from something else (after rl-2.weights: " in capsys.readouterr().err


def test_parts_without_a_model(tmp_path):
    folder = tmp_path / "00-rl"
    folder.mkdir()
    assert not begin(folder, {"policy.weights": "a"})
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "x.ckpt").write_text("half")
    assert begin(folder, {"policy.weights": "a"})
    assert (folder / "checkpoints" / "x.ckpt").exists()  # an interrupted phase goes on
    assert not begin(folder, {"policy.weights": "b"})
    assert [p.name for p in folder.iterdir()] == ["inputs.json"]
    (folder / "repairs.jsonl").write_text("{}\n")
    check_outputs(folder, {"outputs": phase_outputs(folder)})
    (folder / "repairs.jsonl").write_text("[]\n")
    with pytest.raises(CheckpointError, match=r"00-rl: what this phase left was changed .*\(repairs: '\w+' there"):
        check_outputs(folder, {"outputs": {"repairs": "0" * 16}})
    one = phase_inputs({}, [folder / "repairs.jsonl"])
    (folder / "repairs.jsonl").write_text("()\n")
    assert phase_inputs({}, [folder / "repairs.jsonl"]) != one
    (folder / "inputs.json").unlink()
    with pytest.raises(CheckpointError, match=r"does not say what it was made from .*delete the folder"):
        begin(folder, {})
    check_run(tmp_path / "new", {"a": 1})
    check_run(tmp_path / "new", {"a": 1})
    with pytest.raises(CheckpointError, match=r"\(a: 1 there, 2 here\)"):
        check_run(tmp_path / "new", {"a": 2})
