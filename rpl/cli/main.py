"""The `rpl` command: LightningCLI for fit, validate, test and predict, and one small module a command for the rest."""

from __future__ import annotations

import errno
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import Any

from rpl import __version__
from rpl.core import signals
from rpl.core.errors import RPLError
from rpl.core.machine import wait_passively
from rpl.core.progress import say
from rpl.core.terminal import visible

LIGHTNING_COMMANDS = {
    "fit": "train a policy: GRPO (configs/rl.yaml) or SFT on repairs (configs/sft.yaml)",
    "validate": "evaluate a policy on the validation questions",
    "test": "evaluate a policy on the test questions",
    "predict": "write a policy's rollouts without scoring them",
}
COMMANDS = {
    "cycle": "run a whole schedule of phases (RL, harvest, SFT, RL, …, eval); resumable",
    "harvest": "find verified repairs of a policy's failed programs",
    "ask": "answer one question with a policy and show program, evidence and answer",
    "exec": "run one program in the sandbox and show its trace",
    "data": "fetch published data, write the embedded Atlas data set, or check your own files",
    "index": "build, fetch, check or query the index of a corpus",
    "serve-retrieval": "serve a corpus over HTTP to any number of runs",
    "export": "write the policy of a training checkpoint as a model folder",
    "report": "write the report of a run folder again",
    "doctor": "say what works on this machine and what to do about the rest",
}

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What the system says when a disk, or the user's part of it, is full."""


def _usage() -> str:
    width = max(map(len, LIGHTNING_COMMANDS | COMMANDS)) + 2
    lines = ["usage: rpl COMMAND [options]", "", "Train a language model to write its own retrieval programs.", ""]
    lines += [f"  {name:<{width}}{text}" for name, text in (LIGHTNING_COMMANDS | COMMANDS).items()]
    lines += ["", "`rpl COMMAND --help` shows the options of one command. `rpl --version` prints the version."]
    return "\n".join(lines) + "\n"


def run(args: Sequence[str]) -> Any:
    """Runs one command and returns what it returns; errors propagate.

    Args:
        args: The command line without the program name.

    Raises:
        RPLError: The command failed for a reason that RPL can name.
        Stopped: A signal ended it.
        SystemExit: Usage errors (status 2) and `--help` (status 0).
    """
    if not args or args[0] in ("-h", "--help", "help"):
        sys.stdout.write(_usage())
        raise SystemExit(0 if args else 2)
    if args[0] in ("-V", "--version"):
        sys.stdout.write(f"rpl {__version__}\n")
        raise SystemExit(0)
    # Huge pages for large tensors halve the cost of first touching the key-value cache; torch reads this at import.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    wait_passively()
    command = args[0]
    if command in LIGHTNING_COMMANDS:
        from rpl.training.lightning_cli import RPLCLI

        return RPLCLI(list(args))
    if command in COMMANDS:
        return importlib.import_module(f"rpl.cli.commands.{command.replace('-', '_')}").run(list(args[1:]))
    allowed = ", ".join(LIGHTNING_COMMANDS | COMMANDS)
    sys.stderr.write(f"rpl: error: there is no command {command!r}; the commands are {allowed}\n")
    raise SystemExit(2)


def _advice(args: Sequence[str]) -> str:
    """How a command that a signal ended is gone on with."""
    again = list(args)
    if args[:1] == ["fit"]:
        if (checkpoint := signals.newest_checkpoint()) is None:
            return f"nothing had been saved; start again with: rpl {shlex.join(again)}"
        while "--ckpt_path" in again:
            place = again.index("--ckpt_path")
            again[place : place + 2] = []
        again = [x for x in again if not x.startswith("--ckpt_path=")] + ["--ckpt_path", checkpoint]
        return f"go on from {checkpoint} with: rpl {shlex.join(again)}"
    return f"go on with the same command: rpl {shlex.join(again)}" if args[:1] in (["cycle"], ["harvest"]) else ""


def main(args: Sequence[str] | None = None) -> Any:
    """The console entry point: like `run`, but errors and signals become one line on standard error.

    Exit status 1 is that of an `RPLError`; 143 (SIGTERM) and 130 (Ctrl-C) say that a signal ended the command.
    """
    args = list(sys.argv[1:] if args is None else args)
    if args[:1] == ["serve-retrieval"]:  # the server owns its signals
        return _run_with_errors(args)
    with signals.owned(lambda: _advice(args)):
        try:
            return _run_with_errors(args)
        except (signals.Stopped, KeyboardInterrupt, Exception) as error:
            # What fails while a process is being stopped is part of the stop: connections of other processes break.
            number = signals.requested() or (signal.SIGINT if isinstance(error, KeyboardInterrupt) else None)
            if number is None:
                raise
            signals.end_children()
            if not signals.is_quiet():
                say(signals.describe(number))
            sys.stdout.flush()
            raise SystemExit(signals.status(number)) from None


def _run_with_errors(args: Sequence[str]) -> Any:
    try:
        return run(args)
    except RPLError as error:
        if signals.requested() is not None:
            raise
        sys.stderr.write(f"rpl: {type(error).__name__}: {visible(str(error))}\n")
        raise SystemExit(1) from error
    except OSError as error:
        if signals.requested() is not None or error.errno not in NO_ROOM:
            raise
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"rpl: {where}cannot be written: {error.strerror}\n")
        raise SystemExit(1) from error


def entry_point() -> None:
    """What the installed `rpl` script calls: `main` without a return value, so that the exit status is 0."""
    main()
