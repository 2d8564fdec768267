"""`qwf run cancel`, `retry`, `unpoison` and `unpin`: one run, or all that match."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import click
import psycopg

from queue_workflows.cli import Invocation
from queue_workflows.cli.runs.listing import filter_of, filter_options, print_lines
from queue_workflows.cli.shared.operator import (
    audit_options,
    confirm,
    deciding_options,
    json_option,
    operators_connection,
    print_json,
    say,
    tell_each,
)
from queue_workflows.cli.shared.run_names import run_named, runs_named
from queue_workflows.drawing.words import COUNTED, number_of
from queue_workflows.engine.operate.many_runs import (
    Refusal,
    cancel_matching,
    pages_of,
    retry_each,
    unpoison_matching,
)
from queue_workflows.engine.runs.retry import RunRetry
from queue_workflows.engine.runs.verbs import cancel_node
from queue_workflows.errors import ExitCode, UnknownRun
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.reports.run_search import RunSearch
from queue_workflows.repositories.runs.listing import RunFilter, RunLinesRepository
from queue_workflows.repositories.runs.outbox_counts import DispatchEventRepository
from queue_workflows.states import RUN_TERMINAL, RunStatus
from queue_workflows.views.json_values import named
from queue_workflows.views.runs import decisions as decided
from queue_workflows.views.runs.decisions import (
    OPEN,
    foretell_cancel,
    said_of_retry,
    said_of_unpin,
    said_of_unpoison,
    setup_remark,
    statuses,
)

# Of all that match, and shall go on with another document.
_FORETOLD: Final = 10


def _checked(
    verb: str, names: Sequence[str], given: dict[str, Any], usually: Sequence[str], allowed: Sequence[str]
) -> RunFilter | None:
    """What is meant by options; None where runs are named."""
    said = filter_of(**given)
    if bool(names) == (not said.is_empty or said.status is not None):
        raise click.UsageError(
            "name runs, or say by --label, --workflow and the like which are meant; not both"
        )
    for status in said.status or ():
        if status not in allowed:
            raise click.UsageError(f"no run that is {status} can be {verb}")
    return None if names else replace(said, status=said.status or tuple(usually))


@click.command()
@deciding_options(filter_options, "[RUN]...")
@click.option("--node", metavar="NODE", help="Only this node of RUN, and what needs it.")
@click.pass_obj
def cancel(
    invocation: Invocation,
    /,
    *,
    names: Sequence[str],
    node: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    actor: str,
    reason: str | None,
    **given: Any,
) -> ExitCode:
    """Cancel RUNs, or all that match.

    What waits is over, what runs is asked to stop, and nothing starts any more.
    """
    wanted = _checked("cancelled", names, given, OPEN, OPEN)
    by: dict[str, Any] = {"actor": actor, "reason": reason}
    if node is not None and (len(names) != 1 or dry_run):
        raise click.UsageError("--node goes with one RUN, and without --dry-run")
    with operators_connection(invocation) as connection:
        if node is not None:
            return _cancel_node(connection, run_named(connection, names[0]), node, by, as_json=as_json)
        if wanted is None:
            runs = runs_named(connection, names)
            return _cancel_named(connection, runs, by, dry_run=dry_run, as_json=as_json)
        matched = _preview(connection, wanted, quiet=as_json)
        if dry_run or not matched:
            _tell_matched(matched, "would be cancelled", dry_run=dry_run, as_json=as_json)
            return ExitCode.DONE
        if not confirm(f"Cancel {number_of('run', matched)}?", yes=yes):
            return ExitCode.FAILED
        asked = sum(cancel_matching(connection, wanted, **by))
    if as_json:
        print_json({"asked": asked})
    else:
        click.echo(f"{number_of('run', asked)} asked to stop")
    return ExitCode.DONE


def _cancel_node(
    connection: psycopg.Connection[Any], run_id: uuid.UUID, node: str, by: dict[str, Any], *, as_json: bool
) -> ExitCode:
    asked = cancel_node(run_id, node, conn=connection, **by)
    if as_json:
        print_json({"run": run_id, "node": node, "asked": asked})
    else:
        click.echo(f"{node} of {run_id}: {'asked to stop' if asked else 'not cancelled, it is over'}")
    return ExitCode.DONE if asked else ExitCode.FAILED


def _cancel_named(
    connection: psycopg.Connection[Any],
    runs: list[uuid.UUID],
    by: dict[str, Any],
    *,
    dry_run: bool,
    as_json: bool,
) -> ExitCode:
    told = foretell_cancel(connection, runs) if dry_run else decided.cancel(connection, runs, **by)
    tell_each("run", {str(run_id): answer for run_id, answer in told.answers.items()}, as_json=as_json)
    return ExitCode.DONE if dry_run or told.is_all else ExitCode.FAILED


@click.command()
@deciding_options(filter_options, "[RUN]...")
@click.option("--from", "from_node", metavar="NODE", help="Run this node again too, and all that follows it.")
@click.option(
    "--document",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Go on with this document: what it changes runs again, the rest keeps its results.",
)
@click.option("--latest", is_flag=True, help="Go on with the document that the app has now for the workflow.")
@click.pass_obj
def retry(
    invocation: Invocation,
    /,
    *,
    names: Sequence[str],
    from_node: str | None,
    document: Path | None,
    latest: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    actor: str,
    reason: str | None,
    **given: Any,
) -> ExitCode:
    """Run RUNs again that are over, or all failed ones that match: what failed, and what follows from it.

    Finished results are kept. --dry-run says which nodes would run again. With --document or --latest it is
    shown first what changes and what is kept, of all that match for the first ten, and asked.
    """
    if document is not None and latest:
        raise click.UsageError("--document or --latest, not both")
    wanted = _checked("retried", names, given, (RunStatus.FAILED.value,), sorted(RUN_TERMINAL))
    how: dict[str, Any] = {"from_node": from_node, "dry_run": dry_run, "actor": actor, "reason": reason}
    how |= {"document": document, "latest": latest, "several": len(names) != 1}
    asks_first = bool(document or latest) and not dry_run and not yes
    answers: list[RunRetry | Refusal] = []
    with operators_connection(invocation) as connection:
        if wanted is None:
            runs = runs_named(connection, names)
            statuses(connection, runs)
            if asks_first:
                _foretell_retries(connection, runs, how, quiet=as_json)
                if not confirm(f"Run {number_of('run', len(runs))} again with this document?", yes=yes):
                    return ExitCode.FAILED
            answers += retry_each(connection, runs, **how)
        else:
            matched = _preview(connection, wanted, quiet=as_json)
            if asks_first:
                oldest = next(pages_of(connection, wanted), [])[:_FORETOLD]
                _foretell_retries(connection, oldest, how, quiet=as_json)
            if matched and not dry_run and not confirm(f"Run {number_of('run', matched)} again?", yes=yes):
                return ExitCode.FAILED
            for page in pages_of(connection, wanted):
                answers += retry_each(connection, page, **how)
    _tell_retries(answers, dry_run=dry_run, as_json=as_json)
    return ExitCode.FAILED if any(isinstance(one, Refusal) for one in answers) else ExitCode.DONE


def _foretell_retries(
    connection: psycopg.Connection[Any], runs: list[uuid.UUID], how: dict[str, Any], *, quiet: bool
) -> None:
    """What another document would mean for each of these."""
    if not quiet:
        _tell_retries(list(retry_each(connection, runs, **how | {"dry_run": True})), dry_run=True)


def _retry_json(one: RunRetry) -> dict[str, Any]:
    kept = [{"node": node, "kept": count} for node, count in one.elements_kept.items()]
    return named(asdict(one)) | {"elements_kept": kept}


def _tell_retries(answers: Sequence[RunRetry | Refusal], *, dry_run: bool, as_json: bool = False) -> None:
    if as_json:
        told = [
            {"run": one.run_id, "refused": one.why}
            if isinstance(one, Refusal)
            else _retry_json(one) | {"dry_run": dry_run}
            for one in answers
        ]
        print_json(told)
        return
    for one in answers:
        click.echo(f"{one.run_id}: {said_of_retry(one, dry_run=dry_run)}")
        if (remark := setup_remark(one)) is not None:
            say(remark)
    if not answers:
        say("no runs match")


@click.command()
@deciding_options(filter_options, "[RUN]...")
@click.pass_obj
def unpoison(
    invocation: Invocation,
    /,
    *,
    names: Sequence[str],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    actor: str,
    reason: str | None,
    **given: Any,
) -> ExitCode:
    """Have events of RUNs, or of all that match, tried again that were given up.

    `qwf run list --poisoned` finds such runs, `qwf run show` has their errors.
    """
    wanted = _checked("unpoisoned", names, given, (), [status.value for status in RunStatus])
    by: dict[str, Any] = {"actor": actor, "reason": reason}
    with operators_connection(invocation) as connection:
        if wanted is None:
            runs = runs_named(connection, names)
            return _unpoison_named(connection, runs, by, dry_run=dry_run, as_json=as_json)
        wanted = replace(wanted, status=wanted.status or None, poisoned=True)
        matched = _preview(connection, wanted, quiet=as_json)
        if dry_run or not matched:
            _tell_matched(matched, "would be unpoisoned", dry_run=dry_run, as_json=as_json)
            return ExitCode.DONE
        if not confirm(f"Unpoison {number_of('run', matched)}?", yes=yes):
            return ExitCode.FAILED
        freed = [events for page in unpoison_matching(connection, wanted, **by) for events in page.values()]
    if as_json:
        print_json({"runs": len(freed), "events": sum(freed)})
    else:
        click.echo(f"{number_of('event', sum(freed))} of {number_of('run', len(freed))} tried again")
    return ExitCode.DONE


def _unpoison_named(
    connection: psycopg.Connection[Any],
    runs: list[uuid.UUID],
    by: dict[str, Any],
    *,
    dry_run: bool,
    as_json: bool,
) -> ExitCode:
    statuses(connection, runs)
    if dry_run:
        poisoned = RunLinesRepository(connection).poisoned_among(runs)
        told = {True: "would be tried again", False: said_of_unpoison(0)}
        tell_each("run", {str(run_id): told[run_id in poisoned] for run_id in runs}, as_json=as_json)
        return ExitCode.DONE
    freed = DispatchEventRepository(connection).unpoison(runs, **by)
    if as_json:
        print_json([{"run": str(run_id), "events": freed.get(run_id, 0)} for run_id in runs])
    else:
        answers = {str(run_id): said_of_unpoison(freed.get(run_id, 0)) for run_id in runs}
        tell_each("run", answers, as_json=False)
    return ExitCode.DONE if len(freed) == len(runs) else ExitCode.FAILED


@click.command()
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@json_option
@audit_options
@click.pass_obj
def unpin(
    invocation: Invocation, *, names: Sequence[str], as_json: bool, actor: str, reason: str | None
) -> ExitCode:
    """Let RUNs of hooks go on at another host than the one that they began at.

    For a host that is gone, with the files of their hooks: what is tried again begins in empty directories.
    """
    with operators_connection(invocation) as connection:
        runs = runs_named(connection, names)
        jobs = HookJobRepository(connection)
        freed = {run_id: jobs.unpin(run_id, actor=actor, reason=reason) for run_id in runs}
    for run_id, found in freed.items():
        if found is None:
            raise UnknownRun(run_id)
    hosts = {str(run_id): found[0] for run_id, found in freed.items() if found is not None}
    if as_json:
        print_json([{"run": name, "host_label": host} for name, host in hosts.items()])
    else:
        tell_each("run", {name: said_of_unpin(host) for name, host in hosts.items()}, as_json=False)
    return ExitCode.DONE if all(hosts.values()) else ExitCode.FAILED


def _preview(connection: psycopg.Connection[Any], wanted: RunFilter, *, quiet: bool) -> int:
    """How many match, with the newest of them to look at."""
    runs = RunLinesRepository(connection)
    if not quiet:
        print_lines(RunSearch(connection).page(wanted, limit=5).lines)
    return runs.count(wanted, at_most=COUNTED)


def _tell_matched(matched: int, what: str, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"matched": matched, "dry_run": dry_run})
    else:
        say(f"{number_of('run', matched)} {what if matched else 'match'}")
