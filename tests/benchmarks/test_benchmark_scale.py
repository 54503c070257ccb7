"""The scale benchmark: its synthetic library, a small run from nothing to tables, and the arithmetic of projections."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import likeness, scale
from benchmarks.likeness import intrinsic_dimension, vector_figures
from benchmarks.scale_figures import milliseconds, recall
from benchmarks.scale_tables import Size, check, measured, projection, tables
from benchmarks.sides import SideError
from benchmarks.synthetic import LibraryShape
from benchmarks.synthetic_texts import TextShape, TextSource, Words
from benchmarks.synthetic_vectors import VectorShape, VectorSource, unit
from rpl.core.files import read_appended, write_jsonl
from rpl.retrieval.dense.faiss_indexes import HNSW, IVFPQ, SQ8
from rpl.retrieval.engines import describe

TEXTS = TextShape(vocabulary=20_000)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("RPL_PROGRESS", "0")


def passages(count, seed=0, **shape):
    return np.concatenate(list(VectorSource(VectorShape(**shape), seed).passages(count)))


def test_a_smaller_library_is_the_start_of_a_larger_one():
    large = passages(30_000, dim=16)
    assert large.shape == (30_000, 16)
    np.testing.assert_array_equal(large[:25_000], passages(25_000, dim=16))
    np.testing.assert_allclose(np.linalg.norm(large, axis=1), 1, atol=1e-6)
    assert not np.array_equal(large[:100], passages(100, seed=1, dim=16))
    texts = list(TextSource(TEXTS).passages(40))
    assert texts[:30] == list(TextSource(TEXTS).passages(30))
    assert len({text for _, text in texts}) == 40
    assert all(len(text.split()) == TEXTS.words for _, text in texts)
    assert len({title for title, _ in texts}) < 20


def test_words_are_all_different():
    words = Words()
    assert len({words[rank] for rank in range(20_000)}) == 20_000


def test_figures_by_hand():
    places = np.array([[1, 2, 9], [4, 5, -1]])
    assert recall(places, np.array([[2, 1, 3], [5, 6, 7]]), 2) == (0.75, pytest.approx(0.25))
    assert recall(places, np.array([[2, 1, 3], [5, 6, 7]]), 3)[0] == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert milliseconds([0.001, 0.003, 0.002]) == {"median_ms": 2.0, "p95_ms": 2.9}


@pytest.mark.parametrize("dim", [3, 12])
def test_the_dimension_of_noise_is_found(dim):
    rows = np.random.default_rng(0).random((4000, dim))
    distances = np.sort(np.linalg.norm(rows[:200, None] - rows[None], axis=2), axis=1)[:, 1:21]
    assert intrinsic_dimension(distances) == pytest.approx(dim, rel=0.2)


ENCODER = {  # what MiniLM gives for 8,000 passages is in the middle
    "length of the mean vector": (0.08, 0.18),
    "principal axes that hold 50% of the variance": (30, 55),
    "similarity of a passage's neighbour 1, mean": (0.50, 0.68),
    "similarity of a passage's neighbour 10, mean": (0.34, 0.46),
    "similarity of a passage's neighbour 100, mean": (0.22, 0.30),
    "intrinsic dimension": (13, 21),
    "similarity of a query's result 1, mean": (0.50, 0.66),
    "similarity of a query's result 10, mean": (0.32, 0.46),
}


def unlike_an_encoder(rows, queries):
    figures = vector_figures(rows, queries)
    return {name for name, (least, most) in ENCODER.items() if not least <= figures[name] <= most}


def test_vectors_are_like_those_of_an_encoder():
    source = VectorSource(VectorShape(), passages_an_article=1.2)
    rows = np.concatenate(list(source.passages(8000)))
    assert unlike_an_encoder(rows, source.queries(np.arange(0, 8000, 40))) == set()
    noise = unit(np.random.default_rng(0).standard_normal((8000, 384)).astype(np.float32))
    assert unlike_an_encoder(noise, noise[::40]) == set(ENCODER)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run, and the lines that it left."""
    work = tmp_path_factory.mktemp("scale")
    command = ["--quick", "--passages", "4000", "--work", str(work), "--cases"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RPL_PROGRESS", "0")
        patch.setitem(scale.CASES, "ivfpq", scale.Case(scale.CASES["ivfpq"].engine, ({}, {"rescore": False})))
        assert scale.main([*command, "ivfpq"]) == 0
        assert scale.main([*command, "ivfpq", "bm25"]) == 0
        patch.setattr(scale, "Side", lambda *_: pytest.fail("measured again"))
        assert scale.main([*command, "ivfpq", "bm25"]) == 0
    return work, read_appended(work / "scale.jsonl")


def test_a_small_run(run):
    work, lines = run
    assert [(line["case"], line["phase"]) for line in lines] == [
        ("ivfpq", "build"),
        ("ivfpq", "serve"),
        ("ivfpq", "serve"),
        ("bm25", "build"),
        ("bm25", "serve"),
    ]
    rescored, bare = (line["figures"] for line in lines[1:3])
    assert rescored["recall@10"] > 0.9 > bare["recall@10"] > 0.1
    assert rescored["queries"] == 128
    for figures in (line["figures"] for line in lines if line["phase"] == "serve"):
        assert 0 < figures["single"]["median_ms"] <= figures["single"]["p95_ms"] < 1000
        assert figures["batch"]["median_ms"] > 0
        assert figures["resident"] > sum(figures["memory"].values()) > 0
        assert figures["memory"]["index"] > 0
    assert not list((work / "4000x48" / "indexes").iterdir())


def test_the_tables_of_a_small_run(run):
    _, lines = run
    rows = tables(lines).splitlines()
    assert len(rows) == 2 + 2 + 1 + 2 + 3
    assert len({row.count("|") for row in rows[:4]}) == 1
    assert len({row.count("|") for row in rows[5:]}) == 1
    assert "| ivfpq | probes 64, rescore false |" in rows[8]


def test_a_folder_of_another_shape_is_refused(run, capsys):
    work, _ = run
    assert scale.main(["--quick", "--passages", "4000", "--seed", "1", "--work", str(work)]) == 1
    assert "holds a library of another shape" in capsys.readouterr().err


def line(case, phase, engine, passages=1_000_000, dim=384, **figures):
    return {"case": case, "phase": phase, "engine": engine, "passages": passages, "dim": dim, "threads": 1} | {
        "figures": figures
    }


def served(case, engine, ms, memory, **size):
    times = {"median_ms": ms, "p95_ms": ms}
    memory = {"anonymous": 0, "index": 0 if case == "flat" else memory, "data": memory if case == "flat" else 7}
    return line(case, "serve", engine, **size, single=times, cold=times, batch=None, memory=memory)


def test_projections_by_hand():
    target = Size(4_000_000, 768)
    rows = projection(
        [
            served("flat", "flat", 100.0, 1_536_000_000),
            served("bm25", "bm25s", 2.0, 500_000_000),
            served("hnsw", "hnsw", 1.0, 1_800_000_000),
            served("ivfpq", "ivfpq", 3.0, 90_000_000),
            line("sq8", "build", "sq8", seconds=10.0, disk=384_000_000),
        ],
        target,
    )
    assert "| flat as it is | single | 100 ms | n · dim | 8.00 | 800 ms |" in rows
    assert "| flat as it is | memory | 1.54 GB | as the files | 8.00 | 12.29 GB |" in rows
    assert "| bm25 as it is | single | 2.00 ms | n | 4.00 | 8.00 ms |" in rows
    assert "| hnsw as it is | single | 1.00 ms | log n · dim | 2.20 | 2.20 ms |" in rows  # 2 · ln 4e6 / ln 1e6
    assert "| ivfpq as it is | single | 3.00 ms | √n · dim | 4.00 | 12.00 ms |" in rows
    assert "| sq8 build | disk | 384 MB |" in rows
    assert "| 8.00 | 3.07 GB |" in rows


def test_rules_are_checked_between_two_sizes():
    small = [served("bm25", "bm25s", 1.0, 1000, passages=100_000)]
    large = [served("bm25", "bm25s", 20.0, 10_000), served("flat", "flat", 5.0, 1000)]
    rows = check(small, large).splitlines()
    assert rows[2] == "| bm25 as it is | single | 10.00 ms | 20.00 ms | 0.50 |"
    assert rows[3].endswith("| 1.00 |")
    assert len(rows) == 4
    assert measured(large[0], "batch") is None
    assert measured(large[0], "seconds") is None


def test_a_small_comparison_with_a_real_set(tmp_path, capsys):
    rng = np.random.default_rng(0)
    words = Words()
    texts = [" ".join(words[rank] for rank in rng.integers(33, 3000, 30).tolist()) for _ in range(600)]
    write_jsonl(tmp_path / "corpus.jsonl", [{"id": f"p{i}", "title": "", "text": text} for i, text in enumerate(texts)])
    asked = [{"question": " ".join(text.split()[:6]), "gold_docs": [f"p{i}"]} for i, text in enumerate(texts[:20])]
    write_jsonl(tmp_path / "questions.jsonl", asked)
    out = tmp_path / "figures.json"
    assert likeness.main([str(tmp_path), "--encoder", "hash", "--out", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert figures["different terms of a passage"][0] == pytest.approx(29.8, abs=0.5)
    assert figures["terms of a question"] == pytest.approx([6, 10], abs=0.5)
    coarse, fine = "IVF-PQ, probes 100000, rescore false", "HNSW, candidates 100, search_effort 100"
    assert figures[f"recall@10, {coarse}"][0] < figures[f"recall@10, {fine}"][0]
    assert len(capsys.readouterr().out.splitlines()) == len(figures) - 3 + 2


BUILDS = {
    "sq8": SQ8(),
    "hnsw": HNSW(neighbours=4, build_effort=4),
    "ivfpq": IVFPQ(lists=16, bits=4, gpu=False),
}


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """More vectors than are added at once, so that an index which grows while it is built would show."""
    folder = tmp_path_factory.mktemp("noise")
    rows = np.random.default_rng(0).standard_normal((80_000, 96), dtype=np.float32)
    np.save(folder / "embeddings.npy", unit(rows))
    np.save(folder / "queries.npy", unit(rows[:100]))
    return folder


@pytest.mark.parametrize("name", BUILDS)
def test_the_cost_of_an_index_is_what_building_it_takes(name, noise):
    index = BUILDS[name]
    wanted = {"case": name, "phase": "build", "engine": describe(index)}
    figures = scale.measure(wanted, noise, noise / name, scale.parse([]))["figures"]

    def fits(dim):
        cost = index.cost(80_000, dim)
        disk = cost.disk == pytest.approx(figures["disk"], rel=0.05)
        # Some megabytes are the allocator's.
        memory = abs(figures["build_anonymous"] - cost.build_memory) < 0.12 * cost.build_memory + 5e6
        return disk, memory

    assert fits(96) == (True, True)
    assert fits(192) == (False, False)


def test_an_index_that_does_not_fit_the_disk_is_not_begun(noise, monkeypatch):
    monkeypatch.setattr(scale.shutil, "disk_usage", lambda _: SimpleNamespace(free=100_000_000))
    scale._require_space(SQ8(), noise, LibraryShape(passages=200_000))
    with pytest.raises(SideError, match=r"an index of 0\.1 GB does not fit into 0\.1 GB"):
        scale._require_space(SQ8(), noise, LibraryShape(passages=300_000))
