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
from queue_workflows.host.commands.output_files import LineWatch


def watch(directory: Path, values: dict[str, Any] | None = None, **ready: Any) -> Watch:
    return Watch(
        Readiness(**ready),
        plugin="listen",
        directory=directory,
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


def test_a_line_counts_when_it_is_whole() -> None:
    """On either stream, in however many pieces it comes; a return ends it as well."""
    seen: list[str] = []
    watching = LineWatch("^up at [0-9]+$", lambda: seen.append("up"))
    out, err = watching.stream(), watching.stream()
    for stream, said in ((err, b"up at 8"), (out, b"coming up\n"), (out, b"up at 9"), (err, b"0 or so\n")):
        assert stream(said)
    assert seen == []
    assert not out(b"\r\nand more")
    assert not err(b"up at 7\n")
    assert seen == ["up"]


def test_a_line_that_is_printed_is_told(tmp_path: Path) -> None:
    """What keeps the streams has seen it; the hook's files are not read for it."""
    watching = watch(tmp_path, line="^up$")
    assert watching.line == "^up$"
    assert becomes_ready(watching, lambda: None, watching.is_printed) == 2
    assert watch(tmp_path, file="state", line="^up$").line is None


def test_one_that_ends_is_waited_for_no_longer(tmp_path: Path) -> None:
    """Its end says what became of it."""
    assert watch(tmp_path, file="up").until_ready(lambda _seconds: True) is None


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
