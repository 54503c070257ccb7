"""A policy folder says how its policy was trained, and whoever opens it keeps to that or is refused."""

import json
import shutil
from dataclasses import asdict, replace

import pytest
import torch

from rpl.cli.commands.ask import within_limits
from rpl.core.errors import CheckpointError, ConfigError
from rpl.environment.environment import EnvironmentConfig
from rpl.modules.grpo import GRPOModule
from rpl.policy.bundle import FILE, Contract, agreed_layout, check_primitives, contract_file, read_contract
from rpl.policy.loading import resolve_model
from rpl.policy.renderer import Renderer
from rpl.policy.tiny import CHATML, tiny_tokenizer
from rpl.policy.weights.consolidate import export_checkpoint
from rpl.programs.grammar import LANGUAGE_VERSION
from rpl.rollouts.requests import RolloutConfig
from rpl.sampling.opening import open_policy

LIMITS = {"max_turns": 2, "max_new_tokens": 24, "max_context_tokens": 1024, "printed_tokens": 100}
CONTRACT = Contract("documented", False, Renderer(tiny_tokenizer()).template.digest, LIMITS, ["bm25", "dense"])


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(resolve_model("tiny"), tmp_path / "policy")
    save(tmp_path / "policy", CONTRACT)
    return tmp_path / "policy"


def save(folder, contract):
    for name, text in contract_file(contract).items():
        (folder / name).write_text(text)


def test_what_is_written_is_read(folder):
    assert read_contract(folder) == CONTRACT
    assert read_contract("tiny") is None


def test_a_policy_is_asked_as_it_was_trained(folder, capsys):
    opened = open_policy(str(folder))
    assert (opened.renderer.style, opened.renderer.thinking) == ("documented", False)
    assert opened.contract == CONTRACT
    module = GRPOModule(policy="tiny", init_from=str(folder))
    module.configure_model()
    assert (module.policy_model.renderer.style, module.policy_model.renderer.thinking) == ("documented", False)
    assert capsys.readouterr().err == ""
    same = agreed_layout(folder, "documented", False)
    assert (same.prompt_style, same.thinking) == ("documented", False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt_style": "compact"}, "prompt_style is compact, but the policy was trained with documented"),
        ({"thinking": True}, "thinking is true, but the policy was trained with false"),
    ],
)
def test_a_conflict_names_both_sides(folder, given, message):
    with pytest.raises(ConfigError, match=f"^{message} .*{FILE}"):
        open_policy(str(folder), **given)
    with pytest.raises(ConfigError, match=rf"^model\.{message} .*{FILE}"):
        GRPOModule(policy="tiny", init_from=str(folder), **given)


def test_another_template_is_refused(folder):
    config = folder / "chat_template.jinja"
    config.write_text(CHATML.replace("'\\n' + message", "'\\n\\n' + message").replace("assistant\n", "assistant\n\n"))
    for opening in (open_policy, lambda name: GRPOModule(init_from=name).configure_model()):
        with pytest.raises(ConfigError, match=f"the chat template in this folder .* trained with .* in {FILE}"):
            opening(str(folder))


def test_missing_primitives_are_refused():
    check_primitives(CONTRACT, ["bm25", "dense", "read"], "x")
    check_primitives(None, [], "x")
    with pytest.raises(ConfigError, match="serves no dense, but the policy was trained to use it"):
        check_primitives(CONTRACT, ["bm25", "read"], "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"language": LANGUAGE_VERSION + 1}, f"'language' is {LANGUAGE_VERSION + 1}; this version knows"),
        ({"agent": "reader"}, "'agent' is 'reader'"),
        ({"prompt_style": "terse"}, "'prompt_style' is 'terse'; this version knows 'compact' or 'documented'"),
        ({"thinking": 1}, "'thinking' must be of type bool, got 1"),
        ({"limits": {"max_turns": 0}}, "'limits' must hold max_turns"),
        ({"more": 1}, "must be an object with the fields"),
    ],
)
def test_what_this_version_does_not_know_is_refused(folder, change, message):
    (folder / FILE).write_text(json.dumps(asdict(CONTRACT) | change))
    with pytest.raises(CheckpointError, match=f"{FILE}: .*{message}"):
        open_policy(str(folder))


def test_a_damaged_contract_is_named(folder):
    (folder / FILE).write_text('{"agent":')
    with pytest.raises(CheckpointError, match=f"{FILE}: cannot be read"):
        open_policy(str(folder))


def test_a_folder_without_one_is_asked_as_before_and_one_line_says_so(folder, capsys):
    (folder / FILE).unlink()
    opened = open_policy(str(folder))
    assert (opened.renderer.style, opened.renderer.thinking, opened.contract) == ("compact", True, None)
    assert f"has no {FILE}: the policy is asked with prompt_style compact and thinking true" in capsys.readouterr().err
    open_policy("tiny")
    assert capsys.readouterr().err == ""


def test_limits_of_training_hold_where_none_are_given(capsys):
    rollout, environment = within_limits(CONTRACT, RolloutConfig(temperature=0.0), EnvironmentConfig())
    assert (rollout.max_turns, rollout.max_new_tokens, rollout.temperature) == (2, 24, 0.0)
    assert environment.limits.printed_tokens == 100
    assert capsys.readouterr().err == ""
    rollout, _ = within_limits(CONTRACT, RolloutConfig(max_turns=5), EnvironmentConfig())
    assert (rollout.max_turns, rollout.max_new_tokens) == (5, 24)
    assert "max_turns is 5; the policy was trained with 2" in capsys.readouterr().err


def test_every_export_of_a_schedule_carries_it(finished_cycle):
    folders = sorted(finished_cycle.glob("*/policy"))
    assert len(folders) == 3
    for folder in folders:
        found = read_contract(folder)
        assert found is not None
        own = {"max_context_tokens": RolloutConfig().max_context_tokens, "printed_tokens": 384}
        assert found.limits == LIMITS | own
        assert replace(found, limits={}) == Contract("compact", True, CONTRACT.template, {}, found.primitives)
    assert "bm25" in read_contract(folders[0]).primitives


def test_rpl_export_writes_it_from_the_checkpoint(tmp_path):
    module = GRPOModule(policy="tiny", thinking=False, rollout=RolloutConfig(max_turns=2, max_new_tokens=24))
    module.configure_model()
    checkpoint = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    torch.save(checkpoint, tmp_path / "last.ckpt")
    exported = export_checkpoint(tmp_path / "last.ckpt", tmp_path / "exported")
    assert read_contract(exported) == module.contract
    assert read_contract(exported).thinking is False
