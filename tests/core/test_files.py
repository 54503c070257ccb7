import hashlib
import os

import pytest

from rpl.core import files


def test_the_digest_of_a_large_file_is_remembered_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("RPL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(files, "_REMEMBERED", 4)
    path = tmp_path / "weights"
    path.write_bytes(b"one of them")
    first = files.file_digest(path)
    assert first == hashlib.sha256(b"one of them").hexdigest()
    assert not (tmp_path / "home").exists()  # it may still change within the same tick of the clock
    monkeypatch.setattr(files, "_SETTLED_S", -1.0)
    assert files.file_digest(path) == first
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", lambda *args: pytest.fail("read again"))
        assert files.file_digest(path) == first
    times = path.stat()
    path.write_bytes(b"two of them")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert files.file_digest(path) == hashlib.sha256(b"two of them").hexdigest()
