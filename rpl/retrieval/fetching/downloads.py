"""Downloads that survive cut connections and killed processes, of files whose size and checksum are known beforehand.

What has arrived lies beside the target as `.NAME.partial`, with the checksum of the whole in `.NAME.origin`. The target
itself appears only when it is whole and has that checksum. Targets belong in a work folder, from where whoever asked
for them takes them: the checksum stays beside them, so that they are not fetched twice.

huggingface_hub looks hub files up (see `sources`) but does not carry them: since version 1.18 a process that was killed
leaves nothing that the next one goes on with, which at 43 GB a file is not an option.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, TypeVar

import httpx2

from rpl.core.errors import DownloadError
from rpl.core.files import write_text
from rpl.core.units import size_text

Say = Callable[[str], None]
OnBytes = Callable[[int], None]
T = TypeVar("T")

TRIES = 8
"""How often a request is made again without a single byte of progress."""
BACKOFF_S = 1.0
"""The pause before try n is drawn from half to all of BACKOFF_S * 2 ** n, at most MAX_PAUSE_S."""
MAX_PAUSE_S = 60.0
STALL_S = 30.0
"""A connection that is silent for this long counts as cut."""
PROBE_BYTES = 8 * 1024 * 1024
PROBE_S = 2.0
"""How much is read, and for how long, to estimate the rate."""

_ADVICE = {401: "; it needs a token (`hf auth login`, or HF_TOKEN)", 403: "; access to it must be granted"}
_KEPT = "what has arrived is kept, the same command goes on with it"
_READ_TRIES = 3
_BLOCK = 1 << 20
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+)$")


@dataclass(frozen=True, slots=True)
class Checksum:
    """What a file's content must hash to."""

    kind: Literal["sha256", "git"]
    """`git` is the SHA-1 that git gives to a blob, which the hub tells of its small files."""
    value: str
    """Hexadecimal."""

    def start(self, size: int) -> Any:
        """Returns the hash object of a file of that size before its first byte."""
        if self.kind == "sha256":
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on a server, as the hub or a manifest describes it."""

    name: str
    """For messages and bars."""
    url: str
    size: int
    """Bytes."""
    checksum: Checksum
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with each request, such as a token."""


def arrived(file: RemoteFile, path: Path) -> int:
    """Returns how many bytes of a file are there from an earlier try and need not come again."""
    try:
        size = (path if path.exists() else partial_path(path)).stat().st_size
        origin = origin_path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return 0
    fits = size == file.size or (size < file.size and not path.exists())
    return size if fits and origin == str(file.checksum) else 0


def drop(path: Path) -> int:
    """Deletes what an earlier try left, whole or not, and returns how many bytes that were."""
    size = 0
    for left in (path, partial_path(path)):
        size += left.stat().st_size if left.exists() else 0
        left.unlink(missing_ok=True)
    origin_path(path).unlink(missing_ok=True)
    return size


def partial_path(path: Path) -> Path:
    """Returns where the part of a file lies that has arrived."""
    return path.with_name(f".{path.name}.partial")


def origin_path(path: Path) -> Path:
    """Returns where the checksum stands of what a file, or the part of it, is of."""
    return path.with_name(f".{path.name}.origin")


