"""Verified repair: a best-first search over mutants of a failed program, judged by execution alone.

Every candidate is executed and verified; what is returned as a repair has passed, and never costs more executions than
the budget. Operators are chosen by where the parent lost its evidence, and nothing is drawn at random: equal questions,
parents and libraries give equal repairs.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields

from rpl.core.errors import ConfigError
from rpl.core.records import Passage, Question, Repair, Trace
from rpl.executors.base import Executor
from rpl.mutation.budget import Budget, timeless
from rpl.mutation.distance import edit_distance
from rpl.mutation.donors import Donors, collect_donors
from rpl.mutation.localise import Failure, localise
from rpl.mutation.registry import Mutant, mutate
from rpl.mutation.scheduling import foreign_words, neighbours
from rpl.mutation.verify import GoldVerifier, Verdict
from rpl.programs.grammar import Program

_DEPTH_STEP = 16
"""How many mutants of a program are tried before the first mutant of one of its mutants that is no better."""
_PROGRESS = 64
"""Head start, in mutants, of a parent that prints all gold over one that prints none; a quarter of it for fetching."""
_CLUTTER = 16
"""Handicap, in mutants, of a parent that fills the context budget: there is little room for what is missing."""

_MAX_LOOKS = 400
"""How many mutants are looked at, at most, for one that may be cheaper than a success."""


@dataclass(frozen=True)
class RepairConfig:
    """Budgets and prices of the search."""

    max_edits: int = 3
    """Most edits between the failed program and its repair."""
    max_executions: int = 60
    """Program executions a question, that of the failed program included."""
    rest_executions: int = 12
    """Executions that may follow the first success in search of a nearer or cheaper one; 0 stops at once."""
    batch_size: int = 8
    """Programs that are executed together. It changes speed, and which candidates fall into the budget."""
    max_printed_tokens: int = 512
    """Context budget that a repair must keep; the one the failed programs had."""
    token_price: float = 0.08
    """What a printed token costs, in units of edit distance, when verified repairs are compared; 0: nearest wins."""
    foreign_price: float = 5.0
    """The same for a word in a string literal that the question does not contain: such queries are hard to learn."""
    minimise: bool = True
    """Whether edits of a success are undone one by one, as long as it stays verified (within `rest_executions`)."""

    def __post_init__(self) -> None:
        for f in fields(self):
            least = 0 if f.name in ("rest_executions", "token_price", "foreign_price", "minimise") else 1
            if getattr(self, f.name) < least:
                raise ConfigError(f"repair.{f.name} must be at least {least}, got {getattr(self, f.name)!r}")


@dataclass(frozen=True)
class _Path:
    """How a program came about."""

    program: Program
    operators: tuple[str, ...] = ()
    edits: tuple[str, ...] = ()

    def then(self, mutant: Mutant) -> _Path:
        return _Path(mutant.program, (*self.operators, mutant.operator), (*self.edits, mutant.edit))


@dataclass(frozen=True)
class _Node:
    """A program that was executed."""

    path: _Path
    trace: Trace
    verdict: Verdict
    failure: Failure
    distance: int
    price: float


def repair(
    question: Question,
    parent: Program,
    executor: Executor,
    verifier: GoldVerifier,
    config: RepairConfig = RepairConfig(),
    siblings: Sequence[Program] = (),
    seed: int = 0,
    *,
    without: Collection[str] = (),
) -> Repair:
    """Looks for a verified program near a failed one.

    Args:
        question: A train question with its gold.
        parent: The failed program.
        executor: Runs the candidates.
        verifier: Decides; the only one to read the gold.
        config: Budgets and prices.
        siblings: Other programs for this question, parts of which may be crossed in.
        seed: Recorded; the search itself draws nothing at random.
        without: Primitives that the library does not offer.

    Returns:
        `verdict` is `already_verified` (the child is the parent), `repaired`, `budget` (the executions ran out),
        `exhausted` (there was nothing left to try) or `no_gold` (nothing to verify against).

    Raises:
        RetrieverError: Retrieval failed during any execution; there is no result then, not even a failed one.
    """
    return _Search(question, parent, executor, verifier, config, siblings, frozenset(without)).run(seed)


class _Search:
    def __init__(
        self,
        question: Question,
        parent: Program,
        executor: Executor,
        verifier: GoldVerifier,
        config: RepairConfig,
        siblings: Sequence[Program],
        without: frozenset[str],
    ) -> None:
        self._question, self._parent, self._config = question, parent, config
        self._executor, self._verifier = executor, verifier
        self._siblings, self._without = tuple(siblings), without
        self._budget = Budget(config.max_executions)
        self._tried: set[str] = set()
        self._unwritable: set[str] = set()
        self._behaviours: set[tuple[frozenset[str], frozenset[str], str]] = set()
        self._passages: dict[str, Passage] = {}
        self._collected: tuple[int, Donors] | None = None
        self._frontier: list[tuple[tuple[float, ...], str, _Node, Iterator[Mutant], Donors]] = []

    def run(self, seed: int) -> Repair:
        self._tried.add(self._parent.source)
        [root] = self._execute([_Path(self._parent)])
        if root.verdict.ok:
            return self._result(root, root, "already_verified", seed)
        if root.verdict.reason == "no_gold":
            return self._result(root, None, "no_gold", seed)
        best = self._search(root)
        if best is not None:
            return self._result(root, best, "repaired", seed)
        return self._result(root, None, "exhausted" if self._budget.left else "budget", seed)

    def _search(self, root: _Node) -> _Node | None:
        self._open(root)
        best: _Node | None = None
        while self._budget.left:
            batch = self._next(min(self._config.batch_size, self._budget.left))
            if not batch:
                break
            nodes = self._execute(batch)
            best = _cheapest([node for node in nodes if node.verdict.ok])
            if best is not None:
                break
            for node in nodes:
                self._open(node)
        return None if best is None else self._improve(best)

    def _improve(self, best: _Node) -> _Node:
        """Spends the rest budget on candidates that may be cheaper than the first success."""
        rest = min(self._config.rest_executions, self._budget.left)
        candidates = self._cheaper(best)
        while rest > 0:
            batch = list(itertools.islice(candidates, min(self._config.batch_size, rest)))
            if not batch:
                break
            rest -= len(batch)
            better = _cheapest([best, *(node for node in self._execute(batch) if node.verdict.ok)])
            assert better is not None
            if better is not best:
                best, candidates = better, self._cheaper(better)
        return best

    def _cheaper(self, best: _Node) -> Iterator[_Path]:
        """Yields untried programs whose price could be below that of `best`, whatever they print."""
        undone = self._undone(best.path) if self._config.minimise else iter(())
        # Near the success stand its own trimmings (fewer passages); in the frontier stand other ways to succeed.
        trimmed = (
            (best.path.then(m) for m in self._neighbours(best, self._donors())) if self._may_grow(best) else iter(())
        )
        looked_at = itertools.islice(_alternate(trimmed, self._popped()), _MAX_LOOKS)
        for path in itertools.chain(undone, looked_at):
            if path.program.source not in self._tried and self._static_price(path.program) < best.price:
                self._tried.add(path.program.source)
                yield path

    def _undone(self, path: _Path) -> Iterator[_Path]:
        """Yields the programs that come of applying only some of a repair's edits, fewest first."""
        steps = list(zip(path.operators, path.edits, strict=True))
        for count in range(1, len(steps)):
            for kept in itertools.combinations(steps, count):
                shorter: _Path | None = _Path(self._parent)
                for step in kept:
                    shorter = self._replay(shorter, step) if shorter is not None else None
                if shorter is not None:
                    yield shorter

    def _replay(self, path: _Path, step: tuple[str, str]) -> _Path | None:
        for mutant in mutate(path.program, self._donors(), (step[0],), without=self._without):
            if mutant.edit == step[1]:
                return path.then(mutant)
        return None

    def _next(self, count: int) -> list[_Path]:
        paths: list[_Path] = []
        for path in self._popped():
            if path.program.source not in self._tried:
                self._tried.add(path.program.source)
                paths.append(path)
                if len(paths) == count:
                    break
        return paths

    def _popped(self) -> Iterator[_Path]:
        """Takes mutants from the frontier, the most promising first."""
        while self._frontier:
            key, source, node, mutants, known = heapq.heappop(self._frontier)
            donors = self._donors()
            if donors != known:  # later executions have fetched passages that offer more edits of this program
                mutants = self._neighbours(node, donors)
            mutant = next((m for m in mutants if m.program.source not in self._tried), None)
            if mutant is not None:
                heapq.heappush(self._frontier, ((key[0] + 1, *key[1:]), source, node, mutants, donors))
                yield node.path.then(mutant)

    def _open(self, node: _Node) -> None:
        """Puts a failed program into the frontier; parents that hold more gold, and nearer ones, come first."""
        # A program that fetches and prints what another one did is that one, in more words.
        behaviour = (frozenset(node.trace.printed_ids), frozenset(node.trace.fetched_ids), node.failure.kind)
        if self._may_grow(node) and behaviour not in self._behaviours:
            self._behaviours.add(behaviour)
            progress = node.failure.printed + node.failure.fetched / 4
            clutter = node.trace.printed_tokens / self._config.max_printed_tokens
            turn = _DEPTH_STEP * len(node.path.edits) - _PROGRESS * progress + _CLUTTER * clutter
            key = (turn, -node.verdict.coverage, node.distance, node.trace.printed_tokens)
            donors = self._donors()
            entry = (key, node.path.program.source, node, self._neighbours(node, donors), donors)
            heapq.heappush(self._frontier, entry)

    def _may_grow(self, node: _Node) -> bool:
        return len(node.path.edits) < self._config.max_edits

    def _neighbours(self, node: _Node, donors: Donors) -> Iterator[Mutant]:
        return neighbours(node.path.program, node.failure, donors, self._without, self._unwritable)

    def _donors(self) -> Donors:
        """Donors from the question and from all that was fetched for it so far; never from the gold."""
        if self._collected is None or self._collected[0] != len(self._passages):
            donors = collect_donors(self._question.question, list(self._passages.values()), self._siblings)
            self._collected = (len(self._passages), donors)
        return self._collected[1]

    def _execute(self, paths: Sequence[_Path]) -> list[_Node]:
        traces = self._executor.run_many([(path.program.source, self._question.question) for path in paths])
        for trace in traces:
            self._budget.spend(trace)
        return [self._judged(path, trace) for path, trace in zip(paths, traces, strict=True)]

    def _judged(self, path: _Path, trace: Trace) -> _Node:
        verdict = self._verifier.verify(self._question, trace, self._config.max_printed_tokens)
        for id_ in trace.fetched_ids:
            if id_ not in self._passages:
                self._passages[id_] = self._verifier.lookup(id_)
        return _Node(
            path,
            trace,
            verdict,
            localise(self._question, trace),
            edit_distance(self._parent.source, path.program.source),
            self._static_price(path.program) + self._config.token_price * trace.printed_tokens,
        )

    def _static_price(self, program: Program) -> float:
        foreign = self._config.foreign_price * foreign_words(program, self._question.question)
        return edit_distance(self._parent.source, program.source) + foreign

    def _result(self, root: _Node, child: _Node | None, verdict: str, seed: int) -> Repair:
        return Repair(
            question_id=self._question.id,
            parent=self._parent.source,
            child=None if child is None else child.path.program.source,
            operators=() if child is None else child.path.operators,
            edits=() if child is None else child.path.edits,
            edit_distance=0 if child is None else child.distance,
            executions=self._budget.executions,
            uncached_calls=self._budget.uncached_calls,
            unwritable=len(self._unwritable),
            verdict=verdict,
            failure=root.failure.kind,
            trace=None if child is None else timeless(child.trace),
            seed=seed,
        )


def _cheapest(nodes: Sequence[_Node]) -> _Node | None:
    return min(nodes, key=lambda node: (node.price, node.distance, node.path.program.source), default=None)


def _alternate(first: Iterator[_Path], second: Iterator[_Path]) -> Iterator[_Path]:
    for pair in itertools.zip_longest(first, second):
        yield from (path for path in pair if path is not None)
