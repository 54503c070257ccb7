"""Vectors that another program computed: a flat faiss index, whole or cut into parts, or a `.npy` file.

A flat index of faiss is a short header and the rows as float32, so its vectors need no faiss to be read, and parts of
it (as `split` makes them) need not be put together first.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rpl.core.errors import DataError

_FLAT = {b"IxFI": "inner product", b"IxF2": "L2", b"IxFl": "any metric"}
"""Types of flat indexes in faiss' `index_write.cpp`, the metric of each."""
_HEADER = struct.Struct("<4siqqq?i")
"""Type, dimension, rows, two unused numbers, whether trained, metric; then the metric's argument where it has one, and
the number of floats as 8 bytes."""
_NPY_TYPES = ("float16", "float32", "float64")


class VectorFile:
    """Rows of vectors in a file, or in the parts of one.

    Args:
        paths: The file, or its parts in order.
        cut: Whether rows may be gone from the end, because an earlier process has called `cut_at`.

    Raises:
        DataError: It is no vector file, is incomplete or too long, or a part is missing.
    """

    def __init__(self, paths: Sequence[Path], cut: bool = False) -> None:
        self.paths = [Path(path) for path in paths]
        self.name = self.paths[0].name if len(self.paths) == 1 else f"{self.paths[0].name} … {self.paths[-1].name}"
        for path in self.paths:
            if not path.is_file():
                raise DataError(f"{path}: no such file")
        self._starts = self._measure()
        self.rows, self.dim, self.dtype, self._offset = self._header()
        if not cut or self._starts[-1] > self._end(self.rows):
            self.require(self.rows)

    @property
    def whole(self) -> bool:
        """Whether no row is gone."""
        return self._starts[-1] == self._end(self.rows)

    def require(self, rows: int) -> None:
        """Checks that the first rows are all there, and all of the file if those are all.

        Raises:
            DataError: They are not.
        """
        size, expected = self._starts[-1], self._end(rows)
        if size < expected or (rows == self.rows and size > expected):
            raise DataError(
                f"{self.name}: {size} bytes instead of the {expected} of {rows} vectors of length {self.dim}; it is "
                "incomplete, or not all of its parts were given in order"
            )

    def cut_at(self, row: int) -> None:
        """Gives back the disk space of a row and of all after it: they are gone from the files."""
        end = self._end(row)
        for path, begin in zip(self.paths, self._starts, strict=False):
            if path.stat().st_size > max(0, end - begin):
                os.truncate(path, max(0, end - begin))
        self._starts = self._measure()

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Returns the rows from `start` up to `stop`, of shape (stop - start, dim)."""
        width = self.dim * self.dtype.itemsize
        data = self._bytes(self._offset + start * width, (stop - start) * width)
        rows: NDArray[Any] = np.frombuffer(data, self.dtype).reshape(stop - start, self.dim)
        return rows.astype(np.float32, copy=False)

    def _measure(self) -> list[int]:
        """Returns where each part begins in the whole, and where the last one ends."""
        return [0, *accumulate(path.stat().st_size for path in self.paths)]

    def _end(self, rows: int) -> int:
        return self._offset + rows * self.dim * self.dtype.itemsize

    def _header(self) -> tuple[int, int, np.dtype[Any], int]:
        """Returns rows, dimension, number format, and where the rows begin."""
        start = self._bytes(0, min(_HEADER.size + 12, self._starts[-1]))
        if bytes(start[:6]) == b"\x93NUMPY":
            return self._npy_header()
        kind = bytes(start[:4])
        if kind not in _FLAT or len(start) < _HEADER.size + 8:
            raise DataError(
                f"{self.paths[0]}: is neither a .npy file nor a flat faiss index (it begins with {kind!r}); other "
                "indexes of faiss hold no exact vectors"
            )
        _, dim, rows, _, _, _, metric = _HEADER.unpack_from(start)
        offset = _HEADER.size + (4 if metric > 1 else 0)
        floats = struct.unpack_from("<Q", start, offset)[0] if len(start) >= offset + 8 else 0
        if dim < 1 or rows < 1 or floats != rows * dim:
            raise DataError(f"{self.paths[0]}: damaged header ({rows} rows of {dim}, {floats} numbers)")
        return rows, dim, np.dtype("<f4"), offset + 8

    def _npy_header(self) -> tuple[int, int, np.dtype[Any], int]:
        with self.paths[0].open("rb") as file:
            try:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, fortran, dtype = read(file)
            except ValueError as error:
                raise DataError(f"{self.paths[0]}: damaged .npy header ({error})") from error
            offset = file.tell()
        if len(shape) != 2 or fortran or dtype.name not in _NPY_TYPES:
            order = ", column by column" if fortran else ""
            raise DataError(
                f"{self.paths[0]}: must be an array of shape (passages, length), row by row, of "
                f"{', '.join(_NPY_TYPES)}; got {dtype.name} of shape {shape}{order}"
            )
        return shape[0], shape[1], dtype, offset

    def _bytes(self, offset: int, count: int) -> bytearray:
        """Returns bytes of the file as if its parts were one."""
        data = bytearray(count)
        view, done = memoryview(data), 0
        for number, path in enumerate(self.paths):
            begin, end = self._starts[number], self._starts[number + 1]
            if begin <= offset + done < end and done < count:
                with path.open("rb") as file:
                    file.seek(offset + done - begin)
                    done += _fill(file, view[done : end - offset])
        if done < count:
            raise DataError(f"{self.name}: ends early")
        return data


def _fill(file: IO[bytes], view: memoryview) -> int:
    """Reads until a buffer is full or the file ends."""
    done = 0
    while done < len(view):
        got = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            break
        done += got
    return done
