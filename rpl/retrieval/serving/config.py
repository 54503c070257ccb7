"""The settings of both ends of a retrieval service, as they stand in YAML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rpl.core.errors import ConfigError


@dataclass(frozen=True)
class RemoteConfig:
    """How a server is asked, where `library.corpus` is a URL."""

    protocol: Literal["rpl", "search-r1"] = "rpl"
    """`rpl`: a server of `rpl serve-retrieval`, with all its primitives. `search-r1`: a server with `/retrieve` alone,
    such as Search-R1's; it offers one search and nothing else."""
    primitive: Literal["bm25", "dense"] = "dense"
    """`search-r1`: the primitive that such a server answers; its protocol does not say what it runs."""
    timeout_s: float = 4.0
    """Seconds that one call may take, retries included. Keep it below `limits.call_s`."""
    retries: int = 3
    """How often a call is made again that was refused, cut off, answered with a server error or with garbage."""
    start_s: float = 60.0
    """Seconds to wait at the start for a server that is still loading."""
    connections: int = 64
    """Open connections at most; further calls wait for one."""
    fingerprint: str | None = None
    """The fingerprint that the server's library must have; `None` takes the one it has when a run begins. A server
    whose fingerprint changes during a run is refused in any case."""

    def __post_init__(self) -> None:
        for name, allowed in (("protocol", ("rpl", "search-r1")), ("primitive", ("bm25", "dense"))):
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"library.remote.{name} must be one of {', '.join(allowed)}, got {value!r}")
        if not self.timeout_s > 0:
            raise ConfigError(f"library.remote.timeout_s must be positive, got {self.timeout_s}")
        for name, least in (("retries", 0), ("start_s", 0), ("connections", 1)):
            if not getattr(self, name) >= least:
                raise ConfigError(f"library.remote.{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True)
class ServiceConfig:
    """How a server treats those who ask."""

    search: Literal["auto", "bm25", "dense"] = "auto"
    """What `/retrieve` runs; `auto` is `dense` where the library has it and `bm25` elsewhere."""
    threads: int = 64
    """Requests that are worked on at a time; concurrent dense searches among them become one."""
    queue: int = 256
    """Requests that may wait; further ones are sent away with 503 and `Retry-After`."""
    request_calls: int = 1_024
    """Calls (or queries) in one request."""
    request_mb: int = 8
    """Size of one request, in MiB."""
    request_s: float = 60.0
    """Seconds until a request that is not answered yet gets 504."""
    canary_every_s: float = 10.0
    """Seconds for which the answer to a canary query keeps `/ready` true."""
    stop_s: float = 10.0
    """Seconds that requests get to finish when the server is stopped."""

    def __post_init__(self) -> None:
        if self.search not in ("auto", "bm25", "dense"):
            raise ConfigError(f"service.search must be auto, bm25 or dense, got {self.search!r}")
        for name, least in (("threads", 1), ("queue", 0), ("request_calls", 1), ("request_mb", 1), ("stop_s", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"service.{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("request_s", "canary_every_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"service.{name} must be positive, got {getattr(self, name)}")
