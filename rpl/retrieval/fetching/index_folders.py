"""Fetches index folders that are served over HTTP; `manifest.json` names every file with its size and SHA-256."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from rpl.core.errors import DataError
from rpl.core.files import write_bytes
from rpl.retrieval.fetching.downloads import Downloader
from rpl.retrieval.fetching.plan import Wanted, announce, fetch_all, fetching, require_free, work_folder
from rpl.retrieval.fetching.sources import Source
from rpl.retrieval.indexing.folder import is_index_folder
from rpl.retrieval.indexing.manifest import FORMAT, MANIFEST, read_manifest

Say = Callable[[str], None]

_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch_index(source: Source, out: Path, say: Say, dry_run: bool = False) -> Path:
    """Fetches an index folder, file by file.

    Args:
        source: Where it is served.
        out: The folder to make.
        say: Receives what it takes, and what is done.
        dry_run: Whether to say what it takes, and no more.

    Returns:
        The folder.

    Raises:
        DownloadError: A file cannot be fetched, or is not the one that the manifest names; what has arrived stays for
            the next try.
        DataError: The manifest is not that of an index, or `out` holds something else.
        ConfigError: It does not fit on the disk.
    """
    if is_index_folder(out):
        say(f"{out} holds an index already")
        return out
    require_free(out)
    work = work_folder(out)
    with Downloader(say) as downloader:
        manifest = source.read(downloader, MANIFEST)
        listed = _listed(manifest, source).items()
        wanted = [Wanted(source.known(name, e["bytes"], e["sha256"]), work / name) for name, e in listed]
        announce(f"index {source}", wanted, out, downloader, say)
        if dry_run:
            return out
        with fetching(out, say):
            if is_index_folder(out):
                return out
            fetch_all(wanted, downloader, f"index {out.name}")
            _clear(work, {item.path for item in wanted})
            write_bytes(work / MANIFEST, manifest)
            read_manifest(work)
            if out.exists():
                out.rmdir()
            work.rename(out)
    say(f"index ready: {out}")
    return out


def _listed(manifest: bytes, source: Source) -> dict[str, dict[str, Any]]:
    """Returns the files that a manifest names. It comes from elsewhere, so no name may lead out of the folder."""
    try:
        data = json.loads(manifest)
    except ValueError as error:
        raise DataError(f"{source}: its {MANIFEST} is not JSON ({error}); is an index served there?") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else None
        raise DataError(f"{source}: index format {found!r}, this version reads {FORMAT}")
    files = data.get("files")
    if not isinstance(files, dict) or not files:
        raise DataError(f"{source}: its {MANIFEST} names no files")
    for name, entry in files.items():
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or "\\" in name or any(part.startswith(".") for part in parts):
            raise DataError(f"{source}: its {MANIFEST} names {name!r}, which is no path inside an index folder")
        match entry:
            case {"bytes": int(size), "sha256": str(value)} if size >= 0 and _SHA256.fullmatch(value):
                pass
            case _:
                raise DataError(f"{source}: its {MANIFEST} gives no size and SHA-256 of {name!r}")
    return files


def _clear(work: Path, wanted: set[Path]) -> None:
    """Removes what downloads noted, and files that an older manifest named."""
    for path in sorted(work.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in wanted:
            path.unlink()
