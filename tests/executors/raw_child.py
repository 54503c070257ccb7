"""A process that holds what the Monty child holds, and runs any Python: as if Monty itself had been taken over."""

from raw_worker import run_raw

from rpl.executors.backend import Backend
from rpl.executors.isolation.hardening import put_up
from rpl.executors.monty.runner import binary
from rpl.executors.monty.worker import handed_on
from rpl.executors.runtime.worker import serve

RAW_CHILD = Backend(
    "raw child", "raw_child", ("raw_child", "RestrictedPython", "pydantic_monty", "typing_extensions"), ""
)


def give_up(start):
    return {"resource_limits": "the worker sets them from outside", **put_up(handed_on(binary()))}


def main() -> None:
    """Runs raw jobs in a process with the layers of the child."""
    serve(run_raw, give_up=give_up)
