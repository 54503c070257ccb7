import dataclasses
import json

import pytest
from repair_fakes import ScriptedSampler

from rpl.atlas.build import materialise
from rpl.core.errors import ConfigError, DataError
from rpl.core.files import append_jsonl, read_jsonl
from rpl.core.records import Question, Reading, Repair, Rollout, Turn, from_dict, to_dict
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.executors.base import ExecutionLimits
from rpl.mutation.search import RepairConfig
from rpl.policy.renderer import Renderer
from rpl.repair.control import ControlConfig
from rpl.repair.harvest import SEED_PROGRAM, HarvestConfig, harvest
from rpl.retrieval.library_config import LibraryConfig
from rpl.sampling.opening import OpenedPolicy

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def train():
    path = materialise("atlas-mini") / "questions.jsonl"
    questions = [from_dict(Question, record) for _, record in read_jsonl(path)]
    return [question for question in questions if question.split == "train"]


@pytest.fixture(scope="module")
def environment():
    config = EnvironmentConfig(
        library=LibraryConfig(corpus="atlas-mini", bm25="memory"), limits=ExecutionLimits(printed_tokens=4096)
    )
    with Environment(config) as opened:
        yield opened


@pytest.fixture(scope="module")
def policy():
    from rpl.policy.loading import load_policy, resolve_model

    model, tokenizer = load_policy(resolve_model("tiny"))
    renderer = Renderer(tokenizer)
    return OpenedPolicy("tiny", model, renderer, ScriptedSampler(writing), None, {"weights": "tiny's"})


def writing(_, seed):
    """Writes one of the texts, by seed; as an answerer it says `x`."""
    return TEXTS[seed % len(TEXTS)] if seed else "x</answer>"


TEXTS = (
    "nothing of use",
    f"<program>\n{SEED_PROGRAM}\n</program>",
    "<program>\nfor p in bm25(question, k=2):\n    print(p)\n</program>",
    "<program>\nfor p in bm25(question, k=1):\n    print(p.nothing)\n</program>",
)
CONFIG = HarvestConfig(
    num_samples=2,
    repair=RepairConfig(max_executions=24, max_printed_tokens=4096),
    control=ControlConfig(batch_size=8),
    control_questions=2,
    chunk_size=3,
)


def run(questions, policy, environment, out, config=CONFIG, **more):
    return harvest(questions, policy, environment, config, out, **more)


@pytest.fixture(scope="module")
def whole(train, policy, environment, tmp_path_factory):
    out = tmp_path_factory.mktemp("harvest") / "repairs.jsonl"
    summary = run(train[:8], policy, environment, out)
    return out, summary


def test_every_question_has_one_record_in_order(train, whole):
    out, summary = whole
    records = [from_dict(Repair, record) for _, record in read_jsonl(out)]
    assert [r.question_id for r in records] == [q.id for q in train[:8]]
    assert summary == json.loads(out.with_name("repairs.summary.json").read_text())
    assert summary["questions"] == 8
    repaired = [r for r in records if r.verdict == "repaired"]
    assert repaired
    for record in repaired:
        gold = next(q.gold_docs for q in train if q.id == record.question_id)
        assert record.trace is not None
        assert set(gold) <= set(record.trace.printed_ids)
        assert record.trace.error is None
        assert record.model == "tiny"
    assert sum(group["failures"] for group in summary["by_type"].values()) == summary["repair"]["failures"]
    assert sum(group["repaired"] for group in summary["by_failure"].values()) == summary["repair"]["repaired"]


def test_the_control_runs_on_the_first_failures_with_their_budget(whole):
    out, summary = whole
    records = [record for _, record in read_jsonl(out)]
    attempted = [r for r in records if r["verdict"] in ("repaired", "budget", "exhausted")]
    controlled = [r for r in records if r["control"] is not None]
    assert controlled == attempted[:2]
    assert all(r["control"]["executions"] <= r["executions"] for r in controlled)
    assert sum(summary["paired"].values()) == summary["control"]["failures"] == 2
    for record in controlled:
        if record["verdict"] == "repaired":
            assert set(record["benefit"]) == {"repaired", "resampled", "original"}
            assert all({"em", "gold_logprob", "answer"} == set(arm) for arm in record["benefit"].values())


