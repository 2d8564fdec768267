"""The example that archives a site: real orchestrator, real workers, and a kill at every step."""

from __future__ import annotations

import functools
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import Popen
from threading import Thread
from typing import Any

import psycopg
import pytest
from support.processes.workers import patiently, running_orchestrator, running_worker

from queue_workflows import RunRepository, start_run
from queue_workflows.hooks.plugins.compile import compile_hooks
from queue_workflows.models import WorkflowRun
from queue_workflows.repositories.hooks.records import HookRecordRepository

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "archive"
PLUGINS = EXAMPLE / "plugins"
# Of the plugins that need nothing but what every machine has.
WITH_RESULTS = ["checksum", "fetch", "index", "links", "listener", "text", "tidy", "title"]
# Waits at its first try in each run, to be killed there.
GATE = """#!/bin/sh
[ -e "seen-$QWF_STEP" ] && exit 0
echo '{"type": "Tag", "name": "killed"}'
touch "seen-$QWF_STEP"
exec sleep 3600
"""
STEPS = (0, 1, 3, 6, 9)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The bundled site, served here."""
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(EXAMPLE / "site"))
    ) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Archive:
    """A database, an orchestrator, and workers of hosts that can be killed and are started again."""

    def __init__(self, dsn: str, directory: Path, hosts: ExitStack) -> None:
        self.dsn, self.directory, self._hosts = dsn, directory, hosts
        self.conn = hosts.enter_context(psycopg.connect(dsn, autocommit=True))
        self.dirs = [PLUGINS]
        self._workers: dict[str, Popen[str]] = {}

    def work(self, host: str, **settings: str) -> None:
        """Have a worker on a host, whatever became of the one before."""
        dirs = ":".join(map(str, self.dirs))
        self._workers[host] = self._hosts.enter_context(
            running_worker(
                self.dsn,
                *("--queue", "hooks", "--concurrency", "4"),
                QWF_HOST_LABEL=host,
                QWF_HOOK_DIRS=dirs,
                QWF_DATA_DIR=str(self.directory / host),
                QWF_LEASE_S="3",
                **{"SCREENSHOT_ENABLED": "false"} | settings,
            )
        )

    def kill(self, host: str) -> None:
        """SIGKILL, and nothing else is told."""
        self._workers[host].kill()
        self._workers[host].wait()

    def start(self, url: str, plugins: list[str] | None = None, **inputs: Any) -> uuid.UUID:
        """Archive a page, and what it leads to."""
        document = compile_hooks("Snapshot", self.dirs, plugins=plugins)
        return start_run(document, {"url": url, **inputs}, conn=self.conn).id

    def until(self, look: Any) -> Any:
        """What is looked for, as soon as it is there; a worker that has died is started anew."""

        def seen() -> Any:
            for host, worker in list(self._workers.items()):
                if worker.poll() is not None:
                    self.work(host)
            return look()

        return patiently(seen)

    def ended(self, count: int) -> list[WorkflowRun] | None:
        """All runs, by URL, once there are so many and none goes on."""
        runs = RunRepository(self.conn).list()
        over = [run for run in runs if run.finished_at is not None]
        return sorted(over, key=lambda run: run.inputs["url"]) if len(over) == len(runs) == count else None

    def jobs(self, run_id: uuid.UUID) -> list[tuple[Any, ...]]:
        """Plugin, file, status, attempts and worker of each hook."""
        return self.conn.execute(
            "SELECT plugin, node_module, status, attempt, claimed_by FROM workflow_node_jobs"
            " WHERE run_id = %s AND queue = 'hooks'",
            [run_id],
        ).fetchall()

    def results(self, run_id: uuid.UUID) -> dict[str, list[Any]]:
        """What each plugin said of the run, in full."""
        found: dict[str, list[Any]] = {}
        for record in HookRecordRepository(self.conn).list(run_id, kind="Result"):
            found.setdefault(record.plugin, []).append(record.payload.get("output_str", ""))
        return found


@pytest.fixture
def archive(qwf_new_database: Any, tmp_path: Path) -> Iterator[Archive]:
    """An empty database, and an orchestrator."""
    dsn = qwf_new_database()
    with ExitStack() as hosts:
        hosts.enter_context(running_orchestrator(dsn))
        yield Archive(dsn, tmp_path, hosts)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_crawl_archives_the_pages_that_it_may_see(archive: Archive, site: str) -> None:
    """Every page once, each on one of the two hosts, with all that its hooks made."""
    archive.work("a")
    archive.work("b")
    root = archive.start(site, max_depth=1, url_allow=[f"^{site}"], url_deny=["/private/"])
    runs = archive.until(lambda: archive.ended(3))
    assert [(run.inputs["url"].removeprefix(site), run.status) for run in runs] == [
        ("", "completed"),
        ("boats.html", "completed"),
        ("locks.html", "completed"),
    ]
    assert {run.parent_run_id for run in runs} == {None, root}
    titles = [archive.results(run.id)["title"] for run in runs]
    assert titles == [["The canals"], ["Boats &amp; barges"], ["Locks"]]
    for run in runs:
        jobs = archive.jobs(run.id)
        (host,) = {worker.split(":")[0] for *_, worker in jobs if worker}
        kept = archive.directory / host / "runs" / str(run.id)
        assert "fetch/page.html" in (kept / "index" / "index.html").read_text()
        assert "fetch/page.html" in (kept / "checksum" / "SHA256SUMS").read_text()
        assert [status for plugin, _, status, *_ in jobs if plugin == "screenshot"] == ["skipped"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_pages_are_pictured_where_there_is_a_browser(archive: Archive, site: str, tmp_path: Path) -> None:
    """Two at once, which do not get into each other's way; nothing but the picture is left."""
    skip_without_browser(tmp_path)
    archive.work("a", SCREENSHOT_ENABLED="true")
    runs = [archive.start(site + page, ["screenshot"]) for page in ("", "boats.html")]
    assert [run.status for run in archive.until(lambda: archive.ended(2))] == ["completed"] * 2
    for run in runs:
        place = archive.directory / "a" / "runs" / str(run) / "screenshot"
        assert [path.name for path in place.iterdir()] == ["page.png"]
        assert (place / "page.png").read_bytes().startswith(b"\x89PNG\r\n")


