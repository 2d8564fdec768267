"""The file in which a process announces the status that it is about to end with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from queue_workflows.host.processes.last_word import PIPE, Announcer, LastWord

ALL_STATUSES = range(256)


Take = Callable[[LastWord], Announcer]


@pytest.fixture
def word() -> LastWord:
    return LastWord()


@pytest.fixture
def announcer_of() -> Iterator[Take]:
    """As a child takes its end, which here is this process."""
    taken = []

    def take(word: LastWord) -> Announcer:
        taken.append(os.dup(word.fd))
        word.handed_over()
        environ = {PIPE: str(taken[-1])}
        announcer = Announcer(environ)
        assert environ == {}
        return announcer

    yield take
    for fd in taken:
        with suppress(OSError):
            os.close(fd)


@pytest.mark.parametrize("status", ALL_STATUSES)
def test_only_what_was_announced_is_believed(word: LastWord, announcer_of: Take, status: int) -> None:
    """By this process, and no other status of it; whether it was asked before makes no difference."""
    pid = os.getpid()
    announcer = announcer_of(word)
    assert not word.announced(pid, status)
    announcer.announce(status)
    assert [other for other in ALL_STATUSES if word.announced(pid, other)] == [status]
    assert not word.announced(pid + 1, status)
    assert not word.announced(pid, -status or -1)


def test_a_forked_child_announces_nothing(word: LastWord, announcer_of: Take) -> None:
    """It is not the process that the supervisor waits for."""
    announcer = announcer_of(word)
    if (child := os.fork()) == 0:
        announcer.announce(0)
        os._exit(0)
    os.waitpid(child, 0)
    assert not any(word.announced(pid, 0) for pid in (child, os.getpid()))


def test_a_file_that_has_its_number_by_now_is_left_alone(tmp_path: Path) -> None:
    """A job that closes descriptors which are not its own makes an announcement impossible, no more."""
    word = LastWord()
    fd = os.dup(word.fd)
    word.handed_over()
    announcer = Announcer({PIPE: str(fd)})
    os.close(fd)
    assert not announcer.has_file
    file = os.open(tmp_path / "of_a_job", os.O_RDWR | os.O_CREAT)
    os.dup2(file, fd)
    announcer.announce(0)
    assert not announcer.has_file
    assert not word.announced(os.getpid(), 0)
    assert (tmp_path / "of_a_job").read_bytes() == b""
    for each in {file, fd}:
        os.close(each)


def test_what_a_job_starts_has_no_part_in_it(word: LastWord, announcer_of: Take) -> None:
    """Neither its number nor the pipe itself, but an exec of our own hands both on."""
    announcer = announcer_of(word)
    (fd,) = {announcer._fd}
    assert not os.get_inheritable(fd)
    environ: dict[str, str] = {}
    announcer.hand_on(environ)
    assert environ == {PIPE: str(fd)}
    assert os.get_inheritable(fd)


@pytest.mark.parametrize("given", ["", "x", "-1", "99999", "9" * 30])
def test_without_a_supervisor_it_is_told_to_nobody(given: str) -> None:
    """Also where something strange stands in the environment."""
    announcer = Announcer({PIPE: given})
    announcer.announce(0)
    assert not announcer.has_file


def test_a_supervisor_that_is_gone_is_told_nothing(announcer_of: Take) -> None:
    """A broken pipe keeps nothing from its end."""
    word = LastWord()
    announcer = announcer_of(word)
    del word
    announcer.announce(0)


def test_what_each_thread_began_last_is_known(word: LastWord, announcer_of: Take) -> None:
    """Its place holds the job until the next; where one has no place, nothing is known of any."""
    announcer = announcer_of(word)
    assert word.begun() == frozenset()
    for place, job_id in ((0, 7), (1, 2**63 - 1), (0, 8)):
        announcer.begins(place, job_id)
    assert word.begun() == {8, 2**63 - 1}
    announcer.begins(10_000, 9)
    assert word.begun() == frozenset()


def test_what_had_begun_is_told_at_the_end(word: LastWord, announcer_of: Take) -> None:
    """Beside what the threads began last; nothing is known where there are too many to say."""
    announcer = announcer_of(word)
    announcer.begins(0, 7)
    announcer.have_begun([5, 6])
    assert word.begun() == {5, 6, 7}
    announcer.have_begun(range(1, 10_000))
    assert word.begun() == frozenset()
