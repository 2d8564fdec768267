"""`qwf workers`: which workers there are, and telling them to pause, to go off, to go on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource

from queue_workflows.cli import Invocation
from queue_workflows.cli.operations.worker_lines import (
    WORKER_TITLES,
    lacks_of,
    quarantine_of,
    worker_cells,
)
from queue_workflows.cli.operations.worker_preview import preview, preview_options
from queue_workflows.cli.operations.worker_show import host, show
from queue_workflows.cli.shared.durations import span
from queue_workflows.cli.shared.lazy_group import CommandGroup
from queue_workflows.cli.shared.operator import (
    audit_options,
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.config import effective_settings
from queue_workflows.drawing.words import number_of, on_one_line, say_span
from queue_workflows.errors import ExitCode
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.obedience import Standing
from queue_workflows.roles.await_workers import LOOK_EVERY_S, Awaited, await_obedience
from queue_workflows.settings.fields import HOST_LABEL, QUEUE_NAME
from queue_workflows.states import DesiredState
from queue_workflows.views.workers.drain import HostDrain, ask_to_drain, read_drain
from queue_workflows.views.workers.drain import json_of as drain_json
from queue_workflows.views.workers.listing import code_named, json_of, read_workers
from queue_workflows.views.workers.wishes import ask_workers, told_of


class _Verb(click.Command):
    """A command that knows the likeliest slip: a star that the shell has made into names of files."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as refused:
            if "extra argument" not in refused.message:
                raise
            raise click.UsageError(f"{refused.message} A star needs quotes: '*'.", ctx) from None


@click.group(cls=CommandGroup, no_args_is_help=True)
def workers() -> None:
    """See the workers, and tell them what to do.

    HOST is a host label as the list shows it, QUEUE a queue; '*' (in quotes, against the shell) is any. The
    strictest wish that matches a worker holds. Wishes are rows: they outlive workers, machines and restarts.
    """


workers.add_command(show)
workers.add_command(host)


@workers.command("list")
@click.option("--host", default="*", metavar="HOST", help="Only of this host.")
@click.option("--queue", default="*", metavar="QUEUE", help="Only of this queue.")
@click.option("--all", "everyone", is_flag=True, help="Also those that were not heard of for an hour.")
@json_option
@click.pass_obj
def list_(invocation: Invocation, *, host: str, queue: str, everyone: bool, as_json: bool) -> None:
    """Show every worker: what it does, when it was seen, and what was asked of it."""
    stale_s = effective_settings().stale_heartbeat_s
    with operators_connection(invocation) as connection:
        seen = read_workers(connection, stale_s=stale_s, host=host, queue=queue, everyone=everyone)
    shown = seen.workers
    if as_json:
        print_json(json_of(seen))
        return
    print_table(WORKER_TITLES, [worker_cells(one, stale_s, code_named(one, seen.code)) for one in shown])
    for one in shown:
        if one.cached_models:
            click.echo(f"{one.worker_id} has loaded: {', '.join(map(str, one.cached_models))}")
        if one.lacks:
            click.echo(on_one_line(lacks_of(one)))
    if seen.is_cut:
        say("there are more, which were heard of longer ago; --host or --queue shows those")
    if not shown:
        say(
            "no worker was heard of"
            if everyone
            else "no worker was heard of for an hour; --all shows older ones"
        )
    for wish in seen.wishes:
        click.echo(told_of(wish))
    for one in shown:
        if one.is_quarantined:
            click.echo(on_one_line(quarantine_of(one)))


