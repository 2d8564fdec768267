"""How a machine is split between our containers and the rest: on made-up trees, and on this machine's own."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from queue_workflows.telemetry import cgroup
from queue_workflows.telemetry.cgroup import TREE, Attribution, Share, containers_in, engine_sockets

OURS, THEIRS, PODS, GONE = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)


class Engine(BaseHTTPRequestHandler):
    """What answers in place of Docker; `said` is a class's own."""

    said: bytes = b"[]"
    status = 200
    delay_s = 0.0
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.requestline)
        time.sleep(self.delay_s)
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.said)

    def address_string(self) -> str:
        return "a socket"

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Starts an engine that answers so, and gives its socket."""
    servers = []

    def started(said: object, *, status: int = 200, delay_s: float = 0.0) -> Path:
        text = said if isinstance(said, bytes) else json.dumps(said).encode()
        handler = type("One", (Engine,), {"said": text, "status": status, "delay_s": delay_s, "asked": []})
        path = tmp_path / f"engine{len(servers)}.sock"
        server = socketserver.ThreadingUnixStreamServer(str(path), handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return path

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of cgroup v2 with containers as Docker and Podman place them."""
    root = tmp_path / "cgroup"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpu memory\n")
    put(root / f"system.slice/docker-{OURS}.scope", us=1_000_000, mb=300, cache_mb=100)
    put(root / f"docker/{THEIRS}", us=5_000_000, mb=900, cache_mb=0)
    user = root / "user.slice/user-1000.slice/user@1000.service/user.slice"
    put(user / f"libpod-{PODS}.scope", us=2_000_000, mb=50, cache_mb=0)
    put(user / f"libpod-{PODS}.scope/container", us=2_000_000, mb=50, cache_mb=0)
    put(user / f"libpod-conmon-{PODS}.scope", us=9, mb=1, cache_mb=0)
    return root


def put(place: Path, *, us: int, mb: int, cache_mb: int) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "cpu.stat").write_text(f"usage_usec {us}\nuser_usec 1\nnr_periods\n")
    (place / "memory.current").write_text(f"{mb << 20}\n")
    (place / "memory.stat").write_text(f"anon 1\ninactive_file {cache_mb << 20}\n")


def listed(*containers: tuple[str, str]) -> list[dict[str, object]]:
    return [{"Id": one, "Names": [f"/{name}"], "Image": "film"} for one, name in containers]


def test_our_containers_are_told_from_the_rest_by_their_names(tree, engine) -> None:
    """CPU since the look before, in percent of the whole machine; memory without the idle page cache."""
    socket = engine(
        listed((OURS, "ai_leads-web"), (PODS, "ai_leads-gpu"), (THEIRS, "postgres"), (GONE, "x-ai_leads-"))
    )
    clock = [0.0]
    attribution = Attribution("ai_leads-", tree=tree, sockets=[socket], now=lambda: clock[0], cores=4)
    assert attribution.look() == Share(2, None, 250)
    clock[0] = 10.0
    put(tree / f"system.slice/docker-{OURS}.scope", us=11_000_000, mb=300, cache_mb=100)
    assert attribution.look() == Share(2, 25.0, 250)


def test_containers_come_and_go(tree, engine) -> None:
    """A new one is found, and counts from its second look on; one that went is missed by nobody."""
    first, second = engine(listed((OURS, "ai_leads-a"))), engine(listed((GONE, "ai_leads-b")))
    clock = [0.0]
    attribution = Attribution("ai_leads-", tree=tree, sockets=[first], now=lambda: clock[0], cores=1)
    assert attribution.look() == Share(1, None, 200)
    attribution._sockets = [second]
    put(tree / f"docker/{GONE}", us=7_000_000, mb=10, cache_mb=0)
    clock[0] = 2.0
    assert attribution.look() == Share(1, 0.0, 10)
    put(tree / f"docker/{GONE}", us=7_500_000, mb=10, cache_mb=0)
    clock[0] = 3.0
    assert attribution.look() == Share(1, 50.0, 10)


