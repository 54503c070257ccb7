"""What the commands share in parsing: YAML files with `-c`, help from docstrings, positional arguments, plain flags."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from docstring_parser import parse as parse_docstring
from jsonargparse import ActionConfigFile, ActionYesNo, ArgumentParser, set_parsing_settings

# Nested settings explain themselves in `--help` by the texts under their fields.
set_parsing_settings(docstring_parse_attribute_docstrings=True)

Action = Callable[[Sequence[str]], Any]


def make_parser(command: str, function: Callable[..., Any], positional: Sequence[str] = ()) -> ArgumentParser:
    """Builds the parser of one command from a function's signature and docstring.

    Args:
        command: The words after `rpl`.
        function: What the command runs; every parameter is an option and a YAML key, and a boolean parameter that is
            off by default is a plain flag.
        positional: Parameters that are given without a flag, in order; they must be strings.
    """
    docs = parse_docstring(function.__doc__ or "")
    help_ = {p.arg_name: p.description for p in docs.params}
    parser = ArgumentParser(prog=f"rpl {command}", description=docs.short_description)
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="YAML file of options; repeatable, later wins")
    for name in positional:
        parser.add_argument(name, type=str, help=help_.get(name))
    flags = [name for name, p in inspect.signature(function).parameters.items() if p.default is False]
    for name in flags:
        parser.add_argument(f"--{name}", action=ActionYesNo, default=False, help=help_.get(name))
    parser.add_function_arguments(function, skip={*positional, *flags})
    return parser


def call(command: str, function: Callable[..., Any], args: Sequence[str], positional: Sequence[str] = ()) -> Any:
    """Parses `args` and calls `function`; see `make_parser`."""
    parser = make_parser(command, function, positional)
    values = parser.instantiate(parser.parse_args(list(args)))
    return function(**{key: values[key] for key in inspect.signature(function).parameters})


def dispatch(command: str, actions: Mapping[str, tuple[Action, str]], args: Sequence[str]) -> Any:
    """Runs one of a command's actions (`rpl index build …`), or prints what there is.

    Args:
        command: The command's name.
        actions: Action name to what it runs and one line of help.
        args: The command line after the command's name.

    Raises:
        SystemExit: Unknown action (2) or help (0).
    """
    if args and args[0] in actions:
        return actions[args[0]][0](args[1:])
    asked = bool(args) and args[0] in ("-h", "--help")
    out = sys.stdout if asked else sys.stderr
    if args and not asked:
        out.write(f"rpl {command}: error: there is no action {args[0]!r}\n")
    out.write(f"usage: rpl {command} ACTION [options]\n\n")
    out.writelines(f"  {name:<10}{text}\n" for name, (_, text) in actions.items())
    raise SystemExit(0 if asked else 2)
