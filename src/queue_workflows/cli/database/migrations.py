"""`qwf db`: the migration chains on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from typing import Any

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.database.job_history import set_history
from queue_workflows.cli.database.serve import serve, stop
from queue_workflows.cli.shared.lazy_group import CommandGroup
from queue_workflows.cli.shared.operator import confirm, json_option, say
from queue_workflows.cli.shared.seconds import Seconds
from queue_workflows.db import migrations
from queue_workflows.db.connections.dsn import redact_dsn
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.migrations.chain.chains import host_chain, select_chains
from queue_workflows.db.migrations.session import SessionTerms
from queue_workflows.errors import ExitCode, SchemaDrift

STATUS_WORDS = {
    "empty": "not migrated",
    "behind": "behind",
    "current": "up to date",
    "ahead": "ahead of this code",
    "hand-made": "to be adopted",
    "unrecorded": "tables there, to be adopted",
    "contradictory": "one row too many",
    "damaged": "tables missing",
}

SINGLE = click.Choice(["engine", "host"])
ANY = click.Choice(["engine", "host", "all"])


@click.group(cls=CommandGroup, no_args_is_help=True)
def db() -> None:
    """Migrate the database and look at its schema.

    There are two chains of revisions: the engine's own, and the host app's, which the module named by --app
    brings with `configure(host_migrations=…)`.
    """


def terms_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The two patiences of everything that changes a schema, handed on as one `terms`."""

    @wraps(command)
    def with_terms(*args: Any, lock_timeout: float | None, wait: float | None, **kwargs: Any) -> Any:
        return command(*args, terms=SessionTerms(lock_timeout, wait, say), **kwargs)

    with_lock_timeout = click.option(
        "--lock-timeout",
        type=Seconds(min_open=True),
        metavar="SECONDS",
        help="How long a revision waits for a table lock, others behind it; else migration_lock_timeout_s.",
    )
    with_wait = click.option(
        "--wait",
        type=Seconds(),
        metavar="SECONDS",
        help="How long to wait for another migration of this database; else migration_wait_s.",
    )
    return with_wait(with_lock_timeout(with_terms))


def chain_option(choice: click.Choice[str], *, required: bool) -> Callable[[Any], Any]:
    """Which chain; what destroys or writes must be told."""
    if required:
        return click.option("--chain", type=choice, required=True, help="Which chain.")
    return click.option("--chain", type=choice, default="all", show_default=True, help="Which chain.")


def say_step(progress: migrations.Progress) -> None:
    """A line a revision, finished when that is committed or known to be not."""
    if progress.done or progress.fate:
        click.echo(progress.fate or "ok")
        return
    where = "" if progress.chain == "engine" else f"{progress.chain} "
    undone = "undo " if progress.direction == "downgrade" else ""
    click.echo(f"{undone}{where}{progress.revision} {progress.subject} … ", nl=False)


@db.command()
@click.argument("revision", default="head")
@chain_option(ANY, required=False)
@click.option("--sql", is_flag=True, help="Print the SQL instead; FROM:TO begins elsewhere than at base.")
@terms_options
@click.pass_obj
def upgrade(invocation: Invocation, *, revision: str, chain: str, sql: bool, terms: SessionTerms) -> None:
    """Bring the schema to REVISION (default: head), the engine's chain first."""
    chains = select_chains(chain, host_chain())
    if len(chains) > 1 and revision not in ("head", "heads"):
        raise click.UsageError("a revision belongs to one chain: say --chain engine or --chain host")
    if sql:
        for one in chains:
            click.echo(migrations.offline_sql(one, direction="upgrade", revision=revision), nl=False)
        return
    applied = migrations.upgrade(
        invocation.db_url,
        chains=chains,
        revision=revision,
        terms=terms,
        report=say_step,
    )
    if not applied:
        click.echo("nothing to do")


