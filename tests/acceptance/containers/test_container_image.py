"""The image of docs/deploy/container/Dockerfile, built and run as in a cluster: PID 1, nobody, read-only."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from support.containers.container_images import DEBIAN, DISTROLESS, Builder, Image, first_process
from support.processes.workers import patiently
from support.servers.cluster import Cluster, free_port
from support.suite.missing import missing

from queue_workflows import enqueue_ingest_job, start_run
from queue_workflows.repositories import IngestJobRepository, RunRepository

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = ROOT / "docs" / "deploy" / "container" / "Dockerfile"
# An account that the image knows nothing of, as some clusters give each namespace its own.
NOBODY = "65534:65534"
SHOP = {
    "__init__": "",
    "wiring": """
import os
from queue_workflows import ingest_task, set_node_module_package

set_node_module_package("shop.nodes")

@ingest_task("look")
def look(reason):
    written = []
    for place in "/", "/app", "/tmp":
        try:
            open(place + "/file", "w").close()
            written.append(place)
        except OSError:
            pass
    return {"uid": os.getuid(), "gid": os.getgid(), "written": written, "shell": os.path.exists("/bin/sh")}
""",
    "nodes/__init__": "",
    "nodes/greet": "def run(inputs):\n    return {'said': 'hello ' + inputs['name']}\n",
}
GREETING = {"name": "greeting", "nodes": [{"id": "greet", "module": "greet", "inputs": {"name": "you"}}]}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Of a shop, with the wheel of this checkout."""
    home = tmp_path_factory.mktemp("image")
    builder = Builder(home)
    wheels, context = home / "wheels", home / "context"
    for name, text in SHOP.items():
        file = context / "shop" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (context / "requirements.txt").write_text("queue-workflows[web]\n", encoding="ascii")
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(wheels), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = wheels.iterdir()
    fitting = ["--python-version", "3.11", "--only-binary", ":all:"]
    fetch = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--dest",
        str(wheels),
        *fitting,
        f"{wheel}[web]",
    ]
    fetched = subprocess.run(fetch, capture_output=True, text=True, timeout=300)
    if fetched.returncode:
        missing(f"what the wheel depends on could not be fetched: {fetched.stderr[-500:]}")
    for name in (DEBIAN, DISTROLESS):
        builder.stand_in(name, wheels)
    return builder.build(DOCKERFILE, context)


@pytest.fixture(scope="module")
def database(image: Image) -> Iterator[str]:
    """An empty database, migrated by the image's own `qwf db upgrade`, as by the Job of the manifests."""
    with Cluster.primary() as cluster:
        dsn = cluster.dsn()
        with running(image, dsn, "db", "upgrade") as migration:
            assert migration.wait(300) == 0
        yield dsn


@contextmanager
def running(image: Image, dsn: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    container = image.start(arguments or None, {"QWF_DB_URL": dsn, "QWF_GRACE_S": "20"}, user=NOBODY)
    try:
        yield container
    finally:
        container.kill()
        container.communicate()


def asked(image: Image, port: int, path: str = "/live") -> int:
    """What the image's health check says of a process in another container, on this machine's loopback."""
    program, *_ = json.loads(check_of(DOCKERFILE))
    assert [program] == image.config["Entrypoint"]
    container = image.start(["healthcheck", str(port), path], {}, user=NOBODY)
    container.communicate(timeout=150)
    return container.returncode


def answers(port: int, path: str) -> bool:
    """Whether all is well by an address of a process in a container."""
    with suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=150).status_code == 200
    return False


def check_of(dockerfile: Path) -> str:
    (line,) = [each for each in dockerfile.read_text().splitlines() if each.startswith("HEALTHCHECK ")]
    return line[line.index("[") :]


def stopped(container: subprocess.Popen[str]) -> tuple[int, str]:
    """Its status after SIGTERM to PID 1, and all that it said."""
    first_process(container).send_signal(signal.SIGTERM)
    said, _ = container.communicate(timeout=150)
    return container.returncode, said


def connected(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, autocommit=True)


def test_it_is_small_and_has_no_shell(image: Image) -> None:
    """Python, our packages and the application, for an account that is not root."""
    size = sum(file.lstat().st_size for file in image.root.rglob("*") if not file.is_dir())
    assert size < 200 << 20
    programs = {file.name for place in ("usr/bin", "usr/sbin") for file in (image.root / place).iterdir()}
    assert programs.isdisjoint({"sh", "bash", "dash", "env", "apt-get"})
    assert image.config["User"] == "65532:65532"
    assert image.config["StopSignal"] == "SIGTERM"


def test_its_command_runs_everything(image: Image, database: str) -> None:
    """A job and a workflow, by an account that may write to /tmp alone; SIGTERM to PID 1 ends it in order."""
    port = free_port()
    command = [word.replace("--health 8080", f"--health {port}") for word in image.config["Cmd"]]
    assert f"fetch --health {port}" in command
    with connected(database) as connection, running(image, database, *command) as container:
        job = enqueue_ingest_job("look", queue="fetch", conn=connection).id
        run = start_run(GREETING, conn=connection).id
        jobs, runs = IngestJobRepository(connection), RunRepository(connection)
        patiently(lambda: jobs.fetch(job).status == "completed")
        patiently(lambda: runs.fetch(run).status == "completed")
        assert jobs.fetch(job).result == {"uid": 65534, "gid": 65534, "written": ["/tmp"], "shell": False}
        assert "pid1.py" in " ".join(first_process(container).cmdline())
        assert asked(image, port) == asked(image, port, "/ready") == 0
        status, said = stopped(container)
    assert (status, "every worker has ended" in said) == (0, True), said
    assert asked(image, port) == 1


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["worker", "--queue", "fetch", "--health", "{port}"], "/ready"),
        pytest.param(
            ["supervisor", "--no-spare", "--worker", "fetch --concurrency 8 --health {port}"],
            "/ready",
            # The image's own command is a supervisor, which the test above runs on each change.
            marks=pytest.mark.nightly,
        ),
        (["orchestrator", "--health", "{port}"], "/ready"),
        (["scheduler", "--health", "{port}"], "/ready"),
        (["metrics", "serve", "--port", "{port}"], "/metrics"),
        (["web", "--port", "{port}"], "/healthz"),
    ],
    ids=["worker", "supervisor", "orchestrator", "scheduler", "metrics", "web"],
)
def test_each_role_starts_and_stops_in_order(
    image: Image, database: str, arguments: list[str], path: str
) -> None:
    """As the manifests start them; a worker has done a job in between."""
    port = free_port()
    given = [word.format(port=port) for word in arguments]
    with running(image, database, *given) as container:
        patiently(lambda: answers(port, path))
        # The check is a container each time, so it is asked once, and of /ready by the test above.
        if path != "/ready":
            assert asked(image, port, path) == 0
        if "fetch" in " ".join(given):
            with connected(database) as connection:
                job = enqueue_ingest_job("look", queue="fetch", conn=connection).id
                patiently(lambda: IngestJobRepository(connection).fetch(job).status == "completed")
        status, said = stopped(container)
    assert status == 0, said
    assert "Traceback" not in said
