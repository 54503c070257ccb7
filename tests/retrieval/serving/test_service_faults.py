"""Runs on a real server process that breaks: nothing printed then is used; they resume or stop with the cause."""

import json
import signal
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers_server import ServerProcess

from rpl.core.errors import RetrieverError
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.environment.faults import VoidRate
from rpl.retrieval.library.health import HealthConfig
from rpl.retrieval.library_config import LibraryConfig, RemoteConfig

PROGRAM = "for p in bm25(question, k=2):\n    print(p)\n"
QUESTION = "capital of Mongolia"
REMOTE = RemoteConfig(timeout_s=5.0, start_s=60.0)
HASTY = replace(REMOTE, timeout_s=0.5)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    patch = pytest.MonkeyPatch()
    patch.setenv("RPL_HOME", str(folder / "home"))
    process = ServerProcess(folder)
    yield process
    process.kill()
    patch.undo()


@pytest.fixture
def running(server, monkeypatch):
    """The shared server, well again after the test; canary queries are sent once, to be quick."""
    monkeypatch.setattr("rpl.retrieval.library.health.ATTEMPTS", 1)
    yield server
    server.signal(signal.SIGCONT)
    server.mode("ok")


def open_environment(url, wait_s=0.0, remote=REMOTE, **health):
    health = {"canary_every_s": 1e-3, "canary_s": 10.0, "wait_s": wait_s} | health
    config = LibraryConfig(corpus=url, cache_size=0, remote=remote)
    return Environment(EnvironmentConfig(config, workers=1, health=HealthConfig(**health)))


def run(environment):
    (trace,) = environment.executor.run_many([(PROGRAM, QUESTION)])
    return trace


def stops_a_run(trace):
    """The message with which a batch of such rollouts ends a run."""
    with pytest.raises(RetrieverError) as caught:
        VoidRate().check([SimpleNamespace(infra_error=trace.infra_error)])
    return str(caught.value)


def test_a_sound_server_gives_what_a_library_in_this_process_gives(running):
    with (
        open_environment(running.url) as remote,
        Environment(EnvironmentConfig(LibraryConfig(corpus="atlas-mini"), workers=1)) as local,
    ):
        there, here = run(remote), run(local)
        assert (there.observation, there.printed_ids) == (here.observation, here.printed_ids)
        assert there.infra_error is None
        assert remote.library.fingerprint == local.library.fingerprint
        assert [c.result_ids for c in there.calls] == [c.result_ids for c in here.calls]


@pytest.mark.parametrize(
    ("mode", "cause"),
    [
        ("slow", "did not answer within 0.5 s"),
        ("garbage", "not JSON: b'<html>bad gateway"),
        ("error", "HTTP 500: <html>bad gateway"),
        ("empty", "bm25 found nothing, and canary queries fail: 0 of 8 passages found by their own text"),
        ("wrong", "bm25 fails its canary queries: 0 of 8 passages found by their own text"),
    ],
)
def test_answers_that_cannot_be_trusted_void_and_name_the_cause(running, mode, cause):
    with open_environment(running.url) as environment:
        assert run(environment).infra_error is None
        running.mode(mode)
        client = environment.library.client
        client._config = HASTY if mode == "slow" else REMOTE
        trace = run(environment)
        assert (trace.printed_ids, trace.observation) == ((), "")
        assert cause in stops_a_run(trace)
        running.mode("ok")
        client._config = REMOTE
        assert run(environment).infra_error is None


def test_wrong_answers_between_two_canary_queries_are_found_before_rollouts_are_used(running):
    with open_environment(running.url, canary_every_s=1e6, wait_s=30.0) as environment:
        assert run(environment).infra_error is None
        assert environment.executor.verify() is None
        running.mode("wrong")
        assert run(environment).printed_ids == ("x",)
        threading.Timer(1.0, running.mode, ["ok"]).start()
        assert "canary queries: 0 of 8" in environment.executor.verify()  # it waited, and says what to throw away
        assert run(environment).printed_ids != ("x",)
        assert environment.executor.verify() is None


def test_a_hung_server_voids_and_one_that_goes_on_lets_the_run_resume(running, capsys):
    with open_environment(running.url, canary_every_s=1e6, wait_s=30.0) as environment:
        wanted = run(environment)
        environment.library.client._config = replace(REMOTE, timeout_s=1.0)
        running.signal(signal.SIGSTOP)
        timer = threading.Timer(6.0, running.signal, [signal.SIGCONT])
        timer.start()
        trace = run(environment)
        timer.join()
        assert trace.infra_error is None  # the run paused, and the program ran again
        assert trace.observation == wanted.observation
        assert "the run pauses" in capsys.readouterr().err
        running.signal(signal.SIGSTOP)
        with (
            open_environment(running.url, remote=replace(REMOTE, timeout_s=0.3, start_s=0.0)) as other,
            pytest.raises(RetrieverError, match=r"did not answer within 0\.3 s"),
        ):
            _ = other.executor  # a run does not even begin


@pytest.mark.slow
def test_a_server_that_is_killed_comes_back_and_comes_back_with_another_index(server, tmp_path):
    processes = [ServerProcess(tmp_path)]
    port = processes[0].port
    other = tmp_path / "other.jsonl"
    lines = [{"id": f"n{i}", "title": f"Ulaanbaatar {i}", "text": f"capital number {i}"} for i in range(9)]
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        with open_environment(processes[0].url, wait_s=0.3) as environment:
            wanted = run(environment)
            processes[0].kill()
            message = stops_a_run(run(environment))
            assert "retrieval did not come back within" in message
            assert "refused" in message
            watch = environment.executor._watch
            watch.config = replace(watch.config, wait_s=60.0)
            assert "come back" not in run(environment).infra_error  # after a wait in vain it does not wait again
            environment.executor._gave_up = False
            back = threading.Thread(target=lambda: processes.append(ServerProcess(tmp_path, port=port)))
            back.start()
            trace = run(environment)
            back.join()
            assert (trace.infra_error, trace.observation) == (None, wanted.observation)
            processes[-1].kill()
            processes.append(ServerProcess(tmp_path, other, port=port))
            with open_environment(processes[-1].url):  # returns when the other index is loaded
                watch.config = replace(watch.config, wait_s=0.0)
                trace = run(environment)
            assert "serves another index than when the run began" in stops_a_run(trace)
            assert trace.printed_ids == ()
        processes[-1].end()  # told to stop, it ends its work and stops
    finally:
        for process in processes:
            process.kill()
