"""Downloads from a real server with every fault: whole or not there, and no byte twice that need not come twice."""

import hashlib
import itertools
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from file_server import serving
from hypothesis import given, settings
from hypothesis import strategies as st

from rpl.core.errors import DownloadError
from rpl.retrieval.fetching import downloads
from rpl.retrieval.fetching.downloads import Checksum, Downloader, RemoteFile, arrived

DATA = random.Random(0).randbytes(30_000)
SHA = Checksum("sha256", hashlib.sha256(DATA).hexdigest())
GIT = Checksum("git", hashlib.sha1(b"blob 30000\0" + DATA).hexdigest())


@pytest.fixture(autouse=True, scope="module")
def _no_pauses():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downloads, "BACKOFF_S", 1e-5)
        yield


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "data.bin").write_bytes(DATA)
    with serving(folder) as running:
        yield running


@pytest.fixture
def target(tmp_path):
    return tmp_path / "work" / "data.bin"


class Fetch:
    """One run of a command that fetches the file, as a manifest describes what the server has."""

    def __init__(self, server, target, checksum=None, size=None):
        data = (server.folder / "data.bin").read_bytes()
        checksum = checksum or Checksum("sha256", hashlib.sha256(data).hexdigest())
        file = RemoteFile("data.bin", f"{server.url}/data.bin", len(data) if size is None else size, checksum)
        self.said, self.counted = [], 0
        self.before = arrived(file, target)
        with Downloader(self.said.append) as downloader:
            downloader.fetch(file, target, self.count)

    def count(self, number):
        self.counted += number


def leftovers(target):
    return sorted(path.name for path in target.parent.iterdir())


@pytest.mark.parametrize("checksum", [SHA, GIT], ids=["sha256", "git"])
def test_a_file_is_fetched_once(server, target, checksum):
    assert Fetch(server, target, checksum).counted == len(DATA)
    assert target.read_bytes() == DATA
    assert leftovers(target) == [".data.bin.origin", "data.bin"]
    sent = server.sent
    again = Fetch(server, target, checksum)
    assert (again.before, again.counted) == (len(DATA), 0)
    assert server.sent == sent


def test_an_empty_file(server, target):
    (server.folder / "data.bin").write_bytes(b"")
    Fetch(server, target)
    assert target.read_bytes() == b""


def test_cut_connections_are_continued(server, target):
    server.cut_after = 7_000
    fetch = Fetch(server, target, SHA)
    assert target.read_bytes() == DATA
    assert fetch.counted == len(DATA)
    assert server.sent == len(DATA)
    starts = [int(r.removeprefix("bytes=").split("-")[0]) for r in server.ranges_asked("data.bin")[1:]]
    assert starts == [7_000, 14_000, 21_000, 28_000]


def test_a_server_that_sends_nothing_is_given_up(server, target):
    server.cut_after = 0
    with pytest.raises(DownloadError, match=rf"data\.bin: .* \({downloads.TRIES + 1} tries\)$"):
        Fetch(server, target)
    assert not target.exists()


def begun(server, target, count=9_000):
    """Leaves the first bytes of the file, as a killed run does."""
    server.cut_after, old = count, downloads.TRIES
    downloads.TRIES = 0
    try:
        with pytest.raises(DownloadError):
            Fetch(server, target)
    finally:
        downloads.TRIES, server.cut_after = old, None
    server.asked.clear()


def test_a_later_run_goes_on(server, target):
    begun(server, target)
    sent = server.sent
    fetch = Fetch(server, target)
    assert fetch.before == 9_000
    assert fetch.counted == len(DATA) - 9_000
    assert server.sent - sent == len(DATA) - 9_000
    assert target.read_bytes() == DATA


def test_a_file_that_changed_between_runs_starts_anew(server, target):
    begun(server, target)
    changed = DATA[::-1]
    (server.folder / "data.bin").write_bytes(changed)
    fetch = Fetch(server, target)
    assert fetch.before == 0
    assert any("what is here is of another file" in line for line in fetch.said)
    assert target.read_bytes() == changed


