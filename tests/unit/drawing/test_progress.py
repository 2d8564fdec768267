"""The line that says how far a command is."""

from __future__ import annotations

import io
import sys
import threading

import click
import pytest

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.progress import Progress


class Screen(io.StringIO):
    """A terminal of eighty columns."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


def progress(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO | None, clock: list[float], **environ: str):
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("COLUMNS", "80")
    return Progress({"LC_ALL": "C.UTF-8", **environ}, now=lambda: clock[0])


def test_it_is_drawn_in_one_place_and_taken_away(monkeypatch, clock):
    """With what is left, no oftener than ten times a second; a remark stands above it."""
    screen = Screen()
    tell = progress(monkeypatch, screen, clock)
    for share in (0.1, 0.2, 0.25, 0.5):
        clock[0] += 0.06
        tell(share, "words")
    tell.say("a remark")
    tell.done()
    line = "\r\x1b[K{}"
    assert screen.getvalue() == "".join(
        [
            line.format("███░░░░░░░░░░░░░  20%  words, 0s left"),
            line.format("████████░░░░░░░░  50%  words, 0s left"),
            line.format("a remark\n"),
        ]
    )


def test_it_fits_its_line(monkeypatch, clock):
    """Or it could not be taken away."""
    screen = Screen()
    tell = progress(monkeypatch, screen, clock)
    clock[0] = 9
    tell(None, "x" * 200)
    assert screen.getvalue() == f"\r\x1b[K{'x' * 78}…"


@pytest.mark.parametrize("dumb", [True, False])
def test_elsewhere_it_is_told_now_and_then(monkeypatch, clock, dumb):
    """A plain line every ten seconds; so too on a terminal that cannot erase one."""
    stream = Screen() if dumb else io.StringIO()
    tell = progress(monkeypatch, stream, clock, TERM="dumb" if dumb else "xterm")
    for second in range(25):
        clock[0] = second
        tell(0.5, f"second {second}")
    tell.done()
    assert stream.getvalue() == "50%  second 10\n50%  second 20\n"


def test_nobody_need_be_there(monkeypatch, clock):
    """A closed stderr."""
    tell = progress(monkeypatch, None, clock)
    clock[0] = 99
    tell(0.5, "words")
    tell.say("a remark")
    tell.done()


def test_of_a_quiet_command_no_thread_shows_any(monkeypatch, clock):
    """A thread that is handed it has no command line of its own."""
    screen = Screen()
    with click.Context(click.Command("import"), obj=Invocation(quiet=True)):
        tell = progress(monkeypatch, screen, clock)

    def work() -> None:
        clock[0] = 9
        tell(0.5, "words")
        tell.say("a remark")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert screen.getvalue() == ""
