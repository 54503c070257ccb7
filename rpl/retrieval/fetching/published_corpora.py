"""Published corpora and vectors: where they are, and how they are turned into RPL's corpora and indexes.

`wiki18` is the corpus of Search-R1 and FlashRAG: the English Wikipedia of December 2018 in passages of 100 words
(Karpukhin et al., 2020), in the form `{"id", "contents"}`. `wiki18-e5` is its flat index by E5 (Wang et al., 2022) that
Search-R1 (Jin et al., 2025) searches: one file in two parts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rpl.core.errors import ConfigError
from rpl.core.files import write_json
from rpl.retrieval.fetching.downloads import Downloader
from rpl.retrieval.fetching.importing import LEAST_SIMILARITY, corpus_head, import_index
from rpl.retrieval.fetching.plan import Wanted, announce, fetch_all, fetching, require_free, work_folder
from rpl.retrieval.fetching.sources import HubDataset
from rpl.retrieval.indexing.folder import is_index_folder, load_encoder
from rpl.retrieval.library_config import LibraryConfig

Say = Callable[[str], None]


@dataclass(frozen=True)
class PublishedCorpus:
    """A corpus file in a data set on the hub."""

    dataset: str
    file: str
    about: str


@dataclass(frozen=True)
class PublishedVectors:
    """Vectors of a published corpus."""

    dataset: str
    parts: tuple[str, ...]
    """The file, or its parts in order."""
    corpus: str
    """Whose vectors they are, by its name in `CORPORA`."""
    about: str
    other_bytes: int
    """What the index takes besides the embeddings, roughly: passages, keyword index, titles."""
    settings: dict[str, Any] = field(default_factory=dict)
    """How they were computed, by the names in `LibraryConfig`."""


CORPORA = {
    "wiki18": PublishedCorpus(
        "PeterJinGo/wiki-18-corpus", "wiki-18.jsonl.gz", "Wikipedia of December 2018, 21,015,324 passages of 100 words"
    )
}

VECTORS = {
    "wiki18-e5": PublishedVectors(
        "PeterJinGo/wiki-18-e5-index",
        ("part_aa", "part_ab"),
        "wiki18",
        "Search-R1's flat E5 index of wiki18",
        # 21 million passages of about 690 bytes; about 70 different words each, with 8 bytes a word and passage.
        other_bytes=30_000_000_000,
        settings={"encoder": "intfloat/e5-base-v2", "encoder_max_tokens": 256},
    )
}


def fetch_corpus(name: str, out: Path, say: Say, revision: str | None = None, dry_run: bool = False) -> Path:
    """Fetches a published corpus.

    Args:
        name: In `CORPORA`.
        out: The corpus becomes `out/NAME/corpus.jsonl.gz`.
        say: Receives what it takes, and what is done.
        revision: Of the data set on the hub.
        dry_run: Whether to say what it takes, and no more.

    Returns:
        The file.

    Raises:
        DownloadError: It cannot be fetched; what has arrived stays for the next try.
        ConfigError: There is no such corpus, or it does not fit on the disk.
        DataError: What came is no corpus.
    """
    published = _named(name, CORPORA)
    target = out / name / "corpus.jsonl.gz"
    if target.exists():
        say(f"{target} is there already")
        return target
    work = work_folder(target.parent)
    with Downloader(say) as downloader:
        item = _corpus_item(published, work, revision)
        announce(f"{name}: {published.about}", [item], out, downloader, say)
        if dry_run:
            return target
        with fetching(target.parent, say):
            if not target.exists():
                fetch_all([item], downloader, name)
                corpus_head(item.path)  # what is no corpus gets no name of one
                target.parent.mkdir(parents=True, exist_ok=True)
                item.path.replace(target)
                shutil.rmtree(work)
    say(f"corpus ready: {target}")
    return target


def fetch_vectors(
    name: str,
    out: Path,
    config: LibraryConfig,
    say: Say,
    corpus: Path | None = None,
    revision: str | None = None,
    dry_run: bool = False,
    least_similarity: float = LEAST_SIMILARITY,
) -> Path:
    """Fetches published vectors, and their corpus where it is not there, and makes an index of ours of them.

    The vectors are used up while they are copied, so that the disk holds them once.

    Args:
        name: In `VECTORS`.
        out: The index folder to make.
        config: How to build it; what it leaves at its default is as the vectors were computed.
        say: Receives what it takes, and what is done.
        corpus: The corpus file, if there is one already; `None` fetches it.
        revision: Of the data set with the vectors.
        dry_run: Whether to say what it takes, and no more.
        least_similarity: See `import_index`.

    Returns:
        The folder.

    Raises:
        DownloadError: Something cannot be fetched; what has arrived stays for the next try.
        ConfigError: There are no such vectors, they do not fit on the disk, or a setting is wrong.
        DataError: What came is damaged or does not fit together.
    """
    published = _named(name, VECTORS)
    if is_index_folder(out):
        say(f"{out} holds an index already")
        return out
    require_free(out)
    config = _as_computed(config, published.settings)
    if not dry_run:
        load_encoder(config)  # fails now rather than after hours of downloading
    work = work_folder(out)
    parts, whole = [work / part for part in published.parts], work / "whole.json"
    source = corpus or work / CORPORA[published.corpus].file
    with nullcontext() if dry_run else fetching(out, say):
        if not whole.exists():
            with Downloader(say) as downloader:
                dataset = HubDataset(published.dataset, revision)
                wanted = [Wanted(dataset.look_up(part.name), part) for part in parts]
                if corpus is None:
                    wanted.append(_corpus_item(CORPORA[published.corpus], work, None))
                announce(f"{name}: {published.about}", wanted, out, downloader, say, published.other_bytes)
                if dry_run:
                    return out
                fetch_all(wanted, downloader, name)
            # From here on the parts get shorter, and must not be taken for incomplete downloads.
            write_json(whole, {"parts": list(published.parts)})
        if dry_run:
            return out
        import_index(source, parts, out, config, False, True, say, least_similarity)
        shutil.rmtree(work)
    return out


def _corpus_item(published: PublishedCorpus, work: Path, revision: str | None) -> Wanted:
    return Wanted(HubDataset(published.dataset, revision).look_up(published.file), work / published.file)


def _as_computed(config: LibraryConfig, settings: dict[str, Any]) -> LibraryConfig:
    default = LibraryConfig()
    taken = {key: value for key, value in settings.items() if getattr(config, key) == getattr(default, key)}
    return replace(config, dense=True, **taken)


def _named(name: str, catalog: dict[str, Any]) -> Any:
    if name not in catalog:
        raise ConfigError(f"{name!r} is not published; there is {', '.join(catalog)}")
    return catalog[name]
