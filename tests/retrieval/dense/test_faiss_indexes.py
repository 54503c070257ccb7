"""The faiss indexes at a size where approximations miss something: recall, exact scores, files, settings."""

import dataclasses

import numpy as np
import pytest

from rpl.core.errors import ConfigError, DataError, MissingDependencyError
from rpl.retrieval.dense.faiss_indexes import FP16, HNSW, INDEX_FILE, IVFPQ, SQ8, Flat
from rpl.retrieval.dense.milvus_dense import MilvusDense

SIZE, DIM = 4000, 48
SMALL_IVFPQ = IVFPQ(lists=40, probes=16, code_bytes=18, bits=6)
INDEXES = {
    "sq8": (SQ8(), 0.99),
    "fp16": (FP16(), 0.99),
    "hnsw": (HNSW(build_effort=80), 0.97),
    "hnsw in 8 bits": (HNSW(build_effort=80, storage="sq8"), 0.97),
    "hnsw in 16 bits": (HNSW(build_effort=80, storage="float16"), 0.97),
    "ivfpq": (SMALL_IVFPQ, 0.85),
}


@pytest.fixture(scope="module")
def vectors():
    """Unit vectors around a few hundred centres, and queries near some of them."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((300, DIM))
    rows = centres[rng.integers(300, size=SIZE)] + 0.7 * rng.standard_normal((SIZE, DIM))
    queries = rows[rng.integers(SIZE, size=64)] + 0.3 * rng.standard_normal((64, DIM))
    return tuple((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32) for x in (rows, queries))


@pytest.fixture(scope="module")
def embeddings(vectors, tmp_path_factory):
    path = tmp_path_factory.mktemp("embeddings") / "embeddings.npy"
    np.save(path, vectors[0])
    return np.load(path, mmap_mode="r")


@pytest.fixture(scope="module")
def folders(embeddings, tmp_path_factory):
    """Each index, built once."""
    made = {}
    for name, (index, _) in INDEXES.items():
        made[name] = tmp_path_factory.mktemp("index")
        index.build(embeddings, made[name])
    return made


@pytest.fixture(scope="module")
def exact(vectors):
    rows, queries = vectors
    scores = queries.astype(np.float64) @ rows.astype(np.float64).T
    return np.argsort(-scores, axis=1), scores


def built(index, embeddings, folder):
    index.build(embeddings, folder)
    return index.load(embeddings, folder)


def recall(opened, queries, exact, k=10):
    asked = opened.candidates or k
    _, places = opened.search(queries, asked)
    return np.mean([len(set(found[:k]) & set(best[:k])) / k for found, best in zip(places, exact[0], strict=True)])


@pytest.mark.parametrize("name", INDEXES)
def test_recall_and_scores(name, embeddings, vectors, exact, folders):
    index, least = INDEXES[name]
    opened = index.load(embeddings, folders[name])
    assert recall(opened, vectors[1], exact) >= least
    scores, places = opened.search(vectors[1], opened.candidates)
    assert (np.diff(scores, axis=1) <= 0).all()
    np.testing.assert_allclose(scores, np.take_along_axis(exact[1], places, axis=1), atol=1e-6)


@pytest.mark.parametrize("name", ["sq8", "hnsw in 8 bits", "ivfpq"])
def test_without_rescoring_scores_are_not_exact(name, embeddings, vectors, exact, folders):
    """The twin of the tolerance above."""
    opened = dataclasses.replace(INDEXES[name][0], rescore=False).load(embeddings, folders[name])
    scores, places = opened.search(vectors[1], opened.candidates)
    kept = np.where(places >= 0, places, 0)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(scores, np.take_along_axis(exact[1], kept, axis=1), atol=1e-6)


def test_recall_sees_an_index_that_looks_at_too_little(embeddings, vectors, exact, folders):
    opened = dataclasses.replace(SMALL_IVFPQ, probes=1).load(embeddings, folders["ivfpq"])
    assert recall(opened, vectors[1], exact) < 0.85


def test_missing_results_are_marked(embeddings, vectors, tmp_path):
    opened = built(IVFPQ(lists=200, probes=1, bits=4), embeddings, tmp_path)
    scores, places = opened.search(vectors[1], opened.candidates)
    assert (places[:, -1] == -1).all()
    assert np.isneginf(scores[places == -1]).all()
    assert (places[:, 0] >= 0).all()
    for row in places:
        kept = row[row >= 0]
        assert len(set(kept.tolist())) == len(kept)


def test_flat_is_exact_and_maps_its_embeddings(embeddings, vectors, exact, tmp_path):
    opened = built(Flat(gpu=False), embeddings, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert recall(opened, vectors[1], exact) == 1.0
    assert np.shares_memory(opened._rows, embeddings)
    half = Flat(gpu=False).load(embeddings.astype(np.float16), tmp_path)
    np.testing.assert_allclose(half.search(vectors[1], 10)[0], -np.sort(-exact[1], axis=1)[:, :10], atol=2e-3)


@pytest.mark.parametrize("count", [1, 3, 64])
def test_flat_answers_bit_for_bit_like_faiss_own_flat_index(embeddings, vectors, count, tmp_path):
    import faiss

    own = faiss.IndexFlatIP(DIM)
    own.add(np.ascontiguousarray(embeddings))
    found = Flat(gpu=False).load(embeddings, tmp_path).search(vectors[1][:count], 26)
    one_by_one = [own.search(query[None], 26) for query in vectors[1][:count]]
    np.testing.assert_array_equal(found[0], np.concatenate([scores for scores, _ in one_by_one]))
    np.testing.assert_array_equal(found[1], np.concatenate([places for _, places in one_by_one]))


@pytest.mark.parametrize("name", INDEXES)
def test_files_are_mapped(name, embeddings, folders):
    opened = INDEXES[name][0].load(embeddings, folders[name])
    with open("/proc/self/maps", encoding="utf-8") as file:
        assert str(folders[name] / INDEX_FILE) in file.read()
    assert opened.size == SIZE


@pytest.mark.parametrize("name", ["sq8", "fp16", "ivfpq"])
def test_the_same_embeddings_give_the_same_file(name, embeddings, folders, tmp_path):
    INDEXES[name][0].build(embeddings, tmp_path)
    assert (tmp_path / INDEX_FILE).read_bytes() == (folders[name] / INDEX_FILE).read_bytes()


@pytest.mark.parametrize("name", INDEXES)
def test_the_estimate_is_the_size_of_the_file(name, folders):
    index = INDEXES[name][0]
    size = (folders[name] / INDEX_FILE).stat().st_size
    assert index.cost(SIZE, DIM).disk == pytest.approx(size, rel=0.05)
    assert index.cost(SIZE, DIM * 3 // 2).disk != pytest.approx(size, rel=0.05)


MEASURED_S = {SQ8(): (None, 2), IVFPQ(): (32, 220), HNSW(): (81, 969)}
"""Builds of 100,000 and of a million vectors of length 384, on one core; docs/scale.md."""


def work(index, passages):
    return index.cost(passages, 384).products


def test_the_work_of_builds_has_the_ratios_that_were_measured():
    for index, (small_s, large_s) in MEASURED_S.items():
        expected = pytest.approx(large_s / MEASURED_S[HNSW()][1], rel=0.2)
        assert work(index, 1_000_000) / work(HNSW(), 1_000_000) == expected
        if small_s is not None:
            growth = pytest.approx(large_s / small_s, rel=0.2)
            assert work(index, 1_000_000) / work(index, 100_000) == growth
    # In proportion to the files it would be a fifth of that.
    sizes = [index.cost(1_000_000, 384).disk for index in (IVFPQ(), HNSW())]
    assert sizes[0] / sizes[1] != pytest.approx(220 / 969, rel=0.2)


def test_the_work_of_some_builds_is_nothing_or_unknown():
    assert work(Flat(), 1_000_000) == 0
    assert work(MilvusDense(), 1_000_000) is None


def test_float16_embeddings_are_indexed_too(embeddings, vectors, exact, tmp_path):
    opened = built(SQ8(), embeddings.astype(np.float16), tmp_path)
    assert recall(opened, vectors[1], exact) >= 0.97


def test_a_file_of_other_embeddings_is_refused(embeddings, tmp_path):
    SQ8().build(embeddings[:1000], tmp_path)
    with pytest.raises(DataError, match=r"holds 1000 vectors of length 48, the embeddings have shape \(4000, 48\)"):
        SQ8().load(embeddings, tmp_path)
    (tmp_path / INDEX_FILE).write_bytes(b"rubbish")
    with pytest.raises(DataError, match=r"the dense index cannot be read .*build it again"):
        SQ8().load(embeddings, tmp_path)
    (tmp_path / INDEX_FILE).unlink()
    with pytest.raises(DataError, match="the dense index cannot be read"):
        SQ8().load(embeddings, tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SQ8(candidates=99), "candidates must be at least 100, got 99"),
        (lambda: HNSW(neighbours=1), "neighbours must be at least 2, got 1"),
        (lambda: HNSW(storage="int4"), "storage must be one of float32, float16, sq8, got 'int4'"),
        (lambda: IVFPQ(probes=0), "probes must be at least 1, got 0"),
        (lambda: IVFPQ(bits=16), r"bits must be in \[4, 12\], got 16"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ConfigError, match=rf"library\.dense_index: {message}"):
        make()


def test_settings_that_do_not_fit_the_embeddings(embeddings, tmp_path):
    with pytest.raises(ConfigError, match=r"7 parts of a code do not divide embeddings of length 48"):
        IVFPQ(lists=4, code_bytes=7).build(embeddings, tmp_path)
    with pytest.raises(ConfigError, match=r"needs at least 256 passages to learn from, the corpus has 100; use flat"):
        IVFPQ(lists=4).build(embeddings[:100], tmp_path)


@pytest.mark.parametrize("index", [Flat(gpu=True), IVFPQ(lists=40, bits=4, gpu=True)])
def test_a_gpu_that_is_not_there(index, embeddings, tmp_path, monkeypatch):
    import faiss

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0, raising=False)
    with pytest.raises(MissingDependencyError, match=r"gpu is true but faiss finds no GPU; .*faiss-gpu"):
        built(index, embeddings, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("index", [Flat(gpu=True), dataclasses.replace(SMALL_IVFPQ, gpu=True)])
def test_the_gpu_finds_what_the_cpu_finds(index, embeddings, vectors, exact, tmp_path):
    faiss = pytest.importorskip("faiss")
    if not hasattr(faiss, "StandardGpuResources"):
        pytest.skip("this faiss has no GPU code")
    assert recall(built(index, embeddings, tmp_path), vectors[1], exact) >= 0.85