def test_a_finished_file_that_changed_is_fetched_again(server, target):
    Fetch(server, target)
    (server.folder / "data.bin").write_bytes(DATA[::-1])
    assert Fetch(server, target).counted == len(DATA)
    assert target.read_bytes() == DATA[::-1]


def test_a_file_of_another_size_than_announced_is_refused(server, target):
    for size in (len(DATA) + 1, len(DATA) - 1):
        with pytest.raises(DownloadError, match=rf"it has 30000 bytes, not the {size} bytes that were announced"):
            Fetch(server, target, size=size)
    server.lengths = False
    with pytest.raises(DownloadError, match=r"it is longer, not the 29999 bytes that were announced"):
        Fetch(server, target, size=len(DATA) - 1)
    assert not target.exists()


def test_a_server_without_ranges_starts_anew_and_says_so(server, target):
    begun(server, target)
    server.ranges = False
    fetch = Fetch(server, target)
    assert any("cannot go on in the middle of a file" in line for line in fetch.said)
    assert target.read_bytes() == DATA
    assert fetch.counted == len(DATA) - 9_000


def test_a_server_without_ranges_that_cuts_is_given_up(server, target):
    server.ranges, server.cut_after = False, 9_000
    with pytest.raises(DownloadError, match=r"tries\); what has arrived is kept"):
        Fetch(server, target)


def test_going_back_and_forth_is_no_progress(server, target, monkeypatch):
    server.ranges, server.cut_after = False, 9_000
    places = itertools.cycle([5_000, 9_000])
    monkeypatch.setattr(downloads.time, "sleep", lambda seconds: setattr(server, "cut_after", next(places)))
    with pytest.raises(DownloadError, match="tries"):
        Fetch(server, target)


def test_more_than_the_file_on_disk_starts_anew(server, target):
    begun(server, target)
    partial = target.with_name(".data.bin.partial")
    partial.write_bytes(DATA + DATA)
    Fetch(server, target)
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("checksum", [SHA, Checksum("git", "ab" * 20)], ids=["sha256", "git"])
def test_a_wrong_checksum_deletes_what_came(server, target, checksum):
    (server.folder / "data.bin").write_bytes(DATA[:-1] + b"x")
    with pytest.raises(DownloadError, match=rf"has {checksum.kind} \w+ instead of {checksum.value}; it was deleted"):
        Fetch(server, target, checksum)
    assert leftovers(target) == []


def test_damage_to_what_had_arrived_is_noticed(server, target):
    """The twin of continuing: a part that is not the file's start must not pass."""
    begun(server, target)
    partial = target.with_name(".data.bin.partial")
    Fetch(server, target.with_name("other.bin"), SHA)
    partial.write_bytes(b"x" + partial.read_bytes()[1:])
    with pytest.raises(DownloadError, match="instead of"):
        Fetch(server, target, SHA)
    assert not target.exists()
    assert not partial.exists()


def test_errors_that_pass_are_tried_again(server, target):
    server.failures = [503, 429, 500]
    Fetch(server, target)
    assert target.read_bytes() == DATA


@pytest.mark.parametrize(
    ("status", "message"), [(404, "HTTP 404$"), (401, "it needs a token"), (403, "access to it must be granted")]
)
def test_errors_that_stay_are_said_at_once(server, target, status, message):
    server.failures = [status]
    with pytest.raises(DownloadError, match=message):
        Fetch(server, target)
    assert len(server.asked) == 1


def test_a_wrong_range_is_never_stitched_in(server, target):
    begun(server, target)
    server.shift = 5
    with pytest.raises(DownloadError, match="asked for bytes from 9000 on, it answered 206"):
        Fetch(server, target)
    server.shift = 0
    Fetch(server, target)
    assert target.read_bytes() == DATA


def test_a_small_file_is_read_at_once(server):
    server.failures = [503]
    with Downloader(print) as downloader:
        assert downloader.read(f"{server.url}/data.bin") == DATA
        with pytest.raises(DownloadError, match=r"gone\.bin: HTTP 404"):
            downloader.read(f"{server.url}/gone.bin")


