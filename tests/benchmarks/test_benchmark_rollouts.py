"""The lock-step peer, and the rollout benchmark on a tiny model."""

import json

import pytest
import torch
from helpers_rollouts import TableExecutor, question

from benchmarks import rollouts
from benchmarks.lockstep import LockStep, _StopTexts
from benchmarks.rollouts_side import SIDES, make_run
from benchmarks.sides import Measured
from rpl.policy.loading import load_policy
from rpl.policy.renderer import Renderer
from rpl.rollouts.requests import RolloutConfig, RolloutRequest
from rpl.sampling.stopping import StopDetector

TABLE = {"print(1)": "[p1] Lyon: Lyon is a city in France."}
CONFIG = RolloutConfig(max_turns=2, max_new_tokens=6, temperature=0.0, batch_size=2, max_context_tokens=4000)


@pytest.fixture(scope="module")
def tiny():
    return load_policy("tiny")


class Scripted(LockStep):
    """Writes given texts, one list a turn."""

    def __init__(self, texts, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.texts, self.seen = list(texts), []

    def generate(self, transcripts):
        self.seen.append(transcripts)
        encode = self.renderer.tokenizer.encode
        return [(encode(text, add_special_tokens=False), "stop") for text in self.texts.pop(0)]


def test_unfinished_rollouts_go_on_together_with_their_whole_transcripts(tiny):
    renderer = Renderer(tiny[1])
    executor = TableExecutor(TABLE)
    program = "<program>\nprint(1)\n</program>"
    texts = [[program, "<answer>Peru</answer>"], ["<answer>France</answer>"], [program], [program]]
    loop = Scripted(texts, tiny[0], renderer, executor, CONFIG, bf16=False)
    made = loop.run([RolloutRequest(question(), "g", i, i) for i in range(3)])
    assert [(r.answer, r.invalid) for r in made] == [("France", None), ("Peru", None), (None, "turn_budget")]
    assert [len(transcripts) for transcripts in loop.seen] == [2, 1, 1, 1]
    first = loop.seen[0][0] + list(made[0].turns[0].completion_ids) + list(made[0].turns[0].observation_ids)
    assert loop.seen[1] == [first]
    assert executor.jobs == [("print(1)", "Where is Lyon?")] * 2
    ids, mask = renderer.transcript("Where is Lyon?", [("print(1)", TABLE["print(1)"])], "France", eos=False)
    assert list(made[0].token_ids) == ids
    assert list(made[0].completion_mask) == mask


def test_padding_changes_no_completion(tiny):
    model, tokenizer = tiny
    loop = LockStep(model, Renderer(tokenizer), TableExecutor(TABLE), CONFIG, bf16=False)
    short, long = [5, 6, 7], list(range(5, 45))
    both = loop.generate([short, long])
    assert both == loop.generate([short]) + loop.generate([long])
    assert both[0] != both[1]
    ids = list(short)
    with torch.no_grad():
        for _ in range(CONFIG.max_new_tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert both[0][0] == ids[len(short) :]


def test_rows_end_at_a_stop_text_or_an_end_token(tiny):
    tokenizer = tiny[1]
    answer = tokenizer.encode("<answer>x</answer>", add_special_tokens=False)
    stop = _StopTexts(StopDetector(tokenizer, ("</answer>",)), tokenizer.eos_token_id, 1, 2)
    other = [7] * (len(answer) + 1)
    for end in range(1, len(answer) + 2):
        row = [*answer, tokenizer.pad_token_id]
        state = stop(torch.tensor([[0, *row[:end]], [0, *other[:end]]]), None)
        assert state.tolist() == [end >= len(answer), False]
    assert stop.cut(0, [*answer, tokenizer.pad_token_id]) == (answer, "stop")
    assert stop.cut(1, other) == (other, "length")
    ended = _StopTexts(StopDetector(tokenizer, ("</answer>",)), tokenizer.eos_token_id, 0, 1)
    assert ended(torch.tensor([[tokenizer.eos_token_id]]), None).tolist() == [True]
    assert ended.cut(0, [tokenizer.eos_token_id, 0]) == ([tokenizer.eos_token_id], "eos")


def test_both_sides_write_the_same_when_greedy(tiny):
    renderer = Renderer(tiny[1])
    made = {}
    for side in SIDES:
        run = make_run(side, tiny[0], renderer, TableExecutor(TABLE), CONFIG, bf16=False)
        made[side] = [r.token_ids for r in run([RolloutRequest(question(text), "g", 0, 0) for text in ("A?", "Two?")])]
    assert made["rpl"] == made["lockstep"]
    assert made["rpl"][0] != made["rpl"][1]


def test_our_side_in_the_quick_form(tmp_path, capsys):
    out = tmp_path / "results.jsonl"
    assert rollouts.main(["--quick", "--sides", "rpl", "--threads", "1", "--repeats", "1", "--out", str(out)]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads(out.read_text()) == line
    side = line["sides"]["rpl"]
    assert side["counts"]["finished"] == 4
    assert 4 <= side["counts"]["written_tokens"] <= 48
    assert side["rollouts_per_s"] == pytest.approx(4 / side["seconds"][0], rel=0.05)
    assert "ratios" not in line


def test_the_summary_compares_medians_and_counts_equal_rollouts():
    def side(seconds, digests):
        turn = {"finished": 4, "written_tokens": 60, "observation_tokens": 8, "programs": 2, "turns": 6, "em": 0.5}
        turn |= {"ends": {"answer": 4}, "digests": digests}
        return Measured(turns=[turn | {"seconds": s} for s in seconds], peak_mib=100 * seconds[0])

    args = rollouts.parse(["--policy", "tiny", "--temperature", "0"])
    results = {"rpl": side((1.0, 2.0, 1.5), ["a", "b"]), "lockstep": side((4.0, 3.0, 2.0), ["a", "c"])}
    line = rollouts.summarise(args, results)
    assert line["ratios"]["lockstep"] == {"speed": 2.0, "speed_per_written_token": 2.0, "peak_memory": 0.25}
    assert line["equal_rollouts"] == 0.5
    assert line["sides"]["rpl"]["ends"] == {"answer": 12}
    assert "rpl is 2.00 times as fast" in "\n".join(rollouts.describe(line))


def test_a_policy_that_is_not_there_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(rollouts, "TRAINED", tmp_path / "policy")
    with pytest.raises(SystemExit):
        rollouts.parse([])
    assert "make bench-policy" in capsys.readouterr().err
    assert rollouts.main(["--policy", str(tmp_path)]) == 1
    assert "no config.json" in capsys.readouterr().err