class _Relative(click.Command):
    """Takes a number of revisions to go back, such as -2, for its argument and not for an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        back = [word for word in args if re.fullmatch(r"-[0-9]+", word)]
        if len(back) == 1 and "--" not in args:
            args = [*(word for word in args if word not in back), "--", *back]
        return super().parse_args(ctx, args)


@db.command(cls=_Relative)
@click.argument("revision")
@click.option("--chain", type=SINGLE, help="Which chain; it must be said where there are two.")
@click.option("--sql", is_flag=True, help="Print the SQL instead; REVISION is then FROM:TO.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@terms_options
@click.pass_obj
def downgrade(
    invocation: Invocation, *, revision: str, chain: str | None, sql: bool, yes: bool, terms: SessionTerms
) -> ExitCode:
    """Take one chain back to REVISION, or `base`: what its later revisions made is dropped, data and all.

    -1 goes back by one revision, -2 by two.
    """
    host = host_chain()
    if chain is None and host is not None:
        raise click.UsageError("there are two chains: say --chain engine or --chain host")
    chain = chain or "engine"
    (selected,) = select_chains(chain, host)
    if sql:
        click.echo(migrations.offline_sql(selected, direction="downgrade", revision=revision), nl=False)
        return ExitCode.DONE
    what = f"in its last {revision[1:]}" if revision.startswith("-") else f"after {revision}"
    question = f"Drop what the {chain} chain made {what}, data and all?"
    if not confirm(question, yes=yes, alone="this drops data, and nobody is there to be asked: say --yes"):
        return ExitCode.FAILED
    applied = migrations.downgrade_chain(
        invocation.db_url,
        chain=selected,
        revision=revision,
        host=host,
        terms=terms,
        report=say_step,
    )
    if not applied:
        click.echo("nothing to do")
    return ExitCode.DONE


@db.command()
@chain_option(ANY, required=False)
@json_option
@click.pass_obj
def current(invocation: Invocation, chain: str, as_json: bool) -> None:
    """Show where the database stands on each chain."""
    states = migrations.current(invocation.db_url, chains=select_chains(chain, host_chain()))
    if as_json:
        click.echo(json.dumps([asdict(state) for state in states], indent=2))
        return
    for state in states:
        known = "" if state.status == "current" else f", this code is at {state.head}"
        click.echo(f"{state.chain}: {state.shown or 'nothing'} ({STATUS_WORDS[state.status]}{known})")


@db.command()
@chain_option(ANY, required=False)
@click.option(
    "--partitioned/--plain",
    "by_months",
    default=None,
    help="Not of revisions but of jobs: move ingest jobs that are over to monthly partitions, or back.",
)
@json_option
@click.pass_obj
def history(invocation: Invocation, chain: str, by_months: bool | None, as_json: bool) -> None:
    """List the revisions that this code has, oldest first; needs no database.

    With --partitioned or --plain it says instead where ingest jobs that are over lie. Orchestrators then move
    them a batch at a time, beside the work; nobody is stopped. Runs and their jobs stay where they are.
    """
    if by_months is not None:
        set_history(invocation, by_months=by_months, as_json=as_json)
        return
    lines = migrations.history(select_chains(chain, host_chain()))
    if as_json:
        click.echo(json.dumps([asdict(line) for line in lines], indent=2))
        return
    for line in lines:
        click.echo(f"{line.chain}  {line.revision}  {line.subject}{'  (head)' if line.is_head else ''}")


@db.command()
@chain_option(ANY, required=False)
@click.pass_obj
def check(invocation: Invocation, chain: str) -> None:
    """Compare the database with the models; exit 79 if it is not at head or differs."""
    for one in select_chains(chain, host_chain()):
        state = migrations.check(invocation.db_url, chain=one)
        click.echo(f"{one.name}: at {state.shown or 'nothing'}, no difference to the models")


@db.command()
@click.option("-m", "--message", help="What the revision is about; becomes its subject.")
@chain_option(SINGLE, required=True)
@click.option("--autogenerate", is_flag=True, help="Fill it with what differs between models and database.")
@click.option("--merge", is_flag=True, help="Join the chain's heads, where two branches added one each.")
@click.pass_obj
def revision(
    invocation: Invocation, message: str | None, chain: str, autogenerate: bool, merge: bool
) -> None:
    """Write the next revision of a chain."""
    if merge and autogenerate:
        raise click.UsageError("--merge only joins heads: write what differs in a revision after it")
    about = (message or "").strip()
    if not about and (message is not None or not merge):
        raise click.BadParameter("say what the revision is about", param_hint="-m")
    (selected,) = select_chains(chain, host_chain())
    if merge:
        path = migrations.merge(chain=selected, message=about or None)
    else:
        path = migrations.revision(
            invocation.db_url, chain=selected, message=about, autogenerate=autogenerate
        )
    nothing = "the chain has one head" if merge else "models and database agree"
    click.echo(f"nothing to do: {nothing}" if path is None else str(path))


@db.command()
@click.option("--show-password", is_flag=True, help="Print the DSN as it is.")
@click.pass_obj
def url(invocation: Invocation, show_password: bool) -> None:
    """Print which database this set-up uses; where that was said goes to stderr."""
    with Database.open(invocation.db_url, role="cli", creates=False) as database:
        click.echo(database.dsn if show_password else redact_dsn(database.dsn))
        fleeting = ", which runs only while something uses it, and a while longer: `qwf db serve` keeps it up"
        say(f"from {database.source}{fleeting if database.data_dir else ''}")


db.add_command(serve)
db.add_command(stop)


@db.command()
@click.option("--dry-run", is_flag=True, help="Compare and say what would be done.")
@terms_options
@click.pass_obj
def adopt(invocation: Invocation, *, dry_run: bool, terms: SessionTerms) -> None:
    """Take over tables that no version table of ours accounts for, if they are what a revision makes.

    Tables of the older SQL chain, the ledger of which gives way to ours if it tells the truth, and tables
    that lost the row of their version table. If they differ, the statements that would mend them are printed.
    """
    try:
        done = migrations.adopt(invocation.db_url, dry_run=dry_run, terms=terms)
    except SchemaDrift as drift:
        for statement in drift.statements:
            click.echo(statement if statement.startswith("--") else f"{statement};")
        raise
    if done.already:
        click.echo(f"already adopted: the schema is at {done.revision}")
        return
    would = "would be " if dry_run else ""
    click.echo(f"the schema is {done.revision}: every table, column and index of it is there")
    what = f"the ledger {would}renamed to {done.ledger}" if done.ledger else f"{would}recorded"
    click.echo(f"{what}; `qwf db upgrade` goes on from {done.revision}")
