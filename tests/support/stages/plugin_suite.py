"""The public suite of plugins that docs/examples/suite installs, on real processes of this engine."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen
from types import MappingProxyType
from typing import Any

import psutil
import psycopg
import pytest
from support.processes.pythons import find_python
from support.processes.workers import patiently, running_orchestrator, running_worker, until
from support.suite.missing import missing

from queue_workflows import RunRepository, start_run
from queue_workflows.hooks.plugins.compile import compile_hooks
from queue_workflows.repositories.hooks.records import HookRecordRepository

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "suite"
# What the suite is run on: those of its plugins that need neither an account nor the outside world.
PLUGINS = (
    *("wget", "favicon", "chrome", "consolelog", "dns", "responses", "redirects", "headers", "seo"),
    *("accessibility", "screenshot", "pdf", "dom", "title", "htmltotext", "readability", "parse_html_urls"),
    *("parse_dom_outlinks", "hashes", "staticfile", "search_backend_sqlite"),
)
# What its packages declare.
OLDEST_NODE = 18
INSTALLED_WITHIN_S = 300
# Seconds for a hook: a browser that starts beside a whole suite of tests is slow. A page with few hooks needs
# less. At the end both a browser and the script that closes it are told, and one that comes too late for the
# other takes all its time.
PATIENCE = {"TIMEOUT": 300}
FEW_HOOKS = {"TIMEOUT": 120}
# Of the picture on each page of the site.
BOAT = (0x20, 0x60, 0xA0)
# What is needed to see a page as a browser does, and no more.
LISTENERS = ("chrome", "consolelog", "responses")
SETTINGS = {
    # Root runs a browser only without its sandbox.
    "CHROME_SANDBOX": "false" if os.geteuid() == 0 else "true",
    # What a killed worker held is begun again so soon.
    "QWF_LEASE_S": "5",
    "QWF_BACKOFF_JITTER": "0",
}


def install(place: Path) -> Path:
    """The directory of the plugins, from the package registries as they are; QWF_TEST_SUITE names one that is
    installed."""
    if (installed_before := os.environ.get("QWF_TEST_SUITE")) is not None:
        return Path(installed_before) / "plugins"
    for program in ("chromium", "wget", "node", "npm"):
        if shutil.which(program) is None:
            missing(f"there is no {program} on PATH")
    _check_node()
    python = find_python("3.13") or find_python("3.12")
    if python is None:
        missing("there is no Python 3.12 or 3.13, which the suite needs: name one in QWF_TEST_PYTHONS")
    _run_installer(place, python)
    return place / "plugins"


def _run_installer(place: Path, python: str) -> None:
    """In a group of its own, so that what it has begun ends with it where it takes too long."""
    with Popen(
        [EXAMPLE / "install", place],
        # What is imported is compiled then; most of it never is.
        env={**os.environ, "SUITE_PYTHON": python, "PIP_NO_COMPILE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as installer:
        try:
            _, said = installer.communicate(timeout=INSTALLED_WITHIN_S)
        except BaseException as exc:
            if installer.poll() is None:
                os.killpg(installer.pid, signal.SIGKILL)
            if isinstance(exc, subprocess.TimeoutExpired):
                missing(f"the suite could not be installed within {INSTALLED_WITHIN_S} seconds")
            raise
    if installer.returncode:
        missing(f"the suite could not be installed: {said[-500:]}")


def installed_once(shared: Path) -> Path:
    """The plugins, in a directory that the processes of a run share: the first to come installs them.

    What kept it from that is told to the others, and no later one goes on in what another has half made.
    """
    done = shared / "suite-is-installed"
    with (shared / "suite-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            place = Path(tempfile.mkdtemp(prefix="suite-", dir=shared))
            try:
                found = {"plugins": str(install(place))}
            except (pytest.skip.Exception, pytest.fail.Exception) as exc:
                found = {"refusal": str(exc.msg)}
            whole = place.with_suffix(".json")
            whole.write_text(json.dumps(found), encoding="utf-8")
            whole.replace(done)
    found = json.loads(done.read_text(encoding="utf-8"))
    if "refusal" in found:
        missing(found["refusal"])
    return Path(found["plugins"])


def _check_node() -> None:
    """Debian's may be older than the packages that the suite runs on."""
    asked = [str(shutil.which("node")), "--version"]
    version = subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout.strip().lstrip("v")
    if not version.split(".")[0].isdecimal() or int(version.split(".")[0]) < OLDEST_NODE:
        missing(f"node {version} is here, and the suite needs {OLDEST_NODE} or newer")


