"""The title table on disk: equal to the one in memory, mapped, and refused when it is damaged."""

import shutil
import threading

import numpy as np
import pytest

from rpl.core.errors import DataError
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.links import links, titles
from rpl.retrieval.links.links import LinkGraph, build_links, load_links
from rpl.retrieval.links.titles import TitleTable

FILES = {"titles.marisa", "capital.npy", "offsets.npy", "passages.npy"}


def make(size=500):
    """Articles of several passages, not side by side, with disambiguations, each mentioning three others."""
    names = [f"Place {chr(65 + n % 26)}{chr(97 + n // 26)}{' (town)' if n % 5 == 0 else ''}" for n in range(size // 5)]
    texts = [
        " and ".join(names[(n * step + 1) % len(names)].split(" (")[0] for step in (3, 7, 11)) for n in range(size)
    ]
    return Corpus([f"p{n}" for n in range(size)], [names[n * 13 % len(names)] for n in range(size)], texts)


def all_links(graph, k=50):
    return [[p.id for p in graph.links(id_, k)] for id_ in graph.corpus.ids]


@pytest.fixture(scope="module")
def corpus():
    return make()


@pytest.fixture
def folder(corpus, tmp_path):
    build_links(corpus, tmp_path)
    return tmp_path


def test_loaded_links_equal_those_in_memory(corpus, folder):
    assert {path.name for path in folder.iterdir()} == FILES
    expected = all_links(LinkGraph(corpus))
    assert any(expected)
    assert all_links(load_links(corpus, folder)) == expected


def test_tables_are_mapped_and_not_read(folder):
    table = TitleTable.load(folder)
    for array in (table._capital, table._offsets, table._passages):
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable


def test_small_chunks_give_the_same_files(corpus, folder, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(titles, "_CHUNK", 7)
    other = tmp_path_factory.mktemp("small")
    build_links(corpus, other)
    for name in FILES - {"titles.marisa"}:
        rows, expected = np.load(other / name), np.load(folder / name)
        assert rows.shape == expected.shape
    assert all_links(load_links(corpus, other)) == all_links(load_links(corpus, folder))


def test_building_twice_gives_equal_bytes(corpus, folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("again")
    build_links(corpus, other)
    assert all((other / name).read_bytes() == (folder / name).read_bytes() for name in FILES)


def test_left_overs_of_a_killed_build_do_not_matter(corpus, folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("killed")
    for name in ("rows.npy", *FILES):
        (other / name).write_bytes(b"half")
    build_links(corpus, other)
    assert {path.name for path in other.iterdir()} == FILES
    assert all((other / name).read_bytes() == (folder / name).read_bytes() for name in FILES)


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "other"])
def test_damaged_files_are_refused(corpus, folder, tmp_path_factory, name, damage):
    path = folder / name
    if damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        other = tmp_path_factory.mktemp("other")
        build_links(make(60), other)
        shutil.copy(other / name, path)
    with pytest.raises(DataError, match="build it again"):
        load_links(corpus, folder)


def test_a_corpus_without_titles(tmp_path):
    corpus = Corpus(["a", "b"], ["", "in"], ["x in y", "x"])
    build_links(corpus, tmp_path)
    assert all_links(load_links(corpus, tmp_path)) == all_links(LinkGraph(corpus)) == [[], []]


def test_a_frequent_title_is_linked_with_its_first_passages_only(monkeypatch):
    """Whatever the number of passages with one title, a call looks at a bounded number of them."""
    monkeypatch.setattr(links, "MAX_PASSAGES", 10)
    names = ["Start", *["Lyon"] * 40, "Paris", *["Paris (Texas)"] * 40]
    corpus = Corpus([f"p{n}" for n in range(len(names))], names, ["Lyon and Paris.", *["x"] * 81])
    found = [p.id for p in LinkGraph(corpus).links("p0", 100)]
    assert found == [f"p{n}" for n in [*range(1, 11), 41, *range(42, 52)]]
    assert [p.id for p in LinkGraph(corpus).links("p0", 4)] == ["p1", "p2", "p3", "p4"]


def test_the_text_after_enough_links_is_not_read():
    """The longest texts cost no more than what `k` needs."""
    names = ["Start", *(f"Place {chr(65 + n)}aa" for n in range(20))]
    corpus = Corpus([f"p{n}" for n in range(21)], names, [" and ".join(names[1:]), *["x"] * 20])
    table = TitleTable.build(corpus.titles)
    seen = []
    mentions = table.mentions
    table.mentions = lambda text, own: (seen.append(number) or number for number in mentions(text, own))
    assert len(LinkGraph(corpus, table).links("p0", 3)) == len(seen) == 3


def test_threads_prepare_the_titles_once(corpus, monkeypatch):
    built = []
    build = TitleTable.build
    monkeypatch.setattr(TitleTable, "build", lambda titles: built.append(1) or build(titles))
    graph = LinkGraph(corpus)
    results = []
    threads = [threading.Thread(target=lambda: results.append(all_links(graph))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert len(results) == 4
    assert all(result == results[0] for result in results)
