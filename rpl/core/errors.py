"""Errors, named after the boundary they cross and after who has to act.

A failed *program* is data: it is recorded on the trace as a `TraceError` and shown to the policy. A failed *retriever*
is not: `RetrieverError` voids the rollout and never becomes a reward.
"""


class RPLError(Exception):
    """Base of every error that RPL raises on purpose."""


class ConfigError(RPLError):
    """A setting is wrong; the message names the YAML key, what was received and what is allowed."""


class DataError(RPLError):
    """A data file is wrong; the message names file, line and field."""


class CheckpointError(RPLError):
    """A checkpoint, model folder or run folder is missing, damaged or belongs to another run."""


class MissingDependencyError(RPLError):
    """An optional package is not installed; the message holds the install line."""


class RetrieverError(RPLError):
    """Retrieval itself failed (index, encoder, server): an infrastructure fault, never a property of a program."""


class DownloadError(RPLError):
    """A file could not be fetched: the network, server or disk failed, or what came is not what was promised."""


class ExecutorError(RPLError):
    """The sandbox itself failed (a worker cannot be started or kept alive): an infrastructure fault."""


class SamplerError(RPLError):
    """Sampling itself failed (engine, server, or weights on their way to it): an infrastructure fault."""


class ProgramError(RPLError):
    """A program is at fault.

    Attributes:
        kind: The stable name of the fault, as it stands on traces (`syntax`, `forbidden`, `runtime`, …).
        line: The 1-based line in the program, where known.
    """

    kind = "program"

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class ProgramSyntaxError(ProgramError):
    """The text does not parse as Python."""

    kind = "syntax"


class ForbiddenConstruct(ProgramError):  # noqa: N818 - the name says what was found
    """The text is Python but outside the program language."""

    kind = "forbidden"


class PrimitiveError(ProgramError):
    """A primitive was called with bad arguments (unknown passage id, k out of range, empty query)."""

    kind = "primitive"


class BudgetExceeded(ProgramError):  # noqa: N818 - the name says what happened
    """A budget of the program ran out; `kind` names which one."""

    kind = "budget"

    def __init__(self, budget: str, message: str, line: int | None = None) -> None:
        super().__init__(message, line)
        self.kind = f"budget_{budget}"


class ProgramTimeout(ProgramError):  # noqa: N818 - the name says what happened
    """The program ran past its wall-clock limit and its worker was killed."""

    kind = "timeout"


class WorkerDied(ProgramError):  # noqa: N818 - the name says what happened
    """The program brought its worker process down (memory limit, hard crash)."""

    kind = "worker_died"
