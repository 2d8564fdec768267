"""Lines out of a pipe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from queue_workflows.engine.operate.import_file import Batch, batches_of, lines_of
from queue_workflows.engine.operate.piped_lines import PipedLines
from queue_workflows.errors import LineRefused


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def test_lines_as_a_file_has_them_and_a_word_of_a_pause(pipe):
    """Also when they come in pieces, or without an end."""
    readable, writable = pipe
    lines = PipedLines(readable, pause_s=0)
    assert lines.readline(10) is None
    os.write(writable, b"one\ntw")
    assert [lines.readline(10), lines.readline(10)] == [b"one\n", None]
    os.write(writable, b"o\n\nthree")
    os.close(writable)
    assert [lines.readline(10) for _ in range(5)] == [b"two\n", b"\n", b"three", b"", b""]


def test_a_long_line_comes_in_parts(pipe):
    """Of the limit's length at most."""
    readable, writable = pipe
    os.write(writable, b"0123456789abc\nx\n")
    os.close(writable)
    lines = PipedLines(readable, pause_s=0)
    assert [lines.readline(5) for _ in range(5)] == [b"01234", b"56789", b"abc\n", b"x\n", b""]


def test_a_line_that_is_too_long_is_read_past(pipe):
    """With one byte too many, so that it is seen for what it is; the next has the next number."""
    readable, writable = pipe
    os.write(writable, b"x" * 40 + b"\n" + b"y" * 10 + b"\n" + b"z" * 50)
    os.close(writable)
    found = list(lines_of(PipedLines(readable, pause_s=0).readline, longest=11))
    assert found == [(1, b"x" * 12), (2, b"y" * 10 + b"\n"), (3, b"z" * 12)]


def test_a_pause_ends_a_batch():
    """Be it empty, so that nobody waits for the next."""
    lines = iter([(1, b"a\n"), (2, b" \n"), None, None, (3, b"b")])
    batches = list(batches_of(lines, lambda number, text: (number, text), skip=None))
    assert batches == [
        Batch(line=2, lines=2, bytes=4, rows=[(1, b"a\n")]),
        Batch(line=2),
        Batch(line=3, lines=1, bytes=1, rows=[(3, b"b")]),
    ]


def test_what_cannot_be_read_ends_it_after_what_could():
    """The batch of what came before is handed out first."""

    def lines() -> Iterator[tuple[int, bytes]]:
        yield 1, b"a"
        raise LineRefused(2, "the disk is gone")

    batches = batches_of(lines(), lambda number, text: (number, text), skip=lambda _: None)
    assert next(batches).rows == [(1, b"a")]
    with pytest.raises(LineRefused, match="line 2: the disk is gone"):
        next(batches)
