"""Coverage-guided fuzzing of the parent's reading of worker messages, with atheris: `make fuzz-protocol`.

By hand, in the folder `tests`: `python -m executors.protocol_fuzz [folders] [libFuzzer options]`. An input that fails
is written to the working folder; put it into `protocol_corpus` under a name that says what it is.
"""

import sys

import atheris

with atheris.instrument_imports(include=["rpl.executors", "rpl.core.records", "json"]):
    from executors.protocol_harness import check


def one_input(data: bytes) -> None:
    """Tests one input."""
    check(data)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
