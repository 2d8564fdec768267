"""A setup runs once a tree, before its first run; what it has in the background ends after the last one."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.runs import settle
from support.stages.hook_stage import UNTIL, Stage

from queue_workflows.engine.runs.retry import retry_run
from queue_workflows.engine.runs.verbs import cancel_run, start_run
from queue_workflows.hooks.plugins.compile import compile_hooks
from queue_workflows.repositories import RunRepository

OPEN, MADE, TIDY = "on_SiteSetup__10_open.bg.sh", "on_SiteSetup__20_made.sh", "on_SiteSetupEnd__10_tidy.sh"
PAGE, PAGE_END, HEAR = "on_Page__10_page.sh", "on_PageEnd__10_tidy.sh", "on_Page__05_hear.bg.sh"
URL = 'for given in "$@"; do case $given in --url=*) url=${given#--url=http://site.test/} ;; esac; done'
ALIVE = "kill -0 $(cat $ROOT/browser/up)"
SOON = {"QWF_BACKOFF_JITTER": "0"}


def found(*pages: int) -> str:
    return "; ".join(f"""echo '{{"type": "Run", "url": "http://site.test/{page}"}}'""" for page in pages)


class Site(Stage):
    """A browser for a whole site, and pages which look whether it is there and find others: 1 and 2, then 3.

    Everything says in one file that it is there.
    """

    def build(self, *page: str, attempts: int = 1, **browser: Any) -> None:
        self.put(
            f"browser/{OPEN}",
            'echo "open" >> ../log',
            "trap 'echo closed >> ../log; exit 0' TERM",
            "echo $$ > up.new; mv up.new up",
            "while :; do sleep 0.1; done",
            **{"x-ready": {"file": "up"}, "x-retry-s": 0} | browser,
        )
        self.put(f"browser/{MADE}", "kill -0 $(cat up)", "echo made >> ../log")
        self.put(f"browser/{TIDY}", "echo tidied >> ../log")
        finds = f'case $url in "") {found(1, 2)} ;; 1) {found(3)} ;; esac'
        self.put(
            f"page/{PAGE}",
            "set -e",
            URL,
            *page,
            ALIVE,
            'echo "page/$url" >> $ROOT/log',
            finds,
            **{"x-retry-s": 0, "x-max-attempts": attempts},
        )
        self.put(f"page/{PAGE_END}", "set -e", URL, ALIVE, 'echo "end/$url" >> $ROOT/log')
        env = '[env]\nROOT = "{root_run_dir}"\nDEPTH = "{depth}"\n'
        (self.plugins / "hooks.toml").write_text(f'setup = "SiteSetup"\n{env}', encoding="utf-8")

    def begin(self, **asked: Any) -> Any:
        inputs = {"url": "http://site.test/", "max_depth": 3}
        document = compile_hooks("Page", [self.plugins], **asked)
        run_id = start_run(document, inputs, conn=self.connection).id
        settle(self.dispatcher)
        return run_id

    def log(self, root: Any) -> list[str]:
        path = self.file(root, "log")
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    def below(self, root: Any) -> dict[str, str]:
        """The status of each run of the tree by its page, the first one first."""
        runs = RunRepository(self.connection).list(labels={"crawl": str(root)}, newest_first=False)
        return {run.inputs["url"].removeprefix("http://site.test/"): run.status for run in runs}


@pytest.fixture
def site(qwf_dsn: str, tmp_path: Path) -> Iterator[Site]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield Site(qwf_dsn, connection, tmp_path)


def whole(log: list[str]) -> None:
    """The setup, then all pages and their ends, then the end of the setup; each once."""
    assert log[:2] == ["open", "made"]
    assert log[-2:] == ["closed", "tidied"]
    pages = [f"{what}/{page}" for what in ("page", "end") for page in ("", "1", "2", "3")]
    assert Counter(log[2:-2]) == Counter(pages)


def test_a_setup_is_there_while_each_run_of_its_tree_is_and_gone_after_the_last(site: Site) -> None:
    """Each page, at three depths, and the end of each finds it; no page begins before it is made."""
    site.build()
    root = site.begin()
    with site.worker("--concurrency", "3"):
        site.until(lambda: site.status(root) == "completed")
    whole(site.log(root))
    assert site.below(root) == dict.fromkeys(["", "1", "2", "3"], "completed")
    assert {name: tuple(rest) for name, *rest in _attempts(site)} == {
        OPEN: (1, 1),
        MADE: (1, 1),
        TIDY: (1, 1),
        PAGE: (4, 1),
        PAGE_END: (4, 1),
    }


def _attempts(site: Site) -> list[tuple[Any, ...]]:
    """How many jobs there are of each hook, and the most attempts of one."""
    return site.connection.execute(
        "SELECT node_module, count(*), max(attempt) FROM workflow_node_jobs"
        " WHERE node_module IS NOT NULL GROUP BY node_module"
    ).fetchall()


def test_nothing_of_a_tree_begins_if_its_setup_fails(site: Site) -> None:
    """The run says which hook it was; what is in the background ends, and the hooks of the end run."""
    site.build()
    site.put("broken/on_SiteSetup__30_broken.sh", "exit 3", **{"x-max-attempts": 2, "x-retry-s": 0})
    root = site.begin()
    with site.worker(**SOON):
        site.until(lambda: site.status(root) == "failed")
    assert (site.log(root), site.below(root)) == (["open", "made", "closed", "tidied"], {})
    run = RunRepository(site.connection).fetch(root)
    assert run is not None
    assert run.error is not None
    assert (run.error["node"], run.error["message"]) == (
        "broken__30_broken_sh",
        "broken/on_SiteSetup__30_broken.sh: exit status 3",
    )
    said = qwf_here("--db", site.dsn, "explain", str(root), "first_run").stdout
    assert "broken__30_broken_sh failed" in said


def test_a_cancel_of_a_tree_ends_its_setup_at_once(site: Site) -> None:
    """With the pages that are at work; no hooks of the end run."""
    site.build('echo "here/$url" >> $ROOT/log', UNTIL.format("$ROOT/go"))
    root = site.begin()
    with site.worker("--concurrency", "3"):
        site.until(lambda: "here/" in site.log(root))
        cancel_run(root, conn=site.connection)
        site.until(lambda: site.status(root) == "cancelled" and site.below(root) == {"": "cancelled"})
        site.until(lambda: site.jobs_of("running") == 0)
    assert site.log(root) == ["open", "made", "here/", "closed"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_setup_that_is_lost_with_its_worker_begins_anew_for_the_runs_that_are_left(
    site: Site, how: signal.Signals
) -> None:
    """Its tree goes on: no page runs twice that was over, and no tree is begun a second time.

    Those that are at work fail until the browser is there again, as often as they may.
    """
    site.build(f'[ "$url" != 1 ] || {{ touch $ROOT/at_work; {UNTIL.format("$ROOT/go")}; }}', attempts=999)
    root = site.begin()
    short = {"QWF_LEASE_S": "2", "QWF_GRACE_S": "1"}
    with site.worker("--concurrency", "3", **SOON, **short) as worker:
        site.until(lambda: site.file(root, "at_work").exists() and "end/2" in site.log(root))
        os.kill(worker.pid, how)
        worker.wait()
    site.file(root, "go").touch()
    with site.worker("--concurrency", "3", **SOON, **short):
        site.until(lambda: site.status(root) == "completed")
    log = site.log(root)
    assert log.count("open") == 2
    assert Counter(log)["made"] == 2
    assert log[-2:] == ["closed", "tidied"]
    pages = [f"{what}/{page}" for what in ("page", "end") for page in ("", "1", "2", "3")]
    assert [Counter(log)[page] for page in pages] == [1] * 8
    assert site.below(root) == dict.fromkeys(["", "1", "2", "3"], "completed")


def test_a_retry_of_a_tree_sets_it_up_again_for_its_first_run(site: Site) -> None:
    """The first run goes on where it failed; that cannot be retried by itself."""
    site.build("[ -e $ROOT/go ]")
    root = site.begin()
    with site.worker(**SOON):
        site.until(lambda: site.status(root) == "failed")
        (first,) = RunRepository(site.connection).list(labels={"crawl": str(root)})
        refused = qwf_here("--db", site.dsn, "run", "retry", str(first.id), status=1)
        assert f"not retried: run {first.id} belongs to a node of run {root}" in refused.stdout
        site.file(root, "go").touch()
        retry_run(root, conn=site.connection)
        site.until(lambda: site.status(root) == "completed")
    log = site.log(root)
    again = log[log.index("tidied") + 1 :]
    assert log[: -len(again)] == ["open", "made", "end/", "closed", "tidied"]
    assert again[:3] == ["open", "made", "page/"]
    assert again[-2:] == ["closed", "tidied"]
    assert set(again[3:-2]) >= {"page/1", "page/2", "page/3"}
    assert site.below(root) == dict.fromkeys(["", "1", "2", "3"], "completed")


def test_a_page_that_is_retried_after_its_tree_finds_no_setup(site: Site) -> None:
    """The command says so; while the tree goes on it is there, and waits for the page."""
    site.build('[ -e $ROOT/go ] || [ "$url" != 2 ]', f'[ "$url" != 3 ] || {UNTIL.format("$ROOT/last")}')
    root = site.begin()

    def page(url: str) -> Any:
        return RunRepository(site.connection).list(labels={"crawl": str(root), "title": url})

    with site.worker("--concurrency", "3", **SOON):
        site.until(lambda: site.below(root).get("2") == "failed")
        runs = RunRepository(site.connection).list(labels={"crawl": str(root)})
        (failed,) = [run.id for run in runs if run.status == "failed"]
        site.file(root, "go").touch()
        assert "its tree" not in qwf_here("--db", site.dsn, "run", "retry", str(failed)).stderr
        site.until(lambda: site.status(failed) == "completed")
        assert "closed" not in site.log(root)
        site.file(root, "go").unlink()
        qwf_here("--db", site.dsn, "run", "retry", str(failed), "--from", "page__10_page_sh")
        site.until(lambda: site.status(failed) == "failed")
        site.file(root, "last").touch()
        site.until(lambda: site.status(root) == "completed")
        site.file(root, "go").touch()
        said = qwf_here("--db", site.dsn, "run", "retry", str(failed)).stderr
        assert f"its tree was set up by run {root}, which is over" in said
        site.until(lambda: site.status(failed) == "failed")
    assert "kill" in _why(site, failed)


def _why(site: Site, run_id: Any) -> str:
    return qwf_here("--db", site.dsn, "explain", str(run_id), "page__10_page_sh").stdout


def test_a_worker_with_one_place_in_the_background_has_it_for_the_pages_too(site: Site) -> None:
    """What is there for all of them does not keep theirs from beginning, one after the other."""
    site.build()
    site.put(
        f"hear/{HEAR}",
        URL,
        'echo "hear/$url" >> $ROOT/hear',
        "trap 'exit 0' TERM",
        "while :; do sleep 0.1; done",
    )
    root = site.begin()
    with site.worker("--concurrency", "3", "--max-background", "1"):
        site.until(lambda: site.status(root) == "completed")
    whole(site.log(root))
    heard = site.file(root, "hear").read_text(encoding="utf-8").split()
    assert Counter(heard) == Counter(["hear/", "hear/1", "hear/2", "hear/3"])


def test_a_setup_lasts_longer_than_its_plugins_timeout(site: Site) -> None:
    """That is how long it may take to end; and its lock is shared by the pages that need it."""
    old_enough = 'until [ "$(ps -o etimes= -p $(cat $ROOT/browser/up))" -ge 3 ]; do sleep 0.1; done'
    limit = {"BROWSER_TIMEOUT": {"type": "number", "default": 1}}
    site.build(f'[ "$url" != 2 ] || {old_enough}', **{"properties": limit, "x-host-lock": "screen"})
    site.put("browser/on_Page__20_shot.sh", URL, f'{ALIVE} && echo "shot/$url" >> $ROOT/shots')
    root = site.begin()
    with site.worker("--concurrency", "3"):
        site.until(lambda: site.status(root) == "completed")
    whole(site.log(root))
    assert len(site.file(root, "shots").read_text().split()) == 4
