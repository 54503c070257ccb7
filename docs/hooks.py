"""Fills the generated tables of the documentation, and writes its formulas as MathML, which needs no scripts.

`<!-- table: NAME -->` in a page becomes what the code says now; `TABLES` names what there is. MkDocs calls the `on_`
functions.
"""

from __future__ import annotations

import html
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from jsonargparse import ArgumentParser, Namespace, set_parsing_settings
from latex2mathml.converter import convert

set_parsing_settings(docstring_parse_attribute_docstrings=True)

MARK = re.compile(r"<!-- table: (\w+) -->")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)

ROOTS: dict[str, tuple[str, str, str]] = {
    "Reinforcement learning: `model` with `configs/rl.yaml`": ("model", "rpl.modules.grpo", "GRPOModule"),
    "Supervised fine-tuning: `model` with `configs/sft.yaml`": ("model", "rpl.modules.sft", "SFTModule"),
    "Questions: `data` with `configs/rl.yaml` and `configs/eval.yaml`": ("data", "rpl.datamodules.qa", "QADataModule"),
    "Repairs: `data` with `configs/sft.yaml`": ("data", "rpl.datamodules.repaired", "RepairedDataModule"),
    "The built-in sampler": ("model.sampler.init_args", "rpl.sampling.hf.sampler", "HFSampler"),
    "vLLM": ("model.sampler.init_args", "rpl.sampling.vllm.sampler", "VLLMSampler"),
    "The way out of a collapse": ("CollapseGuard", "rpl.training.callbacks", "CollapseGuard"),
    "Checkpoints by time": ("TimedCheckpoint", "rpl.training.callbacks", "TimedCheckpoint"),
    "The exported policy": ("ExportPolicy", "rpl.training.callbacks", "ExportPolicy"),
    "A schedule: `rpl cycle`": ("", "rpl.schedule.run", "cycle"),
    "A harvest: `rpl harvest`": ("", "rpl.cli.commands.harvest", "harvest_failures"),
    "A question: `rpl ask`": ("", "rpl.cli.commands.ask", "ask"),
}
"""Heading -> key prefix, module and name of what YAML and flags configure. A key is explained where it comes first."""


