"""The metrics of a retrieval server, in Prometheus' format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from rpl.retrieval.library.counting import CallCounts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServiceMetrics:
    """The metrics of one service, in a registry of their own.

    Args:
        counts: Gives the library's counts by primitive.
    """

    def __init__(self, counts: Callable[[], Mapping[str, CallCounts]]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Calls(counts))
        named = {"registry": self.registry}
        self.seconds = Histogram(
            "rpl_retrieval_request_seconds",
            "Seconds from a request's arrival to its answer, waiting included",
            ["endpoint"],
            buckets=_SECONDS,
            **named,  # type: ignore[arg-type]
        )
        self.responses = Counter("rpl_retrieval_responses", "Answers by HTTP status", ["endpoint", "status"], **named)  # type: ignore[arg-type]
        self.batch = Histogram(
            "rpl_retrieval_batch_queries",
            "Queries that were searched at once",
            ["primitive"],
            buckets=_SIZES,
            **named,  # type: ignore[arg-type]
        )
        self.waiting = Gauge("rpl_retrieval_requests_in_progress", "Requests that wait or are worked on", **named)  # type: ignore[arg-type]

    def text(self) -> bytes:
        """Returns all metrics as a scraper reads them."""
        return generate_latest(self.registry)


class _Calls(Collector):
    """Exports the numbers of calls, which the library counts."""

    def __init__(self, counts: Callable[[], Mapping[str, CallCounts]]) -> None:
        self._counts = counts

    def collect(self) -> list[CounterMetricFamily]:
        """See `Collector.collect`."""
        family = CounterMetricFamily(
            "rpl_retrieval_calls", "Primitive calls by what became of them", labels=["primitive", "outcome"]
        )
        for name, counts in self._counts().items():
            for outcome in ("ok", "empty", "refused", "failed"):
                family.add_metric([name, outcome], getattr(counts, outcome))
        cached = CounterMetricFamily("rpl_retrieval_cached", "Calls that the cache answered", labels=["primitive"])
        for name, counts in self._counts().items():
            cached.add_metric([name], counts.cached)
        return [family, cached]
