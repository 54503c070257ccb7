"""Downloads that survive cut connections, killed processes and files that change on the server.

What has arrived lies beside the target as `.NAME.partial`, with a note of what it is part of (`.NAME.origin.json`). The
target itself appears only when it is whole and has the checksum that the server promised. Targets belong in a work
folder, from where whoever asked for them takes them: the note stays beside them, so that they are not fetched twice.

huggingface_hub looks hub files up (see `sources`) but does not carry them: since version 1.18 it starts a file anew
after every interruption (its pull request 4306), which at 43 GB a file is not an option.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import httpx2

from rpl.core.errors import DownloadError
from rpl.core.files import write_json
from rpl.core.units import size_text
from rpl.retrieval.fetching.remote_files import Checksum, RemoteFile, arrived, drop, note_path, partial_path

Say = Callable[[str], None]
OnBytes = Callable[[int], None]

TRIES = 8
"""How often a request is made again without a single byte of progress."""
LOOK_UP_TRIES = 3
"""As `TRIES`, for the first request to a server, whose address may be a wrong one."""
BACKOFF_S = 1.0
"""The pause before try n is drawn from half to all of BACKOFF_S * 2 ** n, at most MAX_PAUSE_S."""
MAX_PAUSE_S = 60.0
STALL_S = 30.0
"""A connection that is silent for this long counts as cut."""
PROBE_BYTES = 8 * 1024 * 1024
PROBE_S = 2.0
"""How much is read, and for how long, to estimate the rate."""

_KEPT = "what has arrived is kept, the same command goes on with it"
_CHANGES = 3
_BLOCK = 1 << 20
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+)$")


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

    def look_up(self, url: str, name: str, headers: Mapping[str, str] | None = None) -> RemoteFile:
        """Asks a server for size and version of a file, by its first byte: not every server answers `HEAD`.

        Raises:
            DownloadError: There is no such file, the server cannot be reached, or does not say how large the file is.
        """
        headers = dict(headers or {})

        def ask() -> RemoteFile:
            with self._get(url, {**headers, "Range": "bytes=0-0"}, ok=(200, 206, 416)) as response:
                size = _total(response)
                if size is None:
                    raise DownloadError(f"{url}: the server does not say how large the file is")
                if response.headers.get("Content-Length") == "1":
                    response.read()  # so that the connection can be used again
                return RemoteFile(name, url, size, None, _version(response), headers)

        found: RemoteFile = self._retrying(url, ask, LOOK_UP_TRIES)
        return found

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

    def fetch(self, file: RemoteFile, path: Path, again: Callable[[], RemoteFile], on_bytes: OnBytes) -> None:
        """Fetches a file, going on with what an earlier process left of it.

        Args:
            file: What to fetch.
            path: Where to; its folder is made.
            again: Looks the file up again, if it turns out to have changed.
            on_bytes: Called with the number of new bytes; with a negative one where bytes have to come again.

        Raises:
            DownloadError: It cannot be fetched. What has arrived stays beside `path` for the next try, unless it has
                the wrong checksum.
        """
        for _ in range(_CHANGES):
            try:
                self._fetch(file, path, on_bytes)
                return
            except _Changed as change:
                self.say(f"{file.name} has changed on the server ({change}); starting it anew")
                on_bytes(-drop(path))
                file = again()
        raise DownloadError(f"{file.url}: changes again and again while it is being fetched")

    def _fetch(self, file: RemoteFile, path: Path, on_bytes: OnBytes) -> None:
        partial = partial_path(path)
        try:
            there = arrived(file, path)
            if path.exists() and there == file.size:
                return
            if there == 0 and drop(path):
                changed = "has changed on the server since its download began"
                self.say(f"{file.name} {changed if file.resumable else 'has no version to go by'}; starting it anew")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(note_path(path), file.identity)
            with partial.open("ab") as target:
                transfer = _Transfer(file, target, partial, on_bytes, self.say)
                self._retrying(file.url, lambda: self._stream(transfer), TRIES, lambda: transfer.offset)
                target.flush()
                os.fsync(target.fileno())
        except OSError as error:
            raise DownloadError(f"{partial}: cannot be written ({error}); {_KEPT}") from error
        found = transfer.state.hexdigest()
        if file.checksum is not None and found != file.checksum.value:
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
        headers = dict(file.headers)
        if asked and not file.resumable:
            # Nothing would show that the rest belongs to another version.
            transfer.restart()
            asked = 0
        if asked:
            headers["Range"] = f"bytes={asked}-"
            if file.version is not None and not file.version.startswith("W/"):
                headers["If-Range"] = file.version  # weak tags are not allowed there
        with self._get(file.url, headers, ok=(200, 206, 416)) as response:
            total, version = _total(response), _version(response)
            if total is not None and total != file.size:
                raise _Changed(f"{size_text(total)} instead of {size_text(file.size)}")
            if file.version is not None and version is not None and version != file.version:
                raise _Changed(f"version {version} instead of {file.version}")
            if response.status_code == 416 or (response.status_code == 206 and _start(response) != asked):
                raise _Again(f"asked for bytes from {asked} on, it answered {response.status_code}")
            if asked and response.status_code == 200:
                self.say(f"{file.name}: the server cannot go on in the middle of a file; starting it anew")
                transfer.restart()
            for block in response.iter_raw():
                transfer.add(block)
        if transfer.offset < file.size:
            raise _Again("the connection was cut")

    def _get(self, url: str, headers: Mapping[str, str], ok: tuple[int, ...]) -> _Response:
        return _Response(self._http, url, {**headers, "Accept-Encoding": "identity"}, ok)

    def _retrying(self, url: str, work: Callable[[], Any], most: int, progress: Callable[[], int] = lambda: 0) -> Any:
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


class _Changed(Exception):  # noqa: N818 - it is caught, never shown
    """The file is another one than when it was looked up."""


class _Response:
    """A streamed response whose failures, while it is opened and read, are `_Again` or `DownloadError`."""

    def __init__(self, http: httpx2.Client, url: str, headers: Mapping[str, str], ok: tuple[int, ...]) -> None:
        self._stream = http.stream("GET", url, headers=headers)
        self._url, self._ok = url, ok

    def __enter__(self) -> httpx2.Response:
        try:
            response = self._stream.__enter__()
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.TooManyRedirects) as error:
            raise DownloadError(f"{self._url}: {error}") from error
        except httpx2.TransportError as error:
            raise _Again(f"{type(error).__name__}: {error}") from error
        if response.status_code in self._ok:
            return response
        self._stream.__exit__(None, None, None)
        if response.status_code in _AGAIN:
            raise _Again(f"HTTP {response.status_code}", _retry_after(response))
        advice = {401: "; it needs a token (`hf auth login`, or HF_TOKEN)", 403: "; access to it must be granted"}
        raise DownloadError(f"{self._url}: HTTP {response.status_code}{advice.get(response.status_code, '')}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.__exit__(kind, error, trace)
        if isinstance(error, httpx2.TransportError):
            raise _Again(f"{type(error).__name__}: {error}") from error


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
            raise _Changed(f"longer than {size_text(self.file.size)}")
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
        return (self.file.checksum or Checksum("sha256", "")).start(self.file.size)


def _version(response: httpx2.Response) -> str | None:
    found: str | None = response.headers.get("ETag") or response.headers.get("Last-Modified")
    return found


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
