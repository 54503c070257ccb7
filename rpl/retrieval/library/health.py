"""Health of an open library: before every run, while it goes on, and for `rpl doctor`.

A broken backend must never train or score a policy. Everything is asked through `Library.ask`, the way that programs'
calls take, so that the checks hold for a library in this process and for one on a server alike.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rpl.core.errors import ConfigError, RetrieverError
from rpl.core.progress import say
from rpl.core.records import Passage
from rpl.core.units import count_text
from rpl.programs.primitives import FULL_TEXT
from rpl.retrieval.canary import CanaryReport, canary_query, probe_passages
from rpl.retrieval.library.library import Library

ATTEMPTS = 3
"""How often canary queries are sent before they count as failed: one lost packet voids no iteration."""

BACKOFF_S = 0.2
"""Pause before the second attempt; it doubles with each further one."""

Check = Callable[[Library], tuple[bool, str]]

_RERANK_LISTS = 4
_RERANK_LENGTH = 5


@dataclass(frozen=True)
class HealthConfig:
    """What a run does about retrieval that may break."""

    canary_every_s: float = 60.0
    """Seconds between canary queries while programs run. They are sent once more before rollouts are used."""
    canary_s: float = 60.0
    """Seconds within which canary queries, or the checks before a run, must be answered."""
    wait_s: float = 300.0
    """Seconds that a run pauses for retrieval to come back. After that its rollouts are void, which stops it."""

    def __post_init__(self) -> None:
        for name in ("canary_every_s", "canary_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"environment.health.{name} must be positive, got {getattr(self, name)}")
        if not self.wait_s >= 0:
            raise ConfigError(f"environment.health.wait_s must be at least 0, got {self.wait_s}")


@dataclass(frozen=True, slots=True)
class HealthResult:
    """The outcome of one check."""

    name: str
    ok: bool
    detail: str
    """What was found, in one line."""
    seconds: float


def check(library: Library) -> list[HealthResult]:
    """Asks every primitive of a library for what it must find; never raises for a backend that fails."""
    checks: dict[str, Check] = {name: partial(_search, name) for name in FULL_TEXT}
    checks |= {"rerank": _rerank, "read": _read, "links": _links}
    offered = {"corpus": _corpus} | {name: checks[name] for name in checks if name in library.primitives}
    return [_run(name, library, function) for name, function in offered.items()]


def require_healthy(library: Library) -> None:
    """Stops a run whose retrieval does not work.

    Raises:
        RetrieverError: A check failed; the message names all that did.
    """
    failed = [result for result in check(library) if not result.ok]
    if failed:
        raise RetrieverError("; ".join(f"{result.name}: {result.detail}" for result in failed))


class HealthWatch:
    """Keeps an eye on a library while a run uses it.

    Args:
        library: What the run asks.
        config: How often, and how long to wait.
    """

    def __init__(self, library: Library, config: HealthConfig = HealthConfig()) -> None:
        self.library, self.config = library, config
        self._canaries: list[Passage] = []
        self._searches = tuple(name for name in FULL_TEXT if name in library.primitives)
        self._last = -float("inf")
        self._ready = False

    def preflight(self) -> None:
        """Checks everything once, before the first program runs.

        Raises:
            RetrieverError: A check failed.
        """
        if self._ready:
            return
        self._within(lambda: require_healthy(self.library), "the checks before the run")
        self._canaries = self.library.canaries()
        self._last, self._ready = time.monotonic(), True

    @property
    def due(self) -> bool:
        """Whether the latest canary queries are older than `canary_every_s`."""
        return time.monotonic() - self._last >= self.config.canary_every_s

    def verify(self) -> None:
        """Sends canary queries to every search.

        Raises:
            RetrieverError: A search failed, or does not find what it must.
        """
        self.preflight()
        for attempt in range(ATTEMPTS):
            try:
                self._within(self._probe, "canary queries")
                break
            except RetrieverError:
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(BACKOFF_S * 2**attempt)
        self._last = time.monotonic()

    def wait(self) -> None:
        """Pauses until canary queries are answered again; says so on standard error.

        Raises:
            RetrieverError: They were not, within `wait_s`; the message has the cause.
        """
        began = time.monotonic()
        pause, paused = 1.0, False
        while True:
            try:
                self.verify()
            except RetrieverError as error:
                waited = time.monotonic() - began
                if waited >= self.config.wait_s:
                    raise RetrieverError(f"retrieval did not come back within {waited:.0f} s: {error}") from error
                if not paused:
                    say(f"retrieval does not work, the run pauses for at most {self.config.wait_s:g} s: {error}")
                paused = True
                time.sleep(min(pause, self.config.wait_s - waited))
                pause = min(2 * pause, 15.0)
            else:
                if paused:
                    say(f"retrieval works again after {time.monotonic() - began:.0f} s; the run goes on")
                return

    def _within(self, ask: Callable[[], None], what: str) -> None:
        """Asks on a thread of its own, which is left behind where it hangs: the run must not hang with it."""
        errors: list[Exception] = []

        def work() -> None:
            try:
                ask()
            except Exception as error:  # raised again in the thread that waits
                errors.append(error)

        thread = threading.Thread(target=work, name="rpl-canary", daemon=True)
        thread.start()
        thread.join(self.config.canary_s)
        if thread.is_alive():
            raise RetrieverError(f"{what} were not answered within {self.config.canary_s:g} s")
        if errors:
            raise errors[0]

    def _probe(self) -> None:
        for name in self._searches:
            report = _report(self.library, name, self._canaries)
            if not report.ok:
                raise RetrieverError(f"{name} fails its canary queries: {report}")


def _run(name: str, library: Library, function: Check) -> HealthResult:
    started = time.perf_counter()
    try:
        ok, detail = function(library)
    except Exception as error:  # a health check reports whatever a backend raises
        ok, detail = False, f"{type(error).__name__}: {error}"
    return HealthResult(name, ok, detail, time.perf_counter() - started)


def _report(library: Library, name: str, canaries: Sequence[Passage]) -> CanaryReport:
    def search(queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        return library.ask_many([(name, {"query": query, "k": k}) for query in queries])

    return probe_passages(search, canaries)


def _corpus(library: Library) -> tuple[bool, str]:
    size = "unknown number of passages" if library.size is None else count_text(library.size, "passage")
    canaries = library.canaries()
    untitled = sum(not passage.title for passage in canaries)
    note = f", {untitled} of {len(canaries)} sampled without a title (no links lead to them)" if untitled else ""
    return bool(canaries), f"{size}, fingerprint {library.fingerprint}{note}"


def _search(name: str, library: Library) -> tuple[bool, str]:
    report = _report(library, name, library.canaries())
    return report.ok, str(report)


def _rerank(library: Library) -> tuple[bool, str]:
    """A passage's own text as the query must lift that passage to the top of a short list, most of the time."""
    canaries = library.canaries()
    lists = min(_RERANK_LISTS, len(canaries))
    first = 0
    for number in range(lists):
        passages = [canaries[(number + i) % len(canaries)] for i in range(min(_RERANK_LENGTH, len(canaries)))]
        ids = [passage.id for passage in reversed(passages)]
        best = library.ask("rerank", {"query": canary_query(passages[0]), "passages": ids, "k": None})[0]
        first += (best.title, best.text) == (passages[0].title, passages[0].text)
    return first * 2 >= lists, f"{first} of {lists} passages ranked first for their own text"


def _read(library: Library) -> tuple[bool, str]:
    canaries = library.canaries()
    found = library.ask_many([("read", {"passage_id": passage.id}) for passage in canaries])
    same = sum(
        len(read) == 1 and (read[0].id, read[0].title, read[0].text) == (wanted.id, wanted.title, wanted.text)
        for wanted, read in zip(canaries, found, strict=True)
    )
    return same == len(canaries), f"{same} of {len(canaries)} passages read by their id"


def _links(library: Library) -> tuple[bool, str]:
    canaries = library.canaries()
    found = library.ask_many([("links", {"passage": passage.id, "k": 1}) for passage in canaries])
    return True, f"{sum(map(bool, found))} of {len(canaries)} sampled passages mention the title of another"
