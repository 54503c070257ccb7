"""Signals that ask a process to end: raised at once, deferred to a safe point, or granted when the process hangs."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from patience import patience

from rpl.core import signals


def run(program):
    """What a process of a program that owns its signals writes, and how it ends."""
    script = "import os, signal, time\nfrom rpl.core import signals\n" + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=patience(60))


def test_a_signal_raises_at_once_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with signals.owned(), pytest.raises(signals.Stopped) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.status(stop.value.number) == 143
    assert signal.getsignal(signal.SIGTERM) == before
    assert signals.requested() is None


def test_a_deferred_signal_waits_for_the_safe_point():
    with signals.owned():
        signals.defer(True)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # groups and launchers pass a signal on twice
        assert signals.requested() == signal.SIGINT
        with pytest.raises(signals.Stopped):
            signals.check()


def test_a_repeated_signal_does_not_wait(monkeypatch):
    monkeypatch.setattr(signals, "REPEAT_S", 0.2)
    with signals.owned():
        signals.defer(True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
        with pytest.raises(signals.Stopped):
            again()


def again():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def test_a_main_thread_that_hangs_in_a_call_is_ended_with_its_line_and_status():
    # The main thread does not end by itself, so that the thread must.
    done = run("""
        import threading
        signals.GRACE_S = 0.2
        with signals.owned(lambda: "go on with: x"):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
            try:
                time.sleep(600)
            except signals.Stopped:
                time.sleep(600)  # cleaning up hangs
    """)
    assert done.returncode == 143
    assert done.stderr == "rpl: stopped by SIGTERM; go on with: x\n"


def test_what_is_ignored_stays_ignored():
    done = run("""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with signals.owned():
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.1)
            print("alive")
    """)
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_a_forked_process_has_signals_of_its_own():
    done = run("""
        with signals.owned():
            child = os.fork()
            if child == 0:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(0)
            _, ended = os.waitpid(child, 0)
            time.sleep(0.3)
            print(os.waitstatus_to_exitcode(ended), signals.requested())
    """)
    assert done.stdout == "-15 None\n"