def copy_settings(out, folder):
    (folder / "repairs.settings.json").write_bytes(out.with_name("repairs.settings.json").read_bytes())


@pytest.mark.parametrize("cut", [0.0, 0.3, 0.7, 0.999])
def test_a_killed_harvest_resumes_to_the_same_file(cut, train, policy, environment, whole, tmp_path):
    complete = whole[0].read_bytes()
    out = tmp_path / "repairs.jsonl"
    copy_settings(whole[0], tmp_path)
    out.write_bytes(complete[: int(cut * len(complete))])  # mid-line, as a kill leaves it
    summary = run(train[:8], policy, environment, out)
    assert out.read_bytes() == complete
    assert summary == whole[1]


def test_a_finished_harvest_does_nothing_again(train, policy, environment, whole):
    class Unusable(Environment):
        @property
        def executor(self):
            raise AssertionError("nothing may run")

    before = whole[0].read_bytes()
    with Unusable(environment.config) as unusable:
        assert run(train[:8], policy, unusable, whole[0]) == whole[1]
    assert whole[0].read_bytes() == before


def test_other_questions_or_settings_are_refused(train, policy, environment, whole, tmp_path):
    out = tmp_path / "repairs.jsonl"
    for suffix in (".jsonl", ".settings.json"):
        (tmp_path / f"repairs{suffix}").write_bytes(whole[0].with_name(f"repairs{suffix}").read_bytes())
    with pytest.raises(DataError, match=r"repairs.jsonl:1: holds question .* another harvest"):
        run(train[1:9], policy, environment, out)
    with pytest.raises(DataError, match=r"begun with other settings \(seed: 0 there, 1 here\); delete it"):
        run(train[:8], policy, environment, out, dataclasses.replace(CONFIG, seed=1))
    changed = [dataclasses.replace(train[0], question="Who else?"), *train[1:8]]
    with pytest.raises(DataError, match=r"other settings \(the questions\)"):
        run(changed, policy, environment, out)
    with pytest.raises(DataError, match=r"other settings \(weights: \"tiny's\" there, 'noise' here\)"):
        run(train[:8], dataclasses.replace(policy, identity={"weights": "noise"}), environment, out)
    limits = dataclasses.replace(environment.config.limits, calls=31)
    other = Environment(dataclasses.replace(environment.config, limits=limits), environment.library)
    with pytest.raises(DataError, match=r"limits.calls: 32 there, 31 here"):
        run(train[:8], policy, other, out)
    settings = tmp_path / "repairs.settings.json"
    settings.write_text(json.dumps({k: v for k, v in json.loads(settings.read_text()).items() if k != "questions"}))
    with pytest.raises(DataError, match="without digests of policy and questions; delete it"):
        run(train[:8], policy, environment, out)
    settings.unlink()
    with pytest.raises(DataError, match=r"\(repairs.settings.json\) are not beside it"):
        run(train[:8], policy, environment, out)


def test_nothing_is_run_for_a_question_whose_gold_the_corpus_lacks(train, policy, environment, whole, tmp_path, capsys):
    out = tmp_path / "repairs.jsonl"
    lost = dataclasses.replace(train[1], gold_docs=(*train[1].gold_docs, "zz"))
    summary = run([train[0], lost, *train[2:8]], policy, environment, out, dataclasses.replace(CONFIG, benefit=False))
    assert "7 of 8 questions with gold can be answered from this corpus" in capsys.readouterr().err
    records = [from_dict(Repair, record) for _, record in read_jsonl(out)]
    others = [from_dict(Repair, record) for _, record in read_jsonl(whole[0])]
    assert [r.verdict for r in records] == [others[0].verdict, "gold_missing", *(r.verdict for r in others[2:])]
    assert (records[1].question_id, records[1].executions, records[1].attempted) == (lost.id, 0, False)
    assert summary["verdicts"]["gold_missing"] == 1
    assert summary["repair"]["failures"] == sum(r.attempted for r in records)
    assert summary["repair"]["executions"] == sum(r.executions for r in records if r.attempted)


def test_more_questions_go_on_with_the_file_of_fewer(train, policy, environment, whole, tmp_path):
    out = tmp_path / "repairs.jsonl"
    run(train[:3], policy, environment, out)
    run(train[:8], policy, environment, out)
    assert out.read_bytes() == whole[0].read_bytes()


