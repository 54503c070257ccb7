"""Vectors of other programs: read from whole files and from parts, and used up from their end."""

import numpy as np
import pytest

from rpl.core.errors import DataError
from rpl.retrieval.fetching.vectors import VectorFile

ROWS = np.random.default_rng(0).standard_normal((50, 12)).astype(np.float32)


def flat(path, metric="METRIC_INNER_PRODUCT", kind="IndexFlat"):
    faiss = pytest.importorskip("faiss")
    index = getattr(faiss, kind)(12, getattr(faiss, metric)) if kind == "IndexFlat" else getattr(faiss, kind)(12)
    index.add(ROWS)
    faiss.write_index(index, str(path))
    return path


def split(path, *sizes):
    """Cuts a file into parts, as `split` does."""
    data, parts = path.read_bytes(), []
    for number, size in enumerate([*sizes, len(data)]):
        parts.append(path.with_name(f"part_a{'abcdefgh'[number]}"))
        parts[-1].write_bytes(data[:size])
        data = data[size:]
    return parts


@pytest.mark.parametrize("kind", ["IndexFlatIP", "IndexFlatL2", "IndexFlat"])
def test_a_flat_index_of_faiss(tmp_path, kind):
    vectors = VectorFile([flat(tmp_path / "i", kind=kind)])
    assert (vectors.rows, vectors.dim) == ROWS.shape
    assert np.array_equal(vectors.read(0, 50), ROWS)
    assert np.array_equal(vectors.read(7, 8), ROWS[7:8])


def test_a_metric_with_an_argument(tmp_path):
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlat(12, faiss.METRIC_Lp)
    index.metric_arg = 3.0
    index.add(ROWS)
    faiss.write_index(index, str(tmp_path / "i"))
    assert np.array_equal(VectorFile([tmp_path / "i"]).read(0, 50), ROWS)


@pytest.mark.parametrize("sizes", [(45,), (100,), (20, 3, 500), (1000, 1), (44, 1)])
def test_parts_are_read_as_one_file(tmp_path, sizes):
    """The published parts are cut at 40 GiB, in the middle of a row."""
    vectors = VectorFile(split(flat(tmp_path / "i"), *sizes))
    assert np.array_equal(vectors.read(0, 50), ROWS)
    assert np.array_equal(vectors.read(0, 3), ROWS[:3])
    assert np.array_equal(vectors.read(49, 50), ROWS[49:])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_npy(tmp_path, dtype):
    np.save(tmp_path / "v.npy", ROWS.astype(dtype))
    vectors = VectorFile([tmp_path / "v.npy"])
    read = vectors.read(3, 9)
    assert read.dtype == np.float32
    assert np.array_equal(read, ROWS.astype(dtype)[3:9].astype(np.float32))


def test_cutting_gives_space_back_and_keeps_the_rest(tmp_path):
    parts = split(flat(tmp_path / "i"), 500, 700)
    vectors = VectorFile(parts)
    for left in (49, 30, 11, 5):
        vectors.cut_at(left)
        assert sum(part.stat().st_size for part in parts) == 45 + left * 48
        assert np.array_equal(vectors.read(0, left), ROWS[:left])
        reopened = VectorFile(parts, cut=True)
        reopened.require(left)
        assert np.array_equal(reopened.read(0, left), ROWS[:left])
        with pytest.raises(DataError, match="incomplete"):
            reopened.require(left + 1)
        with pytest.raises(DataError, match="incomplete"):
            VectorFile(parts)
    vectors.cut_at(0)
    assert VectorFile(parts, cut=True).rows == 50


def npy(tmp_path, array):
    np.save(tmp_path / "v.npy", array)
    return [tmp_path / "v.npy"]


def damaged(tmp_path, change):
    path = flat(tmp_path / "i")
    path.write_bytes(change(path.read_bytes()))
    return [path]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: [p / "nothing"], "nothing: no such file"),
        (lambda p: damaged(p, lambda d: d[:-1]), "2444 bytes instead of the 2445 of 50 vectors of length 12; it"),
        (lambda p: damaged(p, lambda d: d + b"x"), "2446 bytes instead of the 2445"),
        (lambda p: damaged(p, lambda d: d[:20]), "neither a .npy file nor a flat faiss index"),
        (lambda p: damaged(p, lambda d: b""), "neither a .npy file nor a flat faiss index"),
        (lambda p: damaged(p, lambda d: d[:8] + b"\7" + d[9:]), "damaged header"),
        (lambda p: damaged(p, lambda d: b"IHNf" + d[4:]), "begins with b'IHNf'"),
        (lambda p: split(flat(p / "i"), 100)[:1], "not all of its parts were given in order"),
        (lambda p: split(flat(p / "i"), 100)[::-1], "neither a .npy file nor a flat faiss index"),
        (lambda p: npy(p, ROWS.astype(np.int32)), r"got int32 of shape \(50, 12\)"),
        (lambda p: npy(p, ROWS[0]), r"got float32 of shape \(12,\)"),
        (lambda p: npy(p, np.asfortranarray(ROWS)), "column by column"),
    ],
)
def test_what_is_no_vector_file(tmp_path, make, message):
    with pytest.raises(DataError, match=message):
        VectorFile(make(tmp_path))
