"""Records digests of the inputs of a run and of each phase; a phase is done again when its inputs have changed.

A run folder has `identity.json`, the digests of what all phases share. Each phase folder has `inputs.json`, written
when the phase begins, and the digests of what it left in its `done.json`. So a phase whose folder was deleted is done
again, and after it those that were made from something else than it leaves now; what was changed by hand is refused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rpl.core.contents import file_digest
from rpl.core.errors import CheckpointError
from rpl.core.files import write_json
from rpl.core.progress import say
from rpl.policy.identity import folder_identity
from rpl.policy.loading import resolve_model

FILE = "inputs.json"


def check_run(run_dir: Path, identity: Mapping[str, Any]) -> None:
    """Records what all phases of a run share, or compares it with what was recorded.

    Raises:
        CheckpointError: Something differs, or the run was begun by a version that recorded nothing.
    """
    path = run_dir / "identity.json"
    ours = json.loads(json.dumps(identity))
    if not path.exists():
        if any(run_dir.glob("[0-9][0-9]-*/*")):
            raise CheckpointError(
                f"{run_dir}: was begun by a version that recorded no digests (there is no {path.name}), so nobody can "
                "tell whether its model, corpus and questions are still the same; give another run_dir or delete it"
            )
        write_json(path, ours)
        return
    theirs = json.loads(path.read_text(encoding="utf-8"))
    if theirs != ours:
        raise CheckpointError(
            f"{run_dir}: was begun with other contents under the same names ({_difference(theirs, ours)}); put back "
            "what was there, give another run_dir, or delete this one"
        )


def phase_inputs(policies: Mapping[str, str | Path], repairs: Sequence[str | Path]) -> dict[str, Any]:
    """Returns the digests of what a phase begins with.

    Args:
        policies: Model folders or names, by what they are to the phase.
        repairs: Files of repairs that it trains on.
    """
    digests: dict[str, Any] = {
        f"{role}.{key}": value
        for role, name in policies.items()
        for key, value in folder_identity(resolve_model(str(name))).items()
    }
    return digests | ({"repairs": [file_digest(Path(path)) for path in repairs]} if repairs else {})


def phase_outputs(folder: Path) -> dict[str, Any]:
    """Returns the digests of what a phase left for later ones: its policy or its repairs."""
    policy, repairs = folder / "policy", folder / "repairs.jsonl"
    found = {f"policy.{key}": v for key, v in folder_identity(policy).items()} if policy.is_dir() else {}
    return found | ({"repairs": file_digest(repairs)} if repairs.is_file() else {})


def check_outputs(folder: Path, outcome: Mapping[str, Any]) -> None:
    """Compares what a finished phase left with what is there now.

    Raises:
        CheckpointError: It was changed, or taken away.
    """
    theirs, ours = outcome.get("outputs", {}), phase_outputs(folder)
    if theirs != ours:
        raise CheckpointError(
            f"{folder}: what this phase left was changed after it had ended ({_difference(theirs, ours)}); put it "
            "back, or delete the folder to run the phase again"
        )


def begin(folder: Path, inputs: Mapping[str, Any]) -> bool:
    """Prepares the folder of a phase: what was made from other inputs goes, and the inputs are recorded.

    Returns:
        Whether what is in the folder was made from these inputs, so that the phase may be skipped or continued.

    Raises:
        CheckpointError: The folder holds something without a record of its inputs.
    """
    path = folder / FILE
    theirs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if theirs == inputs:
        return True
    if theirs is None and any(folder.iterdir()):
        raise CheckpointError(f"{folder}: does not say what it was made from (there is no {FILE}); delete the folder")
    if theirs is not None:
        say(f"{folder.name} is done again, as it was made from something else ({_difference(theirs, inputs)})")
    for item in _stale(folder, theirs or {}, inputs):
        shutil.rmtree(item) if item.is_dir() else item.unlink()
    write_json(path, dict(inputs))
    return False


def _stale(folder: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Path]:
    """Returns what was made from other inputs: of an evaluation, the records of the policies that changed."""
    changed = {key for key in {*theirs, *ours} if theirs.get(key) != ours.get(key)}
    policies = {key.removeprefix("after ").rpartition(".")[0] for key in changed if key.startswith("after ")}
    if not policies:
        return list(folder.iterdir())
    records = [path for path in folder.rglob("*.jsonl") if any(_is_of(path, policy) for policy in policies)]
    return [*records, *folder.glob("done.json")]


def _is_of(records: Path, policy: str) -> bool:
    kind, _, rest = records.stem.partition("-")
    return rest == policy or (kind == "fixed" and rest.partition("-")[2] == policy)


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    wrong = [key for key in dict.fromkeys((*ours, *theirs)) if theirs.get(key) != ours.get(key)]
    return ", ".join(f"{key}: {theirs.get(key)!r} there, {ours.get(key)!r} here" for key in wrong)
