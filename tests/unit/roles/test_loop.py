"""The loop of every role: ticks, waits, and the signals that end it."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from queue_workflows.errors import ExitCode
from queue_workflows.host.processes.harden import ENDING
from queue_workflows.host.processes.unwind import Unwinding
from queue_workflows.roles import loop
from queue_workflows.roles.loop import Halt, Urgency, Waiter


def test_a_loop_waits_for_what_its_tick_says_until_it_says_none():
    """A delay that has passed already is no wait."""
    delays = iter([1.5, -3.0, 0.25, None])
    waited: list[float] = []
    loop.run(lambda: next(delays), waited.append)
    assert waited == [1.5, 0.0, 0.25]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, ExitCode.TERMINATED),
        (signal.SIGHUP, ExitCode.TERMINATED),
        (signal.SIGINT, ExitCode.INTERRUPTED),
    ],
)
def test_the_first_signal_is_graceful_the_second_is_at_once(number, code):
    """Each rings; a third one changes nothing, and the handlers before come back."""
    rung: list[Urgency] = []
    halt = Halt(lambda: rung.append(halt.urgency))
    before = signal.getsignal(number)
    with halt.on_signals():
        signal.raise_signal(number)
        assert (halt.urgency, halt.by, halt.exit_code) == (Urgency.GRACEFUL, number, ExitCode.DONE)
        signal.raise_signal(number)
        assert (halt.urgency, halt.exit_code) == (Urgency.AT_ONCE, code)
        signal.raise_signal(number)
    assert rung == [Urgency.GRACEFUL, Urgency.AT_ONCE, Urgency.AT_ONCE]
    assert signal.getsignal(number) is before


class Stop(KeyboardInterrupt):
    """What the handler of a command line raises."""


def test_a_stop_that_was_asked_for_before_and_got_lost_ends_the_role_as_it_begins():
    """Also where whoever has caught it keeps it; the handlers stay those that were there."""
    before = signal.getsignal(signal.SIGTERM)
    unwinding = Unwinding()
    try:
        with pytest.raises(Stop) as caught:
            unwinding.begin(Stop)
        with pytest.raises(Stop) as again, Halt(lambda: None).on_signals():
            pytest.fail("the role began")
    finally:
        unwinding.end()
    assert again.value is not caught.value
    assert signal.getsignal(signal.SIGTERM) is before


def test_who_was_started_deaf_to_the_terminal_stays_so():
    """`nohup` ignores SIGHUP for us, a shell's `&` SIGINT; SIGTERM is heard in any case."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        halt = Halt(lambda: None)
        with halt.on_signals():
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGINT)
            assert halt.urgency is Urgency.NONE
            signal.raise_signal(signal.SIGTERM)
            assert halt.urgency is Urgency.GRACEFUL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_ring_ends_the_present_or_the_next_wait():
    """From a signal handler, from another thread, or from before."""
    with Waiter() as waiter:
        waiter.ring()
        waiter.ring()
        waiter.wait(600)
        started = time.monotonic()
        waiter.wait(0.05)
        assert time.monotonic() - started >= 0.05
        thread = threading.Thread(target=waiter.ring)
        thread.start()
        waiter.wait(600)
        thread.join()
        halt = Halt(waiter.ring)
        with halt.on_signals():
            sender = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGHUP))
            sender.start()
            while halt.urgency is Urgency.NONE:
                waiter.wait(600)
            sender.join()


def test_a_readable_descriptor_calls_who_watches_it_until_it_is_forgotten():
    """Which may be in the call itself."""
    reader, writer = os.pipe()
    called: list[bytes] = []

    with Waiter() as waiter:

        def read() -> None:
            called.append(os.read(reader, 1))
            waiter.forget(reader)

        waiter.watch(reader, read)
        os.write(writer, b"ab")
        waiter.wait(600)
        waiter.wait(0)
    os.close(reader)
    os.close(writer)
    assert called == [b"a"]
