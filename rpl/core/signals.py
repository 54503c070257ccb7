"""Handles the signals that ask a process to end (SIGTERM, SIGINT or Ctrl-C, SIGHUP) in one place.

A signal raises `Stopped` in the main thread, except while a training run defers it: then it is a request, which the run
grants where all of its processes can write a checkpoint together. No handler does more than that. A thread hears of a
signal at once, even while the main thread waits in a collective, and ends a process that does not end by itself.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rpl.core.progress import say

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GRACE_S = 5.0
"""Seconds that a process has to end once it must end at once."""
REPEAT_S = 3.0
"""A signal that comes again within this time is the same request: launchers and groups pass signals on twice."""


class Stopped(BaseException):
    """A signal ended the work. It is no `Exception`, so that nothing that handles failures takes it for one.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Owner:
    """The state of a process while its signals are owned."""

    def __init__(self) -> None:
        self.requested: int | None = None
        self.asked_at = 0.0
        self.deferring = self.at_once = self.raised = self.said = False
        self.quiet = self.silent_status = False
        self.resume_from: str | None = None
        self.children: Callable[[], Iterable[Any]] = tuple
        self.advice: Callable[[], str] = str

    def note(self, number: int) -> None:
        """Takes a request in; one that is repeated must be granted at once."""
        now = time.monotonic()
        if self.requested is None:
            self.requested, self.asked_at = number, now
        elif now - self.asked_at > REPEAT_S and not self.at_once:
            self.at_once = True
            _tell_main_thread(number)

    def handle(self, number: int, frame: Any) -> None:
        """What Python calls in the main thread."""
        if self.requested is None:
            self.note(number)
        if self.deferring and not self.at_once:
            if not self.said and not self.quiet:
                name = signal.Signals(number).name
                say(f"{name}: the run ends after this iteration, with a checkpoint (at once if the signal is repeated)")
            self.said = True
        elif not self.raised:
            self.raised = True
            raise Stopped(number)

    def watch(self, pipe: int) -> None:
        """Ends the process when the main thread does not, for as long as the pipe is open."""
        deadline = None
        while True:
            ready, _, _ = select.select([pipe], [], [], 0.2 if self.requested is not None else None)
            if ready:
                numbers = os.read(pipe, 64)
                if not numbers or 0 in numbers:
                    return
                for number in numbers:
                    if number in HANDLED:
                        self.note(number)
            if self.requested is None or (self.deferring and not self.at_once):
                deadline = None
                continue
            deadline = deadline or time.monotonic() + GRACE_S
            if time.monotonic() > deadline:
                self.end()

    def end(self) -> None:
        """Ends this process and those that it started, without asking the main thread."""
        if not self.quiet:
            say(describe(self.requested or signal.SIGTERM))
        for child in self.children():
            with suppress(OSError):
                child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status(self.requested or signal.SIGTERM))


_owner: _Owner | None = None


@contextmanager
def owned(advice: Callable[[], str] = str) -> Iterator[None]:
    """Owns the signals of this process inside; does nothing outside of the main thread, or within another `owned`.

    A signal that the process ignores (as under `nohup`) stays ignored.

    Args:
        advice: Says how the work can be gone on with.
    """
    global _owner
    if _owner is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = _owner = _Owner()
    owner.advice = advice
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = {number: signal.getsignal(number) for number in HANDLED}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, owner.handle)
    earlier_fd = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=owner.watch, args=(reading,), name="rpl-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier_fd)
        ending = owner.quiet and owner.requested is not None  # rank 0 may ask once more while this rank ends
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if ending else handler)
        os.write(writing, b"\0")
        thread.join()
        os.close(reading)
        os.close(writing)
        _owner = None


def _after_fork() -> None:
    """A forked process is another one: the signals that it gets are not ours."""
    global _owner
    if _owner is not None:
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            if signal.getsignal(number) == _owner.handle:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        _owner = None


os.register_at_fork(after_in_child=_after_fork)


def requested() -> int | None:
    """The signal that asked this process to end, if one did."""
    return None if _owner is None else _owner.requested


def request(number: int) -> None:
    """Asks this process to end as if it had got the signal; for threads that hear of it from another process."""
    if _owner is not None and _owner.requested is None:
        _owner.note(number)
        _tell_main_thread(number)


def _tell_main_thread(number: int) -> None:
    """Sends the signal to the main thread, which wakes it from a call that waits."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, number)


def defer(on: bool) -> None:
    """Whether signals wait for a safe point (`check`) or raise `Stopped` at once."""
    if _owner is not None:
        _owner.deferring = on


def check(number: int | None = None) -> None:
    """Grants a request that was deferred.

    Args:
        number: The signal that other processes agreed upon; by default that of this process.

    Raises:
        Stopped: There is one.
    """
    if (number := number or requested()) is not None:
        if _owner is not None:
            _owner.requested = _owner.requested or number
            _owner.raised = True
        raise Stopped(number)


def resume_from(checkpoint: str) -> None:
    """Remembers the newest checkpoint, for the message of a run that is stopped."""
    if _owner is not None:
        _owner.resume_from = checkpoint


def newest_checkpoint() -> str | None:
    """What `resume_from` remembered last, if it is still there."""
    checkpoint = None if _owner is None else _owner.resume_from
    return checkpoint if checkpoint is not None and os.path.exists(checkpoint) else None


def one_of_several(rank: int, children: Callable[[], Iterable[Any]]) -> None:
    """Says that this process is one rank of a run; only rank 0 speaks.

    Args:
        rank: Its number.
        children: The processes that it started, as `subprocess.Popen` objects.
    """
    if _owner is not None:
        _owner.quiet, _owner.children = rank != 0, children


def leave_status_to_rank_0() -> None:
    """Lets this process end with status 0 when it is stopped.

    Lightning kills rank 0 when a process that it started ends with another status; rank 0 knows of the stop already.
    """
    if _owner is not None:
        _owner.silent_status = True


def end() -> None:
    """Ends this process and those that it started at once; for threads, when the main thread cannot."""
    if _owner is not None:
        _owner.end()


def end_children() -> None:
    """Ends the processes that this one started: asks them, and kills those that are there after `GRACE_S`."""
    children = [] if _owner is None else [child for child in _owner.children() if child.poll() is None]
    for child in children:
        child.terminate()
    deadline = time.monotonic() + GRACE_S
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    for child in children:
        child.kill()


def describe(number: int) -> str:
    """The line with which a stopped run ends."""
    advice = _owner.advice() if _owner is not None else ""
    return f"stopped by {signal.Signals(number).name}" + (f"; {advice}" if advice else "")


def status(number: int) -> int:
    """The exit status of a process that a signal ended, as shells have it: 128 more than the signal's number."""
    return 0 if _owner is not None and _owner.silent_status else 128 + number


def is_quiet() -> bool:
    """Whether another process speaks for this one."""
    return _owner is not None and _owner.quiet