def test_a_server_that_is_not_there(target):
    with Downloader(print) as downloader, pytest.raises(DownloadError, match="tries"):
        downloader.read("http://127.0.0.1:9/data.bin")
    with Downloader(print) as downloader, pytest.raises(DownloadError, match="ftp://"):
        downloader.read("ftp://127.0.0.1/data.bin")


def test_a_silent_server_counts_as_cut(server, target, monkeypatch):
    monkeypatch.setattr(downloads, "STALL_S", 0.1)
    monkeypatch.setattr(downloads, "TRIES", 1)
    server.pause = 2.0
    started = time.monotonic()
    with pytest.raises(DownloadError, match="ReadTimeout"):
        Fetch(server, target)
    assert time.monotonic() - started < 1.5
    assert arrived(RemoteFile("data.bin", "", len(DATA), SHA), target) == 0


def test_a_server_that_says_no_size_may_send_what_was_announced(server, target):
    server.lengths = server.ranges = False
    Fetch(server, target)
    assert target.read_bytes() == DATA


def test_a_full_disk_keeps_what_has_arrived(server, target, monkeypatch):
    add = downloads._Transfer.add

    def full(transfer, block):
        room = 9_000 - transfer.offset
        add(transfer, block[:room])
        if len(block) > room:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(downloads._Transfer, "add", full)
        with pytest.raises(DownloadError, match=r"cannot be written .*No space left on device.*; what has arrived"):
            Fetch(server, target)
    assert Fetch(server, target).before == 9_000
    assert target.read_bytes() == DATA


def test_the_rate_is_measured(server):
    (server.folder / "large.bin").write_bytes(bytes(1 << 20))
    with Downloader(print) as downloader:
        large = RemoteFile("large.bin", f"{server.url}/large.bin", 1 << 20, SHA)
        assert downloader.rate(large) > 1e6
        assert downloader.rate(RemoteFile("data.bin", f"{server.url}/data.bin", len(DATA), SHA)) is None
        server.failures = [500]
        assert downloader.rate(large) is None


RUN = st.fixed_dictionaries(
    {
        "cut_after": st.one_of(st.none(), st.integers(0, len(DATA))),
        "cuts": st.integers(0, 4),
        "ranges": st.booleans(),
        "versions": st.booleans(),
        "failures": st.lists(st.sampled_from([429, 500, 503]), max_size=3),
        "content": st.sampled_from([DATA, DATA[::-1], DATA + b"more", DATA[:-9]]),
    }
)


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("faults")) as running:
        yield running


@settings(max_examples=12)
@given(runs=st.lists(RUN, min_size=1, max_size=3))
def test_whatever_fails_in_whatever_order_nothing_wrong_gets_the_name(shared_server, runs):
    server, target = shared_server, shared_server.folder / "work" / "data.bin"
    for run in [*runs, {**runs[-1], "cut_after": None, "failures": []}]:
        (server.folder / "data.bin").write_bytes(run["content"])
        for name, value in run.items():
            setattr(server, name, list(value) if name == "failures" else value)
        try:
            Fetch(server, target)
        except DownloadError:
            continue
        assert target.read_bytes() == run["content"]
    assert target.read_bytes() == runs[-1]["content"]
    shutil.rmtree(target.parent)


SCRIPT = """
import sys
from pathlib import Path
from rpl.retrieval.fetching.downloads import Checksum, Downloader, RemoteFile
url, target, size, checksum = sys.argv[1:]
with Downloader(print) as downloader:
    file = RemoteFile("data.bin", url, int(size), Checksum("sha256", checksum))
    downloader.fetch(file, Path(target), lambda n: None)
"""


def test_a_killed_process_is_continued(server, target):
    server.pause = 0.05
    arguments = [f"{server.url}/data.bin", str(target), str(len(DATA)), SHA.value]
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments])
    partial = target.with_name(".data.bin.partial")
    deadline = time.monotonic() + 20
    while not (partial.exists() and partial.stat().st_size >= 5_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    server.pause = 0.0
    there = partial.stat().st_size
    assert 5_000 <= there < len(DATA)
    assert not target.exists()
    fetch = Fetch(server, target)
    assert fetch.before == there
    assert fetch.counted == len(DATA) - there
    assert target.read_bytes() == DATA
