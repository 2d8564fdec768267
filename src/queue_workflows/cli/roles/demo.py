"""`qwf demo`: the bundled example, told line by line, and drawn when it is over."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.page.web import check_installed, page_beside
from queue_workflows.db.connections.engine import Database
from queue_workflows.demo import Outcome, Row, Stage, run_demo
from queue_workflows.drawing.changes import changes, in_words
from queue_workflows.drawing.run import draw
from queue_workflows.drawing.terminal import Terminal, stdout_terminal
from queue_workflows.drawing.timeline import Bar, draw_timeline
from queue_workflows.engine.watch.run_view import RunOverview
from queue_workflows.errors import ExitCode
from queue_workflows.states import JobStatus
from queue_workflows.views.json_values import plain
from queue_workflows.views.runs.show import run_json
from queue_workflows.workflow.document.nodes import InputNode

NEXT = """\
Try next:
  qwf demo                   again: another film in the same database
  qwf run show {run}
                             the picture above, whenever you like; `qwf run list` has all runs
  qwf queue stats            what waits on each queue
  qwf doctor                 what the database is like, and what to do about it
  docs/tutorial.md, to build such an application from nothing"""
_NOBODY: Final = (
    "          nobody is there to be asked, so the answer is yes; --yes gives it without this remark"
)
_PER_LINE: Final = 3
# How often it is looked whether the page has the answer.
_LOOK_S: Final = 0.5
_GAP: Final = "   "


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Answer the film's question by yes, without asking.")
@click.option("--in-browser", is_flag=True, help="Leave the answer to the operator's page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; the story goes to stderr.")
@click.pass_obj
def demo(invocation: Invocation, yes: bool, in_browser: bool, as_json: bool) -> ExitCode:
    """Run the bundled example: a workflow that makes a film.

    Migrates the database and starts the film in one transaction with a row of its own; a supervisor with an
    orchestrator, a scheduler and workers makes it, asks you whether to publish it, and stops. Then the run is
    drawn, and which worker did what when. Meanwhile the operator's page is served, where it is installed, and
    takes the answer as well. Without a database it starts an embedded Postgres in .qwf/. May be
    run as often as you like; it refuses a database in which others work.
    """
    terminal = stdout_terminal()
    say: Callable[[str], None] = lambda line: click.echo(line, err=as_json)  # noqa: E731
    if yes and in_browser:
        raise click.UsageError("--yes gives the answer that --in-browser leaves to the page: one of them")
    if in_browser:
        check_installed()
    asks = _always_yes if yes else wait_for_page if in_browser else ask
    stage = Stage(say, _Shown(say, terminal), asks, lambda database: _page(database, say))
    outcome = run_demo(invocation.db_url, stage)
    if as_json:
        told = asdict(outcome) | {"run": run_json(outcome.run)}
        click.echo(json.dumps(told, indent=2, default=plain))
    else:
        for line in _drawn(outcome, terminal):
            click.echo(line)
    return ExitCode.DONE if outcome.complete else ExitCode.FAILED


@contextmanager
def _page(database: Database, say: Callable[[str], None]) -> Iterator[None]:
    """The operator's page while the story is told, where it is installed."""
    # It is over in a moment, so no page that is open then has to go on: it leaves no key.
    with page_beside(database, keeps_key=False) as page:
        if page is not None:
            say(f"page      {page.first_url}")
        yield


class _Shown:
    """What changed since the last look, a line each."""

    def __init__(self, say: Callable[[str], None], terminal: Terminal) -> None:
        self._say = say
        self._terminal = terminal
        self._before: RunOverview | None = None

    def __call__(self, seen: RunOverview) -> None:
        for change in changes(self._before, seen):
            self._say(f"          {in_words(change, self._terminal)}")
        self._before = seen


# Being asked.


def _always_yes(_node: InputNode, _within_s: float, _is_answered: Callable[[], bool]) -> Mapping[str, Any]:
    return {"ok": True}


def wait_for_page(_node: InputNode, within_s: float, is_answered: Callable[[], bool]) -> None:
    """Nothing is asked here: somebody answers on the page, or nobody does in time."""
    until = time.monotonic() + within_s
    while time.monotonic() < until and not is_answered():
        time.sleep(_LOOK_S)


def ask(
    node: InputNode, within_s: float, is_answered: Callable[[], bool] = lambda: False
) -> Mapping[str, Any] | None:
    """Ask in the terminal, for as long as anybody waits for the answer and the page has not given it."""
    if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
        click.echo(_NOBODY, err=True)
        return {"ok": True}
    until = time.monotonic() + within_s
    while (left := until - time.monotonic()) > 0:
        click.echo(f"\n{node.prompt} [Y/n] ({left:.0f} s) ", nl=False, err=True)
        if not _is_typed(until, is_answered):
            break
        line = sys.stdin.readline()
        said = line.strip().lower()
        if said in ("", "y", "yes", "n", "no"):
            return {"ok": line != "" and said in ("", "y", "yes")}
        click.echo("please say yes or no", err=True)
    click.echo(err=True)
    return None


def _is_typed(until: float, is_answered: Callable[[], bool]) -> bool:
    """Whether something can be read before the time is over or the answer came from elsewhere."""
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], min(left, _LOOK_S))[0]:
            return True
        if is_answered():
            return False
    return False


# Drawing.


def _drawn(outcome: Outcome, terminal: Terminal) -> Iterator[str]:
    yield ""
    yield from draw(outcome.run, terminal)
    yield ""
    yield from draw_timeline([_bar(row) for row in outcome.jobs], terminal)
    yield ""
    yield from _film(outcome)
    yield _where(outcome)
    yield ""
    yield NEXT.format(run=outcome.run.id)


def _bar(row: Row) -> Bar:
    """A parked job is at it from the beginning: nobody has to come for it."""
    is_parked = row.worker is None and row.status != JobStatus.SKIPPED
    started = row.created_at if is_parked else row.started_at
    worker = row.worker or ("nobody: parked" if is_parked else row.status)
    return Bar(row.name, row.status, worker, row.created_at, started, row.finished_at, is_parked)


def _film(outcome: Outcome) -> Iterator[str]:
    """The pictures side by side, and which of them had to wait for the model."""
    drawn = [row for row in outcome.jobs if isinstance(row.result, dict) and "picture" in row.result]
    drawn.sort(key=lambda row: row.name)
    for start in range(0, len(drawn), _PER_LINE):
        rows = drawn[start : start + _PER_LINE]
        titles = [f"{row.name}: {_model(row.result)}" for row in rows]
        pictures = [row.result["picture"] for row in rows]
        width = max(len(line) for picture in pictures for line in picture)
        for cells in [titles, *zip(*pictures, strict=True)]:
            yield _GAP.join(cell.ljust(width) for cell in cells).rstrip()
        yield ""


def _model(result: Mapping[str, Any]) -> str:
    return "warm model" if result["warm"] else f"loaded in {result['load_s']:.1f}s"


def _where(outcome: Outcome) -> str:
    """Where the data lies, and how to be rid of it."""
    if outcome.data_directory:
        return f"The data stays in {outcome.data_directory}; the server stops with its last user."
    return (
        f"The data stays in {outcome.database}: the engine's tables, and the schema qwf_demo,\n"
        "which `DROP SCHEMA qwf_demo CASCADE` removes."
    )
