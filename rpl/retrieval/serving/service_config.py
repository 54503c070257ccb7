"""The settings of a retrieval server, as they stand in YAML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rpl.core.errors import ConfigError


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
