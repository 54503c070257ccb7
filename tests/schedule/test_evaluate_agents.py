"""An evaluation phase measures agents that YAML names, with the last policy's weights."""

import json

import pytest

from rpl.agents.baselines import FixedProgram
from rpl.core.errors import ConfigError
from rpl.core.records import Question
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.policy.loading import resolve_model
from rpl.retrieval.library_config import LibraryConfig
from rpl.rollouts.requests import RolloutConfig
from rpl.sampling.opening import OpeningConfig
from rpl.schedule.evaluate import evaluate_policies
from rpl.schedule.phases import EvalConfig, Schedule


class TopTwo(FixedProgram):
    """An agent from outside the package."""

    def __init__(self, renderer, sampler, executor, config, *, identity=None):
        super().__init__(
            renderer, sampler, executor, k=2, max_new_tokens=config.max_new_tokens, name="top two", identity=identity
        )


def test_agents_get_a_row_and_are_compared_with_the_baseline(tmp_path):
    # No gold passage is known: evidence is not compared, and everything else is.
    questions = [
        Question(f"q{i}", f"Which countries border {name}?", ("x",)) for i, name in enumerate(("Chad", "Fiji"))
    ]
    config = EvalConfig(fixed_k=(1,), direct=False, agents=(f"{__name__}.TopTwo",))
    settings = EnvironmentConfig(LibraryConfig("atlas-mini", bm25="memory"), workers=1)
    schedule = Schedule(
        run=None,
        policy="tiny",
        environment=settings,
        rollout=RolloutConfig(max_turns=1, max_new_tokens=4),
        style=None,
        thinking=None,
        opening=OpeningConfig("cpu", "float32"),
        data={},
        trainer={},
        model={},
        configs={},
        seed=0,
    )
    with Environment(settings) as environment:
        policies = {"sft": resolve_model("tiny")}
        evaluate_policies(tmp_path, tmp_path, questions, policies, environment, schedule, config, settings={})
    results = json.loads((tmp_path / "results.json").read_text())
    assert [row["name"] for row in results["rows"]] == ["policy", "fixed bm25 k=1", "top two"]
    assert {(entry["a"], entry["metric"]) for entry in results["comparisons"]} == {
        (name, metric) for name in ("policy (sft)", "top two (sft)") for metric in ("em", "f1", "printed_tokens")
    }
    records = (tmp_path / "TopTwo-sft.jsonl").read_text().splitlines()
    assert sum("question_id" in line for line in records) == 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my_agents.Missing", "there is no class 'my_agents.Missing'"),
        ("rpl.agents.baselines.Missing", "there is no class"),
        ("Policy", "there is no class"),
        ("rpl.core.records.Question", "is no rpl.agents.system.System"),
    ],
)
def test_what_is_no_agent_is_refused_before_anything_runs(path, message):
    with pytest.raises(ConfigError, match=message):
        EvalConfig(agents=(path,))