class Downloader:
    """Fetches files, one connection at a time. A context manager.

    Args:
        say: Told of whatever costs time: retries, files that start anew.
        transport: Replaces the network, for tests.
    """

    def __init__(self, say: Say, transport: httpx2.BaseTransport | None = None) -> None:
        self.say = say
        self._http = httpx2.Client(transport=transport, timeout=STALL_S, follow_redirects=True)

    def __enter__(self) -> Downloader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def read(self, url: str, headers: Mapping[str, str] | None = None) -> bytes:
        """Returns the content of a small file.

        Raises:
            DownloadError: There is no such file, or the server cannot be reached.
        """

        def ask() -> bytes:
            with self._get(url, headers or {}, ok=(200,)) as response:
                return bytes(response.read())

        return self._retrying(url, ask, _READ_TRIES)

    def rate(self, file: RemoteFile) -> float | None:
        """Returns how many bytes a second come from a server, by reading the start of a file; `None` if unknown."""
        if file.size < _BLOCK:
            return None
        end = min(PROBE_BYTES, file.size) - 1
        got, started = 0, 0.0
        try:
            with self._get(file.url, {**file.headers, "Range": f"bytes=0-{end}"}, ok=(200, 206)) as response:
                for block in response.iter_raw():
                    if not got:
                        started = time.perf_counter()  # the first block came with the connection
                    got += len(block)
                    if got > end or time.perf_counter() - started > PROBE_S:
                        break
        except (DownloadError, _Again):
            return None
        seconds = time.perf_counter() - started
        return got / seconds if got and seconds > 0 else None

    def fetch(self, file: RemoteFile, path: Path, on_bytes: OnBytes) -> None:
        """Fetches a file, going on with what an earlier process left of it.

        Args:
            file: What to fetch.
            path: Where to; its folder is made.
            on_bytes: Called with the number of new bytes; with a negative one where bytes have to come again.

        Raises:
            DownloadError: It cannot be fetched. What has arrived stays beside `path` for the next try, unless it has
                the wrong checksum.
        """
        partial = partial_path(path)
        try:
            there = arrived(file, path)
            if path.exists() and there == file.size:
                return
            if there == 0 and drop(path):
                self.say(f"{file.name}: what is here is of another file; starting it anew")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(origin_path(path), str(file.checksum))
            with partial.open("ab") as target:
                transfer = _Transfer(file, target, partial, on_bytes, self.say)
                self._retrying(file.url, lambda: self._stream(transfer), TRIES, lambda: transfer.offset)
                target.flush()
                os.fsync(target.fileno())
        except OSError as error:
            raise DownloadError(f"{partial}: cannot be written ({error}); {_KEPT}") from error
        found = transfer.state.hexdigest()
        if found != file.checksum.value:
            drop(path)
            raise DownloadError(
                f"{file.url}: what came has {file.checksum.kind} {found} instead of {file.checksum.value}; "
                "it was deleted"
            )
        partial.replace(path)

    def _stream(self, transfer: _Transfer) -> None:
        """Receives the rest of a file, as far as one connection brings it."""
        file, asked = transfer.file, transfer.offset
        if asked == file.size:
            return
        headers = {**file.headers, **({"Range": f"bytes={asked}-"} if asked else {})}
        with self._get(file.url, headers, ok=(200, 206, 416)) as response:
            total = _total(response)
            if total is not None and total != file.size:
                raise _changed(file, f"it has {total} bytes")
            if response.status_code == 416 or (response.status_code == 206 and _start(response) != asked):
                raise _Again(f"asked for bytes from {asked} on, it answered {response.status_code}")
            if asked and response.status_code == 200:
                self.say(f"{file.name}: the server cannot go on in the middle of a file; starting it anew")
                transfer.restart()
            for block in response.iter_raw():
                transfer.add(block)
        if transfer.offset < file.size:
            raise _Again("the connection was cut")

    @contextmanager
    def _get(self, url: str, headers: Mapping[str, str], ok: tuple[int, ...]) -> Iterator[httpx2.Response]:
        """Opens a streamed response; what fails while it is opened or read is `_Again` or a `DownloadError`."""
        try:
            with self._http.stream("GET", url, headers={**headers, "Accept-Encoding": "identity"}) as response:
                status = response.status_code
                if status in _AGAIN:
                    raise _Again(f"HTTP {status}", _retry_after(response))
                if status not in ok:
                    raise DownloadError(f"{url}: HTTP {status}{_ADVICE.get(status, '')}")
                yield response
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.TooManyRedirects) as error:
            raise DownloadError(f"{url}: {error}") from error
        except httpx2.TransportError as error:
            raise _Again(f"{type(error).__name__}: {error}") from error

    def _retrying(self, url: str, work: Callable[[], T], most: int, progress: Callable[[], int] = lambda: 0) -> T:
        """Does work that may fail in passing; tries count from the last time that it came further than ever."""
        tries, furthest = 0, progress()
        while True:
            try:
                return work()
            except _Again as failure:
                if progress() > furthest:
                    tries, furthest = 0, progress()
                if tries == most:
                    kept = f"; {_KEPT}" if furthest else ""
                    raise DownloadError(f"{url}: {failure} ({most + 1} tries){kept}") from failure
                pause = max(failure.after_s, min(MAX_PAUSE_S, BACKOFF_S * 2**tries) * random.uniform(0.5, 1.0))
                if tries:
                    self.say(f"{url}: {failure}; trying again in {pause:.0f} s")
                time.sleep(pause)
                tries += 1


class _Again(Exception):  # noqa: N818 - it is caught, never shown
    """A try failed in a way that another one may not."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class _Transfer:
    """A file on its way: how much has arrived, and the hash of it."""

    def __init__(self, file: RemoteFile, target: IO[bytes], partial: Path, on_bytes: OnBytes, say: Say) -> None:
        self.file = file
        self.offset = 0
        self._target, self._on_bytes = target, on_bytes
        self.state = self._fresh()
        there = partial.stat().st_size
        if there >= 1e9:
            say(f"{file.name}: reading the {size_text(there)} that have arrived before")
        with partial.open("rb") as source:
            while block := source.read(_BLOCK):
                self.state.update(block)
                self.offset += len(block)

    def add(self, block: bytes) -> None:
        """Appends what has come."""
        if self.offset + len(block) > self.file.size:
            raise _changed(self.file, "it is longer")
        self._target.write(block)
        self.state.update(block)
        self.offset += len(block)
        self._on_bytes(len(block))

    def restart(self) -> None:
        """Throws away what has come."""
        self._target.truncate(0)
        self._on_bytes(-self.offset)
        self.offset, self.state = 0, self._fresh()

    def _fresh(self) -> Any:
        return self.file.checksum.start(self.file.size)


def _changed(file: RemoteFile, how: str) -> DownloadError:
    return DownloadError(f"{file.url}: {how}, not the {file.size} bytes that were announced; it has changed meanwhile")


def _total(response: httpx2.Response) -> int | None:
    """Returns the size of the whole file that a response is about."""
    if response.status_code == 200:
        length = response.headers.get("Content-Length", "")
        return int(length) if length.isdigit() else None
    match = _RANGE.match(response.headers.get("Content-Range", ""))
    return int(match[2]) if match else None


def _start(response: httpx2.Response) -> int | None:
    match = _RANGE.match(response.headers.get("Content-Range", ""))
    return int(match[1]) if match and match[1] else None


def _retry_after(response: httpx2.Response) -> float:
    try:
        return min(300.0, max(0.0, float(response.headers.get("Retry-After", "0"))))
    except ValueError:
        return 0.0
