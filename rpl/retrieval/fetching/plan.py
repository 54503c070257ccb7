"""Plans a download: says what it will take, refuses what does not fit, and then fetches under one progress bar."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from rpl.core.errors import ConfigError, DataError
from rpl.core.files import nearest_folder
from rpl.core.locks import folder_lock
from rpl.core.progress import progress_bar
from rpl.core.units import duration_text, size_text
from rpl.retrieval.fetching.downloads import Downloader, RemoteFile, Say, arrived

WORK = ".{name}.fetching"
"""The folder beside a target in which its files are gathered; what a killed process left there is used again."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to fetch."""

    file: RemoteFile
    path: Path
    """Where to put it."""

    @property
    def missing(self) -> int:
        """Bytes that have to come."""
        return self.file.size - arrived(self.file, self.path)


def work_folder(target: Path) -> Path:
    """Returns the folder in which the files of a target are gathered."""
    return target.parent / WORK.format(name=target.name)


def fetching(target: Path, say: Say) -> AbstractContextManager[None]:
    """Holds the lock of those who fetch a target, which is not that of those who build an index there."""
    lock = target.with_name(f"{target.name}.fetching")
    return folder_lock(lock, on_wait=lambda: say(f"waiting for another process that fetches {target}"))


def require_free(out: Path) -> None:
    """Checks that a folder may be made at a path.

    Raises:
        DataError: Something is there.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out}: holds something that is not an index; choose an empty or new folder")


def announce(
    title: str, wanted: Sequence[Wanted], folder: Path, downloader: Downloader, say: Say, after: int = 0
) -> None:
    """Says what comes, how large it is, how long it takes and whether it fits.

    Args:
        title: What is fetched, and from where.
        wanted: The files.
        folder: Where they go; need not exist.
        downloader: Measures the rate.
        say: Receives one line a file and one for all of them.
        after: Bytes that are needed besides, for what is made of the files.

    Raises:
        ConfigError: There is not enough free space.
    """
    say(title)
    for item in wanted:
        say(f"  {item.file.name:<28} {size_text(item.file.size):>9}  {item.file.checksum}")
    total, missing = sum(item.file.size for item in wanted), sum(item.missing for item in wanted)
    existing = nearest_folder(folder)
    free = shutil.disk_usage(existing).free
    rate = downloader.rate(max(wanted, key=lambda item: item.file.size).file) if missing else None
    parts = [f"{size_text(missing)} to fetch"]
    if missing < total:
        parts[0] += f" ({size_text(total - missing)} are here already)"
    if after:
        parts.append(f"{size_text(after)} more for what is made of it")
    parts.append(f"{size_text(free)} free at {existing}")
    if rate:
        parts.append(f"about {duration_text(missing / rate)} at {size_text(rate)}/s")
    say("; ".join(parts))
    if missing + after > free:
        raise ConfigError(
            f"--out: {size_text(missing + after)} are needed but only {size_text(free)} are free at {existing}; "
            "choose a folder on a larger disk"
        )


def fetch_all(wanted: Sequence[Wanted], downloader: Downloader, description: str) -> None:
    """Fetches files one after the other; see `Downloader.fetch`.

    Raises:
        DownloadError: One cannot be fetched. What has arrived stays for the next try.
    """
    total = sum(item.file.size for item in wanted)
    with progress_bar(total, description, "B", initial=total - sum(item.missing for item in wanted)) as bar:
        for item in wanted:
            downloader.fetch(item.file, item.path, bar.update)
