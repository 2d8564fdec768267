"""Whether descriptors are ours still is told from what the kernel calls them, and not from their numbers."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from queue_workflows.db.connections import descriptors
from queue_workflows.db.connections.descriptors import MarkedSocket


@pytest.fixture(params=["with cookies", "without"])
def marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MarkedSocket:
    """As on Linux, and as on a kernel that does not know the option."""
    if request.param == "without":
        monkeypatch.setattr(descriptors, "_SO_COOKIE", 0xFFFF)
    return MarkedSocket()


def _number(marked: MarkedSocket) -> int:
    return marked._socket.fileno()


def test_a_marked_socket_is_ours(marked: MarkedSocket) -> None:
    """As long as nobody closes it."""
    assert marked.is_ours()
    assert marked.is_ours()


def test_a_closed_one_is_not(marked: MarkedSocket) -> None:
    """Its number stands for nothing."""
    os.close(_number(marked))
    assert not marked.is_ours()


@pytest.mark.parametrize(
    "other",
    [
        lambda path: os.open(path / "file", os.O_RDWR | os.O_CREAT),
        lambda path: os.pipe()[0],
        lambda path: socket.socket(socket.AF_UNIX).detach(),
        lambda path: socket.socketpair()[0].detach(),
    ],
    ids=["file", "pipe", "socket", "connected"],
)
def test_another_in_its_place_is_not(
    marked: MarkedSocket, tmp_path: Path, other: Callable[[Path], int]
) -> None:
    """Whatever it is; and it is left open when the one that was marked goes."""
    number, made = _number(marked), other(tmp_path)
    os.dup2(made, number)
    os.close(made)
    assert not marked.is_ours()
    del marked
    os.close(number)


def test_one_that_goes_closes(marked: MarkedSocket) -> None:
    """It leaves no descriptor behind."""
    marked = MarkedSocket()
    number = _number(marked)
    del marked
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_a_socket_whose_marking_is_interrupted_goes_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal that ends a process may come then, and its last words are its own."""
    unraised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)

    def interrupted(*_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(descriptors, "Descriptors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        descriptors.MarkedSocket()
    gc.collect()
    assert unraised == []