def _host(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    return _matching(HOST_LABEL, value, "host label")


def _queue(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    return _matching(QUEUE_NAME, value, "queue name")


def _matching(pattern: str, value: str, what: str) -> str:
    if value != "*" and not re.fullmatch(pattern, value):
        raise click.BadParameter(f"{value!r} is no {what}; '*', in quotes, is any")
    return value


def queue_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """A queue, or any."""
    return click.argument("queue", callback=_queue)(command)


def wish_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What every verb that asks something of workers takes."""
    for decorate in (
        audit_options,
        click.option(
            "--timeout",
            type=span,
            metavar="SPAN",
            default=300.0,
            show_default="5m",
            help="How long to --wait.",
        ),
        click.option("--wait", is_flag=True, help="Return when every worker that is heard of does so."),
    ):
        command = decorate(command)
    return command


def _wishing(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("host", callback=_host)(queue_argument(wish_options(command)))


def for_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """A wish that ends by itself."""
    return click.option(
        "--for", "lasting", type=span, metavar="SPAN", help="Only for so long: 90s, 15m, 2h, 1d."
    )(command)


@workers.command(cls=_Verb)
@_wishing
@for_option
@preview_options
@click.pass_obj
def pause(invocation: Invocation, /, **asked: Any) -> ExitCode:
    """Finish the current job, claim nothing more."""
    return ask_or_preview(invocation, DesiredState.PAUSE, **asked)


@workers.command(cls=_Verb)
@_wishing
@for_option
@preview_options
@click.pass_obj
def off(invocation: Invocation, /, **asked: Any) -> ExitCode:
    """Stop at once: jobs are given back uncounted, nothing stays loaded."""
    return ask_or_preview(invocation, DesiredState.OFF, **asked)


@workers.command(cls=_Verb)
@_wishing
@click.pass_obj
def on(invocation: Invocation, /, **asked: Any) -> ExitCode:
    """Take back what was asked of HOST and QUEUE, and say what still keeps workers there from working.

    Devices that are quarantined there are tried again.
    """
    return ask(invocation, DesiredState.ON, lasting=None, **asked)


@workers.command(cls=_Verb)
@click.argument("host", required=False)
@click.option(
    "--give-back", "gives_back", is_flag=True, help="Stop its jobs at once; they are given back uncounted."
)
@wish_options
@for_option
@json_option
@click.pass_obj
def drain(
    invocation: Invocation,
    *,
    host: str | None,
    gives_back: bool,
    wait: bool,
    timeout: float,
    lasting: float | None,
    actor: str,
    reason: str | None,
    as_json: bool,
) -> ExitCode:
    """Empty HOST: its workers claim nothing more on any queue, and finish the jobs that they hold.

    Without HOST it is the one that this command runs on. It is a wish like a pause, so it holds for workers
    that start there as well: `qwf workers on HOST '*'` takes it back. Ends with 0 only if no worker of the
    host holds a job; with 1 if some still do or the wish is over, as it was taken back or by --for, so that
    workers claim again; with 73 if some still do when the time to --wait is over.
    """
    if wait and lasting is not None and timeout > lasting:
        if click.get_current_context().get_parameter_source("timeout") is not ParameterSource.DEFAULT:
            raise click.UsageError(
                f"--wait goes on for {say_span(timeout)}, and the wish is over after {say_span(lasting)}: "
                "give a longer --for, or a shorter --timeout"
            )
        timeout = lasting
    settings = effective_settings()
    host, stale_s = host or settings.host_label, settings.stale_heartbeat_s
    with operators_connection(invocation) as connection:
        wish = ask_to_drain(
            connection, host, gives_back=gives_back, lasting=lasting, actor=actor, reason=reason
        )
        if not as_json:
            click.echo(told_of(wish))
        seen = _drained(
            lambda: read_drain(connection, wish, stale_s=stale_s), timeout if wait else 0.0, tells=not as_json
        )
    if as_json:
        print_json(drain_json(seen))
    else:
        _say_how_far(seen)
    if seen.is_empty:
        return ExitCode.DONE
    return ExitCode.DEADLINE if wait and not seen.is_over else ExitCode.FAILED


def _drained(look: Callable[[], HostDrain], timeout_s: float, *, tells: bool) -> HostDrain:
    """Look until the host is empty, the time is over, or the wish."""
    until, told = time.monotonic() + timeout_s, ""
    while not (seen := look()).is_empty and not seen.is_over and time.monotonic() < until:
        if tells and (news := _left(seen)) != told:
            say(f"waiting for {news}")
            told = news
        time.sleep(LOOK_EVERY_S)
    return seen


def _say_how_far(seen: HostDrain) -> None:
    if seen.silent:
        say(f"not waited for, as nothing is heard of them: {_names(seen.silent)}")
    if seen.is_empty:
        click.echo(f"{seen.host_label} is empty: no worker there holds a job, and none will claim one")
    elif seen.is_over:
        left = _left(seen)
        say(f"the wish is over, so workers of {seen.host_label} may claim" + (f": {left}" if left else ""))
    else:
        say(f"{seen.host_label} is not empty: {_left(seen)}")


def _left(seen: HostDrain) -> str:
    """The jobs that run there, or the workers that may still claim one."""
    if seen.held:
        names = ", ".join(f"{one.name} ({one.title})" for one in seen.jobs[:5])
        return f"{number_of('job', seen.held)}: {names}" + (
            " and more" if seen.held > len(seen.jobs[:5]) else ""
        )
    return _names(seen.behind)


def ask_or_preview(
    invocation: Invocation, desired: DesiredState, *, dry_run: bool, as_json: bool, **asked: Any
) -> ExitCode:
    """Ask workers for something, or with `--dry-run` only say what that would do."""
    if not dry_run:
        if as_json:
            raise click.UsageError("--json goes with --dry-run")
        return ask(invocation, desired, **asked)
    if asked["wait"]:
        raise click.UsageError("--dry-run changes nothing, so there is nothing to --wait for")
    return preview(invocation, desired, host=asked["host"], queue=asked["queue"], as_json=as_json)


def ask(
    invocation: Invocation,
    desired: DesiredState,
    *,
    host: str,
    queue: str,
    lasting: float | None,
    actor: str,
    reason: str | None,
    wait: bool,
    timeout: float,
) -> ExitCode:
    """Ask workers for something, say what became of it, and wait for it if that was said too."""
    stale_s = effective_settings().stale_heartbeat_s
    with operators_connection(invocation) as connection:
        asked = ask_workers(
            connection,
            desired,
            host=host,
            queue=queue,
            lasting=lasting,
            actor=actor,
            reason=reason,
            stale_s=stale_s,
        )
        for line in asked.told:
            click.echo(line)
        for remark in asked.remarks:
            say(remark)
        if wait and asked.is_heard:
            beats = HeartbeatRepository(connection)
            return _wait(lambda: beats.standing(host, queue), asked.version, stale_s, timeout)
    return ExitCode.DONE


def _wait(look: Callable[[], Sequence[Standing]], version: int, stale_s: float, timeout_s: float) -> ExitCode:
    awaited = await_obedience(
        look,
        version=version,
        stale_s=stale_s,
        timeout_s=timeout_s,
        now=time.monotonic,
        sleep=time.sleep,
        tell=_tell,
    )
    if awaited.silent:
        say(f"not waited for, as nothing is heard of them: {_names(awaited.silent)}")
    if awaited.behind:
        say(f"after {say_span(timeout_s)} not there yet: {_names(awaited.behind)}")
        return ExitCode.DEADLINE
    click.echo("done by every worker that is heard of")
    return ExitCode.DONE


def _tell(awaited: Awaited) -> None:
    say(f"waiting for {_names(awaited.behind)}")


def _names(workers: Sequence[Standing]) -> str:
    shown = [f"{one.worker_id} ({one.current_job or one.state})" for one in workers[:5]]
    return ", ".join(shown) + (f" and {len(workers) - 5} more" if len(workers) > 5 else "")