class PluginSuite:
    """A database with an orchestrator, and a worker that can be killed and is followed by another one."""

    def __init__(self, dsn: str, dirs: Sequence[Path], data: Path, processes: ExitStack) -> None:
        self.dirs, self.data = list(dirs), data
        self._dsn, self._processes = dsn, processes
        self.conn = processes.enter_context(psycopg.connect(dsn, autocommit=True))
        self._worker: Popen[str] | None = None
        self._options: tuple[str, ...] = ()

    def work(self, *options: str) -> None:
        """Have a worker, whatever became of the one before."""
        self._options = options
        self._worker = self._processes.enter_context(
            running_worker(
                self._dsn,
                *("--queue", "hooks", *options),
                **{"QWF_HOOK_DIRS": ":".join(map(str, self.dirs)), "QWF_DATA_DIR": str(self.data)} | SETTINGS,
            )
        )

    def kill(self) -> None:
        """SIGKILL to the worker, and the next one begins."""
        assert self._worker is not None
        self._worker.kill()
        self._worker.wait()
        self.work(*self._options)

    def change(self, *options: str) -> None:
        """Stop the worker, and have one with these options."""
        assert self._worker is not None
        self._worker.terminate()
        self._worker.wait()
        self.work(*options)

    def start(
        self,
        url: str,
        plugins: Sequence[str] = PLUGINS,
        *,
        max_open_runs: int | None = None,
        setup: str | None = None,
        config: Mapping[str, Any] = MappingProxyType({}),
        **inputs: Any,
    ) -> uuid.UUID:
        """Archive a page, and what it names as far as the `inputs` say; of all so many at a time."""
        document = compile_hooks("Snapshot", self.dirs, plugins=[*plugins, "profile"], setup=setup)
        given = {"url": url, "config": {**PATIENCE, **config}} | inputs
        return start_run(document, given, conn=self.conn, max_open_runs=max_open_runs).id

    def below(self, run: uuid.UUID) -> dict[str, uuid.UUID]:
        """The pages that a page has named, by their addresses."""
        rows = RunRepository(self.conn).list(parent_run_id=run)
        return {row.inputs["url"]: row.id for row in rows}

    def most_open(self, *runs: uuid.UUID) -> int:
        """How many of these runs, which have ended, were open at the same time."""
        spans = self.conn.execute(
            "SELECT started_at, finished_at FROM workflow_runs WHERE id = ANY (%s)", [list(runs)]
        ).fetchall()
        return max(sum(begun <= began < over for begun, over in spans) for began, _ in spans)

    def ended(self, *runs: uuid.UUID) -> list[str]:
        """How these runs ended, once they have."""
        until(lambda: self.over(*runs) == len(runs), within_s=900)
        found = [RunRepository(self.conn).fetch(run) for run in runs]
        return [row.status for row in found if row is not None]

    def over(self, *runs: uuid.UUID) -> int:
        """How many of these runs have ended."""
        ended = "SELECT count(*) FROM workflow_runs WHERE id = ANY (%s) AND finished_at IS NOT NULL"
        (count,) = self.conn.execute(ended, [list(runs)]).fetchone() or (0,)
        return int(count)

    def seen(self, run: uuid.UUID) -> tuple[list[str], list[str]]:
        """The documents and the console's lines that listeners have kept of a page."""
        responses = self.lines(run, "responses/index.jsonl")
        documents = [line["url"] for line in responses if line["resourceType"] == "document"]
        return documents, [line["text"] for line in self.lines(run, "consolelog/console.jsonl")]

    def until_begun(self, run: uuid.UUID, hook: str) -> None:
        """Wait until the hook with this in its name has been claimed."""
        found = (
            "SELECT FROM workflow_node_jobs WHERE run_id = %s AND strpos(node_module, %s) > 0 AND attempt > 0"
        )
        patiently(lambda: self.conn.execute(found, [run, hook]).fetchone() is not None)

    def attempts(self, run: uuid.UUID, hook: str) -> int:
        """How often the hook with this in its name was begun."""
        begun = "SELECT attempt FROM workflow_node_jobs WHERE run_id = %s AND strpos(node_module, %s) > 0"
        (attempt,) = self.conn.execute(begun, [run, hook]).fetchone() or (0,)
        return int(attempt)

    def results(self, run: uuid.UUID) -> dict[str, str]:
        """What each hook of the run came to, by plugin and the number in its name."""
        records = HookRecordRepository(self.conn).list(run, kind="ArchiveResult")
        return {
            f"{record.plugin}.{record.hook.partition('__')[2][:2]}": record.payload["status"]
            for record in records
        }

    def said(self, run: uuid.UUID, plugin: str) -> list[str]:
        """What the hooks of a plugin said of the run."""
        records = HookRecordRepository(self.conn).list(run, kind="ArchiveResult", plugin=plugin)
        return [record.payload["output_str"] for record in records]

    def statuses(self, run: uuid.UUID) -> dict[str, str]:
        """The status of each hook's job, by its file."""
        rows = self.conn.execute(
            "SELECT node_module, status FROM workflow_node_jobs WHERE run_id = %s AND queue = 'hooks'", [run]
        )
        return dict(rows.fetchall())

    def failures(self, run: uuid.UUID) -> dict[str, str]:
        """Why hooks of the run have failed, by their files."""
        errors = "SELECT node_module, errors::text FROM workflow_node_jobs"
        rows = self.conn.execute(f"{errors} WHERE run_id = %s AND status = 'failed'", [run])
        return dict(rows.fetchall())

    def file(self, run: uuid.UUID, name: str) -> Path:
        """A file of the run."""
        return self.data / "runs" / str(run) / name

    def lines(self, run: uuid.UUID, name: str) -> list[dict[str, Any]]:
        """The lines of a file of JSON."""
        return [json.loads(line) for line in self.file(run, name).read_text().splitlines()]

    def browsers(self) -> int:
        """How many browsers run, of this suite's runs: processes without a type, which have others below."""
        profiles = f"--user-data-dir={self.data}/"
        found = 0
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            is_main = not any(word.startswith("--type=") for word in line)
            found += is_main and any(word.startswith(profiles) for word in line)
        return found


@contextmanager
def plugin_suite(dsn: str, dirs: Sequence[Path], data: Path) -> Iterator[PluginSuite]:
    """An orchestrator, and nothing of a worker yet."""
    with ExitStack() as processes:
        processes.enter_context(running_orchestrator(dsn))
        yield PluginSuite(dsn, dirs, data, processes)
