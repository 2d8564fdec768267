"""What shows that a background hook is ready, and what does not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queue_workflows.errors import HookError, PluginConfigError
from queue_workflows.hooks.plugin_config import read_plugin_config
from queue_workflows.hooks.readiness import Readiness, Watch


def watch(directory: Path, values: dict[str, Any] | None = None, **ready: Any) -> Watch:
    printed = (directory / "out", directory / "err")
    for path in printed:
        path.touch()
    return Watch(
        Readiness(**ready),
        plugin="listen",
        directory=directory,
        printed=printed,
        beneath=directory,
        values=values or {},
    )


def becomes_ready(watching: Watch, *turns: Any) -> int:
    """After how many turns it is ready; each is taken when it has been looked and nothing was there."""
    taken: Iterator[Any] = iter(turns)
    count = 0

    def ends(_seconds: float) -> bool:
        nonlocal count
        count += 1
        return bool(next(taken)())

    assert watching.until_ready(ends)
    return count


def test_a_file_that_was_there_before_has_to_be_written_again(tmp_path: Path) -> None:
    """An earlier attempt left it."""
    (tmp_path / "up").write_text("first")
    watching = watch(tmp_path, file="up")
    new = tmp_path / "new"
    turns = [lambda: None, lambda: new.write_text("") or None, lambda: new.rename(tmp_path / "up") and None]
    assert becomes_ready(watching, *turns) == 3


def test_a_link_out_of_the_directory_is_no_file_of_the_hook(tmp_path: Path) -> None:
    """It is what lies there that counts, and a way through a link leads nowhere."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "up").touch()
    watching = watch(inner, file="sub/up", within_s=0.05)
    (inner / "sub").symlink_to(tmp_path / "elsewhere")
    assert not watching.until_ready(lambda _seconds: False)


def test_a_line_counts_when_it_is_whole(tmp_path: Path) -> None:
    """On either stream, in however many pieces it comes."""

    def say(name: str, words: str) -> None:
        with (tmp_path / name).open("a") as file:
            file.write(words)

    watching = watch(tmp_path, line="^up at [0-9]+$")
    turns = [lambda: say("err", "up at 8"), lambda: say("out", "coming up\n"), lambda: say("err", "0\n")]
    assert becomes_ready(watching, *turns) == 3


def test_a_line_of_a_file_counts_when_it_is_there(tmp_path: Path) -> None:
    """However the file came to have it, and not what it had before the hook began."""
    state = tmp_path / "state"
    state.write_text('{"status": "ready"}')
    watching = watch(tmp_path, file="state", line='"status": "ready"')
    turns = [
        lambda: state.write_text('{"status": "starting"}') and None,
        lambda: state.write_text('{\n  "status": "re') and None,
        lambda: state.write_text('{\n  "status": "ready"\n}') and None,
    ]
    assert becomes_ready(watching, *turns) == 3


def test_one_that_ends_is_waited_for_no_longer(tmp_path: Path) -> None:
    """Its end says what became of it."""
    assert watch(tmp_path, file="up").until_ready(lambda _seconds: True) is None


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_a_return_ends_a_line(tmp_path: Path, end: str) -> None:
    """Alone, as where a terminal is written to, or before the line's end, as other systems write it."""
    watching = watch(tmp_path, line="^up$")
    assert becomes_ready(watching, lambda: (tmp_path / "out").write_text(f"coming{end}up{end}") < 0) == 1


def test_a_port_is_one_that_somebody_listens_at(tmp_path: Path) -> None:
    """By number, or by the name of a value."""
    for name in (None, "LISTEN_PORT"):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            port = server.getsockname()[1]
            watching = watch(tmp_path, {"LISTEN_PORT": port}, port=name or port)
            assert becomes_ready(watching, lambda: None, lambda listens=server: listens.listen()) == 2
    assert not watch(tmp_path, port=port, within_s=0.05).until_ready(lambda _seconds: False)


def test_a_port_that_is_open_already_is_refused(tmp_path: Path) -> None:
    """It is another process's, and says nothing of this hook."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(HookError, match=f"plugin listen: port {port}, .* is a taken port: another"):
            watch(tmp_path, port=port)


def test_a_value_that_is_no_port_is_refused(tmp_path: Path) -> None:
    """With the plugin and the key."""
    with pytest.raises(PluginConfigError, match="plugin listen, LISTEN_PORT: is None, and x-ready takes it"):
        watch(tmp_path, port="LISTEN_PORT")


@pytest.mark.parametrize(
    "ready",
    [
        {"file": "a/b"},
        {"file": "a", "line": "^x"},
        {"line": "^x", "within_s": 5},
        {"port": 9222, "within_s": 0.5},
        {"port": "A_PORT"},
    ],
)
def test_what_a_plugin_says_is_read(ready: dict[str, Any]) -> None:
    """One of three signs, and its time."""
    assert read_plugin_config("listen", {"x-ready": ready}).ready == Readiness(**ready)
    assert read_plugin_config("listen", {}).ready is None


@pytest.mark.parametrize(
    "ready",
    [
        None,
        {},
        {"file": "a", "port": 1},
        {"line": "a", "port": 1},
        {"file": "a", "line": "a", "port": 1},
        {"file": "a", "colour": "red"},
        {"file": "../a"},
        {"file": "/a"},
        {"file": "a\0"},
        {"line": "("},
        {"line": ""},
        {"port": 0},
        {"port": True},
        {"port": 70_000},
        {"port": "1 2"},
        {"file": "a", "within_s": 0},
        {"file": "a", "within_s": True},
        {"file": "a", "within_s": 7_200},
    ],
)
def test_what_makes_no_sense_is_refused(ready: object) -> None:
    """With the key, before a hook runs."""
    with pytest.raises(PluginConfigError, match="plugin listen, x-ready: must have"):
        read_plugin_config("listen", {"x-ready": ready})