def test_nothing_is_told_of_containers_whose_groups_are_not_there(tree, engine, monkeypatch) -> None:
    """As in a container with a tree of its own; it is searched again now and then, not at each look."""
    walks = []

    def walked(place: Path) -> dict[str, Path]:
        walks.append(clock[0])
        return containers_in(place)

    monkeypatch.setattr(cgroup, "containers_in", walked)
    alone, beside = (
        engine(listed((GONE, "ai_leads-b"))),
        engine(listed((GONE, "ai_leads-b"), (OURS, "ai_leads-a"))),
    )
    clock = [0.0]
    attribution = Attribution("ai_leads-", tree=tree, sockets=[alone], now=lambda: clock[0], cores=1)
    for clock[0] in (5.0, 10.0, 15.0):
        assert attribution.look() is None
    attribution._sockets = [beside]
    clock[0] = 20.0
    assert attribution.look() == Share(1, None, 200)
    assert walks == [5.0]
    put(tree / f"docker/{GONE}", us=7_000_000, mb=10, cache_mb=0)
    clock[0] = 70.0
    assert attribution.look() == Share(2, 0.0, 210)
    assert walks == [5.0, 70.0]


def test_it_only_asks_for_the_list(tree, engine) -> None:
    """Read-only, without a word about anything else."""
    path = engine([])
    assert Attribution("ai_leads-", tree=tree, sockets=[path]).look() == Share(0, 0.0, 0)


def test_nothing_is_told_without_the_kernels_part(tmp_path, engine) -> None:
    """As on a machine with cgroup v1."""
    assert Attribution("ai_leads-", tree=tmp_path, sockets=[engine([])]).look() is None


def test_nothing_is_told_without_an_engine(tree, tmp_path) -> None:
    """No socket, one that nobody listens on, one that is a file."""
    (tmp_path / "file").write_text("")
    sockets = [tmp_path / "none", tmp_path / "file", tmp_path / ("long" * 40)]
    assert Attribution("ai_leads-", tree=tree, sockets=sockets).look() is None


@pytest.mark.parametrize(
    ("said", "status"),
    [(b"{", 200), ({"message": "no"}, 200), (["a", {"Id": 1}, None], 500), (b"[" * 90_000, 200)],
)
def test_an_engine_that_answers_otherwise_is_none(tree, engine, said, status) -> None:
    """The next socket is asked instead."""
    bad, good = engine(said, status=status), engine(listed((OURS, "ai_leads-web")))
    assert Attribution("ai_leads-", tree=tree, sockets=[bad]).look() is None
    assert Attribution("ai_leads-", tree=tree, sockets=[bad, good]).look() == Share(1, None, 200)


def test_odd_entries_of_the_list_are_passed_over(tree, engine) -> None:
    """A container without a name is nobody's."""
    path = engine(["a", {"Id": 1}, {"Id": THEIRS, "Names": None}, {"Id": OURS, "Names": [7, "ai_leads-x"]}])
    assert Attribution("ai_leads-", tree=tree, sockets=[path]).look() == Share(1, None, 200)


def test_an_engine_that_hangs_is_given_up(tree, engine, monkeypatch) -> None:
    """It holds up the other figures for no longer than it may."""
    monkeypatch.setattr(cgroup, "_ANSWER_WITHIN_S", 0.1)
    path = engine([], delay_s=600.0)
    assert Attribution("ai_leads-", tree=tree, sockets=[path]).look() is None


def test_podmans_monitor_and_what_is_in_a_container_are_not_the_container(tree) -> None:
    """The outermost group with the id is the one."""
    found = {one: str(path.relative_to(tree)) for one, path in containers_in(tree).items()}
    assert found == {
        OURS: f"system.slice/docker-{OURS}.scope",
        THEIRS: f"docker/{THEIRS}",
        PODS: f"user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{PODS}.scope",
    }


def test_where_engines_listen() -> None:
    """What the environment names comes first; a host on the network is not asked."""
    usual = [Path("/var/run/docker.sock"), Path("/run/podman/podman.sock")]
    assert engine_sockets({"DOCKER_HOST": "tcp://elsewhere:2375"}) == usual
    own = engine_sockets({"DOCKER_HOST": "unix:///mine.sock", "XDG_RUNTIME_DIR": "/run/user/7"})
    assert own == [Path("/mine.sock"), *usual, Path("/run/user/7/podman/podman.sock")]


def test_this_machines_own_tree(engine) -> None:
    """Whatever it is like: figures where it is cgroup v2, else nothing; read without an error either way."""
    ids = list(containers_in(TREE))
    path = engine(listed(*((one, "ai_leads-x") for one in ids)))
    share = Attribution("ai_leads-", sockets=[path]).look()
    if not (TREE / "cgroup.controllers").is_file():
        assert share is None
    else:
        assert share is not None
        assert share.containers == len(ids)
