"""What the policy is told: the user message of each style."""

from __future__ import annotations

from typing import Literal

from rpl.programs.grammar import BUILTINS, PRIMITIVES
from rpl.retrieval.base import MAX_K

Style = Literal["compact", "documented"]

COMPACT = "Question: {question}\nWrite a search program, read its result, then answer."

DIRECT = "Question: {question}\nReply with the short answer only."

EXAMPLE = (
    "What is the currency of the country in which Lyon lies?",
    "for city in bm25('Lyon', k=1):\n    print(city)\n    for page in links(city, k=2):\n        print(page)",
    "[p7] Lyon: Lyon is a city in France.\n[p3] France: The currency of France is the euro.",
    "euro",
)
"""Question, program, observation and answer of the worked example."""

_DOCUMENTED = """\
Answer the question from what a search program finds. You write the program, its printed output comes back, and then \
you either write another program or answer.

To search, write
<program>
CODE
</program>
and stop. What the code prints comes back between <result> and </result>; never write these two tags yourself. When \
you know the answer, write it as <answer>TEXT</answer>: as short as possible, no sentence.
{thinking}

CODE is a small subset of Python: assignments, if, for, while, def, lambda, comprehensions, f-strings, slices. No \
imports, classes, try or with. Each program starts afresh: nothing is remembered but what was printed. The variable \
question holds the question. Builtins: {builtins}.

Search functions (k is at most {max_k}):
{primitives}
A passage p has p.id, p.title, p.text, p.score and p.rank. print(p) shows it as "[id] title: text". Only what you \
print can be read, and space is short: print few passages, the ones that matter.

Example
Question: {example_question}
<program>
{example_program}
</program>
<result>
{example_observation}
</result>
<answer>{example_answer}</answer>

Question: {question}"""


def user_message(style: Style, thinking: bool) -> str:
    """Returns the user message with `{question}` left open.

    Args:
        style: `compact` or `documented`.
        thinking: Whether text before a tag is allowed; only the documented message speaks of it.
    """
    if style == "compact":
        return COMPACT
    question, program, observation, answer = EXAMPLE
    return _DOCUMENTED.format(
        thinking="You may think in plain text before a tag." if thinking else "Write nothing outside these tags.",
        builtins=" ".join(sorted(BUILTINS)),
        max_k=MAX_K,
        primitives="\n".join(f"{name}{p.signature}: {p.note}" for name, p in PRIMITIVES.items()),
        example_question=question,
        example_program=program,
        example_observation=observation,
        example_answer=answer,
        question="{question}",
    )