def escaped(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def options(thing: Callable[..., Any]) -> Iterator[tuple[str, str, str, str]]:
    """Key, type, default and meaning of each option, as the command line and YAML take it."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(thing) if inspect.isclass(thing) else parser.add_function_arguments(thing)
    for action in parser._actions:
        if action.dest in ("help", "config") or action.dest.endswith(".help"):
            continue
        kind = getattr(action, "_typehint", None) or action.type
        yield action.dest, type_name(kind), shown(action.default), action.help or ""


def type_name(annotation: Any) -> str:
    """A type as users write it: no module paths."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


def shown(value: Any) -> str:
    """A default as YAML writes it; an empty cell where there is none."""
    if callable(value):
        return f"`{getattr(value, '__name__', type(value).__name__)}`"
    if isinstance(value, Namespace):
        value = value.as_dict()
    return f"`{json.dumps(value, default=str, ensure_ascii=False)}`"


def configuration() -> str:
    """Every setting that YAML and flags take, with type, default and meaning."""
    lines: list[str] = []
    explained: set[tuple[str, str]] = set()
    for heading, (prefix, module, name) in ROOTS.items():
        lines += ["", f"## {heading}", "", "| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        for key, kind, default, meaning in options(getattr(importlib.import_module(module), name)):
            if (key, meaning) in explained:
                continue
            explained.add((key, meaning))
            full = f"{prefix}.{key}" if prefix else key
            lines.append(f"| `{full}` | {escaped(kind)} | {escaped(default)} | {escaped(meaning)} |")
    return "\n".join(lines)


def metrics() -> str:
    """Every name that a run logs."""
    from rpl.training.metric_names import LOGGED

    rows = [f"| `{name}` | {escaped(meaning)} |" for name, meaning in LOGGED.items()]
    return "\n".join(["| name | meaning |", "| --- | --- |", *rows])


def commands() -> str:
    """The commands of `rpl`."""
    from rpl.cli.main import COMMANDS, LIGHTNING_COMMANDS

    rows = [f"| `rpl {name}` | {escaped(text)} |" for name, text in (LIGHTNING_COMMANDS | COMMANDS).items()]
    return "\n".join(["| command | what it does |", "| --- | --- |", *rows])


EXAMPLES = (
    "hits = bm25(question, k=3)\nfor p in hits:\n    print(p)\n",
    "for p in bm25('Owl', k=3):\n    if 'bird' in p.text:\n        print(p)\nx = dense(question, k=5)\n",
    "for p in rerank(question, fuse(bm25('Owl', k=5), dense(question, k=5)), k=3):\n    print(p)\n",
    "for p in bm25('Owl', k=2):\n    for q in links(p):\n        print(q)\n",
    "for i in range(3):\n    for p in bm25(question, k=i + 1):\n        print(p)\n",
    "for p in fuse(bm25('Owl food', k=5), dense('Owl food', k=5)):\n    print(p)\n",
)
"""Programs on which the operators are shown, tried in this order."""


def operators() -> str:
    """Each mutation operator with a program before and after."""
    from rpl.mutation.donors import Donors
    from rpl.mutation.registry import OPERATORS, mutate
    from rpl.programs.grammar import parse

    sibling = parse("for p in dense('Owl food', k=4):\n    print(p.title)\n")
    donors = Donors(
        queries=("Owl food", "mice"),
        constants=("mice",),
        words=("food", "night"),
        names=("Owl", "Fox"),
        heads=("Food of",),
        siblings=(sibling,),
    )
    lines: list[str] = []
    for name in OPERATORS:
        for text in EXAMPLES:
            program = parse(text)
            mutant = next(mutate(program, donors, [name]), None)
            if mutant is not None:
                before, after = program.source.rstrip(), mutant.program.source.rstrip()
                lines += ["", f"## `{name}`", "", f"{escaped(mutant.edit)}", ""]
                lines += ["```python", before, "```", "", "becomes", "", "```python", after, "```"]
                break
        else:
            raise LookupError(f"no example program shows the operator {name}; add one to EXAMPLES")
    return "\n".join(lines)


def primitives() -> str:
    """The primitives as programs call them, with what the policy is told of each."""
    from rpl.programs.primitives import PRIMITIVES

    rows = [f"| `{name}{primitive.signature}` | {escaped(primitive.note)} |" for name, primitive in PRIMITIVES.items()]
    return "\n".join(["| call | what it gives |", "| --- | --- |", *rows])


def builtins() -> str:
    """The builtins, and the methods of each type."""
    from rpl.programs.tables import ATTRIBUTES, BUILTINS

    rows = [f"| functions | {' '.join(f'`{name}`' for name in sorted(BUILTINS))} |"]
    rows += [f"| of `{kind}` | {' '.join(f'`.{n}`' for n in sorted(names))} |" for kind, names in ATTRIBUTES.items()]
    return "\n".join(["| | names |", "| --- | --- |", *rows])


def limits() -> str:
    """The budgets of one program."""
    from rpl.executors.base import ExecutionLimits

    rows = [f"| `{key}` | {default} | {escaped(meaning)} |" for key, _, default, meaning in options(ExecutionLimits)]
    return "\n".join(["| `environment.limits.` | default | what it bounds |", "| --- | --- | --- |", *rows])


def budget() -> str:
    """What of a schedule is left at each scale of its budget."""
    from rpl.schedule.budget import FRACTIONS, LEAST, SCALES

    names = {
        "eval": "evaluation questions",
        "rl": "RL iterations",
        "harvest": "harvested questions",
        "sft": "SFT steps",
    }
    marks = SCALES[::-1]
    lines = [f"| scale | {' | '.join(f'{mark:g}' for mark in marks)} | at least |", "| --- |" + " ---: |" * 6]
    for kind, shares in FRACTIONS.items():
        cells = [f"{share:.0%}" for share in shares[::-1]]
        lines.append(f"| {names[kind]} | {' | '.join(cells)} | {LEAST[kind]} |")
    return "\n".join(lines)


def trainer_options() -> str:
    """Options and callbacks of Lightning that RPL refuses, with what to use."""
    from rpl.training.options import CALLBACKS, HONOURED

    rows = [
        f"| `trainer.{name}` | {' or '.join(map(shown, values))} | {escaped(text)} |"
        for name, (values, text) in HONOURED.items()
    ]
    rows += [f"| callback `{name}` | not | {escaped(text)} |" for name, text in CALLBACKS.items()]
    return "\n".join(["| option | allowed | otherwise |", "| --- | --- | --- |", *rows])


def layers() -> str:
    """The layers around a worker process."""
    from rpl.executors.isolation.layers import ADVICE, LAYERS

    rows = [f"| `{name}` | {escaped(text)} | {escaped(ADVICE.get(name, ''))} |" for name, text in LAYERS.items()]
    return "\n".join(["| layer | what it does | where it does not hold |", "| --- | --- | --- |", *rows])


TABLES: dict[str, Callable[[], str]] = {
    "layers": layers,
    "budget": budget,
    "trainer_options": trainer_options,
    "configuration": configuration,
    "metrics": metrics,
    "commands": commands,
    "operators": operators,
    "primitives": primitives,
    "builtins": builtins,
    "limits": limits,
}


def filled(markdown: str) -> str:
    """A page with its tables in place.

    Raises:
        KeyError: The page asks for a table that there is not.
    """
    return MARK.sub(lambda match: TABLES[match[1]](), markdown)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    return filled(markdown)


def on_page_content(page: str, /, **_: Any) -> str:
    """Called by MkDocs for the HTML of each page."""
    return FORMULA.sub(
        lambda match: convert(html.unescape(match[3]).strip(), display="block" if match[2] == "[" else "inline"), page
    )