def test_a_harvest_that_has_enough_stops_after_a_chunk_and_can_go_on(train, policy, environment, whole, tmp_path):
    out = tmp_path / "repairs.jsonl"
    asked = []
    summary = run(train[:8], policy, environment, out, enough=lambda: bool(asked.append(1)) or len(asked) == 2)
    assert (summary["questions"], len(asked)) == (6, 2)
    run(train[:8], policy, environment, out)
    assert out.read_bytes() == whole[0].read_bytes()


@pytest.mark.parametrize("split", ["test", "val", ""])
def test_only_train_questions_are_harvested(split, train, policy, environment, tmp_path):
    questions = [train[0], dataclasses.replace(train[1], split=split)]
    with pytest.raises(DataError, match="only train questions may be harvested"):
        run(questions, policy, environment, tmp_path / "repairs.jsonl")
    assert not (tmp_path / "repairs.jsonl").exists()


def test_a_repeated_question_is_refused(train, policy, environment, tmp_path):
    with pytest.raises(DataError, match="occurs twice"):
        run([train[0], train[0]], policy, environment, tmp_path / "repairs.jsonl")


def rollout(question, *turns):
    """A recorded rollout; a turn is a program, or a program with its trace."""
    pairs = [turn if isinstance(turn, tuple) else (turn, None) for turn in turns]
    made = tuple(Turn((1,), (0.0,), "", "stop", program=source, trace=trace) for source, trace in pairs)
    return Rollout(question.id, question.id, 0, 0, (1,), made)


def test_recorded_rollouts_stand_in_for_samples(train, policy, environment, tmp_path):
    question = next(q for q in train if q.type == "one_hop")
    good = "for p in bm25(question, k=20):\n    print(p)"
    path = tmp_path / "rollouts.jsonl"
    stamped = {"phase": "rl", "iteration": 0, "rollout": to_dict(rollout(question, good))}
    append_jsonl(path, [stamped, to_dict(rollout(question, "this is no program"))])
    config = dataclasses.replace(CONFIG, control_questions=0)
    run([question], policy, environment, tmp_path / "a.jsonl", config, rollouts=path)
    [(_, record)] = read_jsonl(tmp_path / "a.jsonl")
    assert (record["verdict"], record["child"], record["executions"]) == ("already_verified", good, 0)
    dropping = dataclasses.replace(config, keep_successes=False)
    run([question], policy, environment, tmp_path / "b.jsonl", dropping, rollouts=path)
    [(_, record)] = read_jsonl(tmp_path / "b.jsonl")
    assert (record["verdict"], record["child"], record["trace"]) == ("solved", None, None)
    append_jsonl(path, [{"rollout": {"question_id": question.id}}])
    with pytest.raises(DataError, match=r"rollouts.jsonl:3: not a rollout: field 'group_id' is missing"):
        run([question], policy, environment, tmp_path / "c.jsonl", config, rollouts=path)


def test_the_seed_program_stands_in_where_nothing_parses(train, policy, environment, tmp_path):
    path = tmp_path / "rollouts.jsonl"
    append_jsonl(path, [to_dict(rollout(train[0], "import os", "import sys"))])
    config = dataclasses.replace(CONFIG, control_questions=0)
    run([train[0]], policy, environment, tmp_path / "repairs.jsonl", config, rollouts=path)
    [(_, record)] = read_jsonl(tmp_path / "repairs.jsonl")
    assert record["parent"] == SEED_PROGRAM


class Counted(Environment):
    """Remembers which programs are executed."""

    def __init__(self, environment):
        super().__init__(environment.config, environment.library)
        self.ran = []
        self._inner = environment.executor

    @property
    def executor(self):
        return self

    def run_many(self, jobs):
        self.ran += [source for source, _ in jobs]
        return self._inner.run_many(jobs)


ONLY_STARTS = dataclasses.replace(
    CONFIG, control_questions=0, repair=RepairConfig(max_executions=1, max_printed_tokens=4096), num_samples=2
)
LATER = "for p in bm25(question, k=4):\n    pass"