def skip_without_browser(place: Path) -> None:
    """One that is there may not work, as without the libraries that it needs."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no chromium on PATH")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={place / 'browser'}"]
    try:
        tried = subprocess.run(
            [browser, *options, "--dump-dom", "data:text/html,works"], capture_output=True, timeout=150
        )
    except subprocess.TimeoutExpired:
        pytest.skip("chromium does not end here")
    if b"works" not in tried.stdout:
        pytest.skip(f"chromium does not work here: {tried.stderr[-200:]!r}")


@contextmanager
def gated(directory: Path) -> Iterator[Path]:
    """A directory with a plugin that can be killed in each step."""
    plugin = directory / "gates" / "gate"
    plugin.mkdir(parents=True)
    for step in STEPS:
        hook = plugin / f"on_Snapshot__{step}9_gate.sh"
        hook.write_text(GATE)
        hook.chmod(0o755)
    (plugin / "config.json").write_text('{"x-retry-s": 0}')
    yield plugin.parent


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_kill_at_every_step_loses_and_doubles_nothing(archive: Archive, site: str, tmp_path: Path) -> None:
    """The worker of the run's host dies in each step; the run stays there, goes on, and ends as if not."""
    with gated(tmp_path) as gates:
        archive.dirs = [PLUGINS, gates]
        archive.work("a")
        run_id = archive.start(site)
        for step in STEPS:
            seen = tmp_path / "a" / "runs" / str(run_id) / "gate" / f"seen-{step}"
            archive.until(seen.exists)
            if step == STEPS[0]:
                archive.work("b")
            archive.kill("a")
        (run,) = archive.until(lambda: archive.ended(1))
        assert run.status == "completed"
        assert {worker.split(":")[0] for *_, worker in archive.jobs(run_id) if worker} == {"a"}
        results = archive.results(run_id)
        assert sorted(results) == WITH_RESULTS
        assert [len(said) for said in results.values()] == [1] * len(WITH_RESULTS)
        assert [*(tmp_path / "b" / "runs").iterdir()] == []
        records = HookRecordRepository(archive.conn)
        assert records.list(run_id, plugin="gate", kind="Tag") == []
        kept = records.list(run_id, plugin="gate", kind="Tag", all_attempts=True)
        assert len({record.hook for record in kept}) == len(STEPS)
