"""`qwf run cancel`, `retry`, `unpoison` and `unpin`: one run, or all that match."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import click
import psycopg

from queue_workflows.cli import Invocation
from queue_workflows.cli.runs.listing import filter_of, filter_options, print_lines
from queue_workflows.cli.shared.operator import (
    COUNTED,
    audit_options,
    confirm,
    deciding_options,
    json_option,
    number_of,
    operators_connection,
    print_json,
    say,
    tell_each,
)
from queue_workflows.cli.shared.run_names import run_named, runs_named
from queue_workflows.engine.operate.many_runs import (
    Refusal,
    cancel_matching,
    cancel_named,
    pages_of,
    retry_each,
)
from queue_workflows.engine.runs.retry import RunRetry
from queue_workflows.engine.runs.verbs import cancel_node
from queue_workflows.errors import ExitCode, UnknownRun
from queue_workflows.repositories.jobs.hooks import ANY_HOST, HookJobRepository
from queue_workflows.repositories.runs.listing import RunFilter, RunLinesRepository
from queue_workflows.repositories.runs.outbox_counts import DispatchEventRepository
from queue_workflows.repositories.runs.overview import OverviewRepository
from queue_workflows.repositories.runs.run_search import RunSearch
from queue_workflows.states import RUN_TERMINAL, RunStatus

_OPEN: Final = (RunStatus.QUEUED.value, RunStatus.RUNNING.value)
_NAMED: Final = 20


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
    wanted = _checked("cancelled", names, given, _OPEN, _OPEN)
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
    was = _statuses(connection, runs) if dry_run else cancel_named(connection, runs, **by)
    word = "would be asked to stop" if dry_run else "asked to stop"
    answers = {
        str(run_id): f"not cancelled, it is {was[run_id]}" if was[run_id] in RUN_TERMINAL else word
        for run_id in runs
    }
    tell_each(answers, as_json=as_json)
    is_all = not any(status in RUN_TERMINAL for status in was.values())
    return ExitCode.DONE if dry_run or is_all else ExitCode.FAILED


def _statuses(connection: psycopg.Connection[Any], runs: list[uuid.UUID]) -> dict[uuid.UUID, str]:
    """How each stands; one that is not there is a mistake, before any is touched."""
    found = {run_id: OverviewRepository(connection).run(run_id) for run_id in runs}
    for run_id, facts in found.items():
        if facts is None:
            raise UnknownRun(run_id)
    return {run_id: facts.status for run_id, facts in found.items() if facts is not None}


@click.command()
@deciding_options(filter_options, "[RUN]...")
@click.option("--from", "from_node", metavar="NODE", help="Run this node again too, and all that follows it.")
@click.pass_obj
def retry(
    invocation: Invocation,
    /,
    *,
    names: Sequence[str],
    from_node: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    actor: str,
    reason: str | None,
    **given: Any,
) -> ExitCode:
    """Run RUNs again that are over, or all failed ones that match: what failed, and what follows from it.

    Finished results are kept. --dry-run says which nodes would run again.
    """
    wanted = _checked("retried", names, given, (RunStatus.FAILED.value,), sorted(RUN_TERMINAL))
    how: dict[str, Any] = {"from_node": from_node, "dry_run": dry_run, "actor": actor, "reason": reason}
    answers: list[RunRetry | Refusal] = []
    with operators_connection(invocation) as connection:
        if wanted is None:
            runs = runs_named(connection, names)
            _statuses(connection, runs)
            answers += retry_each(connection, runs, **how)
        else:
            matched = _preview(connection, wanted, quiet=as_json)
            if matched and not dry_run and not confirm(f"Run {number_of('run', matched)} again?", yes=yes):
                return ExitCode.FAILED
            for page in pages_of(connection, wanted):
                answers += retry_each(connection, page, **how)
    _tell_retries(answers, dry_run=dry_run, as_json=as_json)
    return ExitCode.FAILED if any(isinstance(one, Refusal) for one in answers) else ExitCode.DONE


def _tell_retries(answers: Sequence[RunRetry | Refusal], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        told = [
            {"run_id": one.run_id, "refused": one.why}
            if isinstance(one, Refusal)
            else asdict(one) | {"dry_run": dry_run}
            for one in answers
        ]
        print_json(told)
        return
    for one in answers:
        said = f"not retried: {one.why}" if isinstance(one, Refusal) else _plan(one, dry_run)
        click.echo(f"{one.run_id}: {said}")
        if isinstance(one, RunRetry) and one.setup_over is not None:
            root = one.setup_over
            say(f"its tree was set up by run {root}, which is over: its hooks find nothing of that any more")
    if not answers:
        say("no runs match")


def _plan(retry: RunRetry, dry_run: bool) -> str:
    """In a line: what runs again, what is kept, and of lists how much."""
    again = [
        node + (f" (keeps {retry.elements_kept[node]:,} elements)" if node in retry.elements_kept else "")
        for node in retry.again
    ]
    if not again:
        return f"{'would put' if dry_run else 'puts'} its outputs together again"
    kept = f"; keeps {_listed(retry.kept)}" if retry.kept else ""
    return f"{'would run' if dry_run else 'runs'} again {_listed(again)}{kept}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


@click.command()
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@json_option
@audit_options
@click.pass_obj
def unpoison(
    invocation: Invocation, *, names: Sequence[str], as_json: bool, actor: str, reason: str | None
) -> ExitCode:
    """Have events of RUNs that were given up tried again; `qwf run show` has their errors."""
    with operators_connection(invocation) as connection:
        runs = runs_named(connection, names)
        _statuses(connection, runs)
        freed = DispatchEventRepository(connection).unpoison(runs, actor=actor, reason=reason)
    answers = {str(run_id): _events(freed.get(run_id, 0)) for run_id in runs}
    if as_json:
        print_json({str(run_id): freed.get(run_id, 0) for run_id in runs})
    else:
        tell_each(answers, as_json=False)
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
        print_json(hosts)
    else:
        tell_each({name: _freed(host) for name, host in hosts.items()}, as_json=False)
    return ExitCode.DONE if all(hosts.values()) else ExitCode.FAILED


def _freed(host: str | None) -> str:
    if host is not None and host.startswith(ANY_HOST):
        return "its shared directory is forgotten: the next hook begins another"
    return f"no longer {host}'s: the next worker that claims from it has it" if host else "was no host's"


def _events(count: int) -> str:
    if not count:
        return "nothing was poisoned"
    return "1 event is tried again" if count == 1 else f"{count:,} events are tried again"


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
