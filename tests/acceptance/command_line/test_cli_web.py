"""`qwf web` as a process: its address signs in once, and whatever is wrong is one line and a status."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest
from support.suite import warm_starts

PIPES: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@contextmanager
def qwf_web(dsn: str, home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The page while it is served, and the address that it printed."""
    command = [*warm_starts.MODULE, "--db", dsn, "web", "--port", "0", *options]
    with warm_starts.start(command, os.environ, cwd=home, **PIPES) as program:
        try:
            assert program.stdout is not None
            yield program, program.stdout.readline().strip()
        finally:
            program.kill()


def refused(dsn: str, home: Path, *options: str) -> tuple[int, str]:
    """The status and the last line of a command that does not begin."""
    command = [*warm_starts.MODULE, "--db", dsn, "web", *options]
    done = warm_starts.run(command, os.environ, cwd=home, **PIPES)
    return done.returncode, done.stderr.strip().splitlines()[-1]


def browser() -> urllib.request.OpenerDirector:
    """What keeps cookies and follows redirects."""
    return urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))


def test_the_printed_address_signs_in_once(qwf_dsn: str, tmp_path: Path) -> None:
    """The first that opens it is signed in and stays so; a second is told to look at the program's output."""
    with qwf_web(qwf_dsn, tmp_path) as (program, address):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=\S+", address)
        place = address.partition("/?")[0]
        mine = browser()
        with mine.open(address, timeout=60) as shown:
            assert shown.url == f"{place}/"
            assert b"Overview" in shown.read()
        with mine.open(f"{place}/jobs.json", timeout=60) as shown:
            assert shown.read().strip() == b"[]"
        with pytest.raises(urllib.error.HTTPError) as unknown:
            browser().open(address, timeout=60)
        assert unknown.value.code == 401
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 0


def test_another_browser_has_a_way_in(qwf_dsn: str, tmp_path: Path) -> None:
    """By an address that the same user prints beside the page; from another directory's key it is none."""
    with qwf_web(qwf_dsn, tmp_path) as (_program, address):
        port = address.partition("/?")[0].rpartition(":")[2]
        browser().open(address, timeout=60).close()
        for _ in range(2):
            another = printed_link(tmp_path, port)
            assert re.fullmatch(rf"http://127\.0\.0\.1:{port}/\?token=\S+", another)
            second = browser()
            with second.open(another, timeout=60) as shown:
                assert b"Overview" in shown.read()
            with second.open(f"http://127.0.0.1:{port}/jobs.json", timeout=60) as shown:
                assert shown.read().strip() == b"[]"
            with pytest.raises(urllib.error.HTTPError) as used:
                browser().open(another, timeout=60)
            assert used.value.code == 401
        (tmp_path / "elsewhere").mkdir()
        with pytest.raises(urllib.error.HTTPError) as foreign:
            browser().open(printed_link(tmp_path / "elsewhere", port), timeout=60)
        assert foreign.value.code == 401


def printed_link(home: Path, port: str) -> str:
    """What `qwf web --link` prints."""
    command = [*warm_starts.MODULE, "web", "--link", "--port", port]
    done = warm_starts.run(command, os.environ, cwd=home, **PIPES)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_link_to_a_page_that_is_not_there(qwf_dsn: str, tmp_path: Path) -> None:
    """It says so, and which port it looked at."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
    status, said = refused(qwf_dsn, tmp_path, "--link", "--port", port)
    assert status == 78
    assert f"no page answers on 127.0.0.1, port {port}" in said
    assert refused(qwf_dsn, tmp_path, "--link", "--port", "0")[0] == 2


def test_it_ends_though_somebody_watches(qwf_dsn: str, tmp_path: Path) -> None:
    """An open stream is ended, and not waited for."""
    with qwf_web(qwf_dsn, tmp_path) as (program, address):
        mine = browser()
        mine.open(address, timeout=60).close()
        with mine.open(f"{address.partition('/?')[0]}/live?page=/jobs", timeout=60) as stream:
            assert stream.readline().startswith(b"retry")
            program.send_signal(signal.SIGTERM)
            assert program.wait(60) == 0


def test_a_taken_port_is_named(qwf_dsn: str, tmp_path: Path) -> None:
    """A second copy says that there is one already, and ends."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        status, said = refused(qwf_dsn, tmp_path, "--port", port)
    assert status == 78
    assert f"port {port}" in said
    assert "--port" in said


@pytest.mark.parametrize(
    ("options", "status", "word"),
    [
        (("--host", "0.0.0.0"), 78, "password"),
        (("--host", "::"), 78, "password"),
        (("--port", "x"), 2, "--port"),
        (("--port", "70000"), 2, "--port"),
        (("--name", "http://ops"), 2, "host name"),
        (("--name", ""), 2, "host name"),
    ],
)
def test_what_is_wrong_is_one_line(
    options: tuple[str, ...], status: int, word: str, qwf_dsn: str, tmp_path: Path
) -> None:
    """Nothing is served, and the status says of what kind it was."""
    found, said = refused(qwf_dsn, tmp_path, *options)
    assert found == status
    assert said.startswith("qwf: ")
    assert word in said


def test_a_key_that_others_could_read_is_not_used(qwf_dsn: str, tmp_path: Path) -> None:
    """A program that reads it could make cookies."""
    (tmp_path / ".qwf").mkdir()
    key = tmp_path / ".qwf" / "web-key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o644)
    status, said = refused(qwf_dsn, tmp_path, "--port", "0")
    assert status == 78
    assert "web-key" in said
