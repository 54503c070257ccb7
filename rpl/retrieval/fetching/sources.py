"""Where published files lie: a folder on a web server, or a data set on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import quote

from rpl.core.errors import ConfigError, DownloadError
from rpl.retrieval.fetching.downloads import Checksum, Downloader, RemoteFile

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

_REFUSALS = {
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, so nothing is fetched from the hub",
    "GatedRepoError": "its owner grants access on request; ask there, then log in (`hf auth login`, or HF_TOKEN)",
    "RepositoryNotFoundError": "there is no such data set on the hub, or it is private and needs a token "
    "(`hf auth login`, or HF_TOKEN)",
    "RevisionNotFoundError": "it has no such revision",
    "EntryNotFoundError": "it has no such file at this revision",
}
"""What the errors of huggingface_hub mean, by the names of their classes."""


class WebFolder:
    """A folder on a web server.

    Args:
        url: Its address, `http://` or `https://`.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def read(self, downloader: Downloader, name: str) -> bytes:
        """Returns the content of a small file.

        Args:
            downloader: Does the asking.
            name: Path of the file, with forward slashes.

        Raises:
            DownloadError: There is no such file, it may not be read, or the server cannot be reached.
        """
        return downloader.read(self._address(name))

    def known(self, name: str, size: int, sha256: str) -> RemoteFile:
        """Returns a file whose size and checksum are known from elsewhere, without asking for it."""
        return RemoteFile(name, self._address(name), size, Checksum("sha256", sha256))

    def _address(self, name: str) -> str:
        return f"{self._url}/{quote(name)}"

    def __str__(self) -> str:
        return self._url


class HubDataset:
    """A data set on the hub. The first answer fixes its commit, so that all files are of one state.

    `HF_ENDPOINT` names a mirror, `HF_TOKEN` or `hf auth login` give a token, `HF_HUB_OFFLINE` forbids all requests: as
    everywhere in huggingface_hub.

    Args:
        name: `owner/name`.
        revision: Branch, tag or commit.
    """

    def __init__(self, name: str, revision: str | None = None) -> None:
        self._name, self._revision = name, revision or "main"

    def look_up(self, name: str) -> RemoteFile:
        """Asks for size and checksum of a file: the SHA-256 of large files, git's SHA-1 of small ones.

        Raises:
            DownloadError: There is no such file, it may not be read, or the hub cannot be reached.
        """
        from huggingface_hub import get_hf_file_metadata

        url = self._address(name)
        try:
            found = get_hf_file_metadata(url, token=None, endpoint=_endpoint(), retry_on_errors=True)
        except Exception as error:  # the client of the hub lets errors of the transport through, by any name
            meaning = next((_REFUSALS[c.__name__] for c in type(error).__mro__ if c.__name__ in _REFUSALS), None)
            raise DownloadError(f"{self}: {name!r}: {meaning or f'{type(error).__name__}: {error}'}") from error
        etag = found.etag or ""
        if found.size is None or not (_SHA256.fullmatch(etag) or _SHA1.fullmatch(etag)):
            raise DownloadError(f"{url}: the answer names no size or no checksum; is HF_ENDPOINT a mirror of the hub?")
        if found.commit_hash:
            self._revision = found.commit_hash
        checksum = Checksum("sha256" if _SHA256.fullmatch(etag) else "git", etag)
        return RemoteFile(name, self._address(name), found.size, checksum, _headers())

    def read(self, downloader: Downloader, name: str) -> bytes:
        """Returns the content of a small file; see `WebFolder.read`."""
        file = self.look_up(name)
        return downloader.read(file.url, file.headers)

    def known(self, name: str, size: int, sha256: str) -> RemoteFile:
        """See `WebFolder.known`."""
        return RemoteFile(name, self._address(name), size, Checksum("sha256", sha256), _headers())

    def _address(self, name: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self._name, name, repo_type="dataset", revision=self._revision, endpoint=_endpoint())

    def __str__(self) -> str:
        short = self._revision[:10] if _SHA1.fullmatch(self._revision) else self._revision
        return f"{self._name} on the hub, revision {short}"


Source = WebFolder | HubDataset


def open_source(name: str, revision: str | None = None) -> Source:
    """Returns the place that a name means.

    Args:
        name: A URL, or `owner/name` of a data set on the hub.
        revision: For the hub.

    Raises:
        ConfigError: It is neither, or a revision was given for a web server.
    """
    if name.startswith(("http://", "https://")):
        if revision is not None:
            raise ConfigError(f"--revision is for data sets on the hub; {name!r} is a web server")
        return WebFolder(name)
    hub_name = name.removeprefix("datasets/")
    if _HUB_NAME.fullmatch(hub_name):
        return HubDataset(hub_name, revision)
    raise ConfigError(f"{name!r} is neither a URL (http://…, https://…) nor a data set on the hub (owner/name)")


def _endpoint() -> str | None:
    endpoint = os.environ.get("HF_ENDPOINT")
    return endpoint.rstrip("/") if endpoint else None


def _headers() -> dict[str, Any]:
    from huggingface_hub.utils import build_hf_headers

    headers: dict[str, Any] = build_hf_headers(library_name="rpl")
    return headers