def harvested(question, path, policy, environment, out, **more):
    counted = Counted(environment)
    run([question], policy, counted, out, ONLY_STARTS, rollouts=path, **more)
    [(_, record)] = read_jsonl(out)
    return record, counted.ran


def test_traces_of_all_turns_are_used_as_they_were_recorded(train, policy, environment, tmp_path):
    question, path = train[0], tmp_path / "rollouts.jsonl"
    best = f"{LATER}\nprint(1)"
    traces = [environment.executor.run(source, question.question) for source in (LATER, best)]
    traces[1] = dataclasses.replace(traces[1], printed_ids=question.gold_docs[:1], fuel=12345)
    append_jsonl(path, [to_dict(rollout(question, (LATER, traces[0]), (best, traces[1])))])
    record, ran = harvested(question, path, policy, environment, tmp_path / "a.jsonl")
    assert record["parent"] == best, "the program of the second turn comes nearest to the gold, as its trace says"
    assert ran == [best], "nothing but the search itself was executed"


@pytest.mark.parametrize("change", ["spelling", "corpus", "void"])
def test_a_trace_that_does_not_fit_is_not_used(change, train, policy, environment, tmp_path):
    question, path = train[0], tmp_path / "rollouts.jsonl"
    trace = environment.executor.run(LATER, question.question)
    other = {
        "spelling": {"source": LATER + "  # sure"},
        "corpus": {"calls": (dataclasses.replace(trace.calls[0], result_ids=("nowhere",)),)},
        "void": {"infra_error": "retrieval failed"},
    }[change]
    append_jsonl(path, [to_dict(rollout(question, (LATER, dataclasses.replace(trace, **other)), "import os"))])
    _, ran = harvested(question, path, policy, environment, tmp_path / "a.jsonl")
    assert ran == [LATER, LATER], "once for the start, once for the search"


def test_new_samples_are_drawn_where_too_few_are_recorded(train, policy, environment, tmp_path):
    question, path = train[0], tmp_path / "rollouts.jsonl"
    lines = [{"phase": phase, "rollout": to_dict(rollout(question, LATER, "import os"))} for phase in ("rl", "rl-2")]
    append_jsonl(path, [*lines, {"phase": "rl-2", "rollout": to_dict(rollout(question, f"{LATER}\nprint(2)"))}])
    for phase, wanted in (("rl", {LATER}), ("rl-2", {LATER, f"{LATER}\nprint(2)"})):
        _, ran = harvested(question, path, policy, environment, tmp_path / f"{phase}.jsonl", phase=phase)
        assert set(ran) == wanted
    other = dataclasses.replace(rollout(question, LATER), question_id=train[1].id)
    append_jsonl(tmp_path / "few.jsonl", [to_dict(other)])
    _, ran = harvested(question, tmp_path / "few.jsonl", policy, environment, tmp_path / "c.jsonl")
    assert ran
    assert LATER not in ran


def test_wide_evidence_is_recorded_to_be_read_only_where_it_holds_all_gold(train, policy, environment, tmp_path):
    wide = "for p in bm25(question, k=4):\n    print(p)"
    config = dataclasses.replace(CONFIG, control_questions=0, reading_program=wide)
    run(train[:12], policy, environment, tmp_path / "repairs.jsonl", config)
    records = [from_dict(Repair, record) for _, record in read_jsonl(tmp_path / "repairs.jsonl")]
    found = {r.question_id: r.reading for r in records if r.reading is not None}
    assert 0 < len(found) < len(records)
    for q in train[:12]:
        trace = environment.executor.run(wide, q.question)
        assert (q.id in found) == (set(q.gold_docs) <= set(trace.printed_ids))
        if q.id in found:
            assert found[q.id] == Reading(wide, trace.observation)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_samples": 0}, "harvest.num_samples"),
        ({"temperature": -1.0}, "harvest.temperature"),
        ({"control_questions": -1}, "harvest.control_questions"),
        ({"seed_program": "import os"}, "harvest.seed_program is not a program"),
        ({"reading_program": "import os"}, "harvest.reading_program is not a program"),
        ({"seed_program": "print(bm25('</program>'))"}, "harvest.seed_program holds a tag of the transcript"),
    ],
)
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises(ConfigError, match=message):
        HarvestConfig(**wrong)
