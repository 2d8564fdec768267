"""`qwf queue enqueue`: one job, or many that are alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.durability import committed_so, durability_option
from queue_workflows.cli.shared.durations import span
from queue_workflows.cli.shared.operator import json_option, print_json, say
from queue_workflows.cli.shared.progress import Progress
from queue_workflows.cli.shared.values import mapping_of, pairs
from queue_workflows.db.connections.engine import Database
from queue_workflows.engine.operate.import_file import (
    Batch,
    Imported,
    import_batches,
    moment_of,
    our_rows,
    sending_on,
)
from queue_workflows.errors import ExitCode
from queue_workflows.repositories.jobs.bulk_insert import Enqueued
from queue_workflows.repositories.jobs.ingest import IngestJobRepository
from queue_workflows.repositories.jobs.unique import REPLACEABLE, Unique
from queue_workflows.repositories.sql.checks import ELSEWHERE, Row
from queue_workflows.repositories.sql.columns import CHUNK_ROWS

MOST: Final = 100_000_000


@click.command()
@click.argument("task_name", metavar="TASK")
@click.option("--queue", metavar="QUEUE", help="Where; else where the app (--app) registered the task.")
@click.option("--args", "args_text", metavar="JSON", help="The task's args, an object.")
@click.option("--arg", "-a", "pairs_", metavar="K=TEXT|K:=JSON", multiple=True, help="One of its args.")
@click.option("--count", type=click.IntRange(1, MOST), default=1, show_default=True, help="So many of it.")
@click.option("--priority", type=click.IntRange(0, 9), help="0 to 9, higher first; else 5.")
@click.option(
    "--dedupe-key",
    metavar="KEY",
    help="Enqueue nothing if a job of the task has this key, also one that is over.",
)
@click.option(
    "--unique-by",
    metavar="WHAT",
    multiple=True,
    help="Enqueue nothing if a job like it waits or runs: by args, args.NAME or queue.",
)
@click.option("--unique-key", metavar="KEY", help="So too, but by a word of your own.")
@click.option("--unique-for", type=span, metavar="SPAN", help="Of those, only what was enqueued so lately.")
@click.option(
    "--unique-state", metavar="STATE", multiple=True, help="Of those, only jobs in this state, as in queued."
)
@click.option(
    "--replace",
    type=click.Choice(REPLACEABLE),
    multiple=True,
    help="What the job that waits takes over from this one.",
)
@click.option("--delay", type=span, metavar="SPAN", help="Not before so long from now.")
@click.option("--run-at", metavar="TIME", help="Not before then, as in 2030-01-31T12:00:00Z.")
@click.option("--limit-key", metavar="KEY", help="The limit that it counts against.")
@click.option("--exclusive", metavar="NAME", help="What it has alone while it runs, among all machines.")
@click.option("--host-lock", metavar="NAME", help="The lock of its machine that it holds while it runs.")
@click.option(
    "--when-held",
    type=click.Choice(["wait", "elsewhere"]),
    help="Where another has that lock: wait for it, or go to a host where it is free.",
)
@click.option("--max-attempts", type=int, metavar="N", help="It has failed after so many failures.")
@click.option("--max-crashes", type=int, metavar="N", help="It has failed after so many crashes of its own.")
@click.option(
    "--at-most-once",
    is_flag=True,
    default=None,
    help="It is tried once, and has failed if its worker dies after it began.",
)
@click.option("--timeout", "timeout_s", type=span, metavar="SPAN", help="How long it may run.")
@click.option("--reason", metavar="TEXT", help="What the task is told as its reason.")
@durability_option
@json_option
@click.pass_obj
def enqueue(
    invocation: Invocation,
    /,
    *,
    args_text: str | None,
    pairs_: Sequence[str],
    count: int,
    run_at: str | None,
    when_held: str | None,
    durability: str | None,
    as_json: bool,
    **given: Any,
) -> ExitCode:
    """Enqueue a job of TASK, and print its name; --arg overrides what --args says.

    Many go in batches that are committed one by one, and an interruption says how many there are.
    """
    given["unique"] = _unique(given)
    if count > 1 and given["dedupe_key"] is not None:
        raise click.UsageError("--count with --dedupe-key would be one job: leave one of them out")
    if given["unique"] is not None and (count > 1 or given["dedupe_key"] is not None):
        raise click.UsageError("--unique-… is about one job without a --dedupe-key: leave the other out")
    if when_held is not None and given["host_lock"] is None:
        raise click.UsageError("--when-held is about --host-lock: name one")
    if when_held is not None and given["host_lock"].startswith(ELSEWHERE):
        raise click.UsageError(f"--when-held says where it may go: leave {ELSEWHERE!r} out of --host-lock")
    if when_held == "elsewhere":
        given["host_lock"] = ELSEWHERE + given["host_lock"]
    args = mapping_of("--args", args_text) if args_text is not None else {}
    given |= {"args": args | pairs("--arg", pairs_), "run_at": run_at and moment_of(run_at)}
    row = our_rows().row({name: value for name, value in given.items() if value is not None})
    made = _enqueue(invocation, row, count, durability)
    first, last = made[0], made[-1]
    if as_json:
        print_json(
            {
                "first": f"ingest:{first.id}",
                "last": f"ingest:{last.id}",
                "count": count,
                "created": first.created,
            }
        )
    elif count == 1:
        click.echo(f"ingest:{first.id}")
        if not first.created:
            say(_already(given["unique"], first.id))
    else:
        click.echo(f"{count:,} jobs, ingest:{first.id} to ingest:{last.id}")
    return ExitCode.DONE


def _unique(given: dict[str, Any]) -> Unique | None:
    """What the options say of other jobs like it; they are taken out."""
    names = {
        "by": "unique_by",
        "key": "unique_key",
        "period": "unique_for",
        "states": "unique_state",
        "replace": "replace",
    }
    said = {field: given.pop(name) for field, name in names.items()}
    said = {field: value for field, value in said.items() if value not in (None, ())}
    if "by" in said and "key" in said:
        raise click.UsageError("--unique-by and --unique-key are two ways to say one thing: give one")
    if said and not {"by", "key"} & said.keys():
        raise click.UsageError("say what is alike: --unique-by args, or --unique-key with a word of your own")
    return Unique(**said) if said else None


def _already(unique: Unique | None, job_id: int) -> str:
    if unique is None:
        return "it has this key already: nothing was enqueued"
    changed = f", and has this {' and '.join(unique.replace)} if it still waits" if unique.replace else ""
    return f"ingest:{job_id} is like it{changed}: nothing was enqueued"


def _enqueue(invocation: Invocation, row: Row, count: int, durability: str | None) -> list[Enqueued]:
    """The first and the last of them."""
    done, ends = Imported(), list[Enqueued]()
    progress = Progress()
    with (
        Database.open(invocation.db_url, role="enqueue") as database,
        closing(database.connect(autocommit=True)) as connection,
    ):
        send = sending_on(connection, IngestJobRepository(connection))

        def noted(rows: list[Row], meanwhile: Callable[[], None]) -> list[Enqueued]:
            with committed_so(connection, durability):
                answers = send(rows, meanwhile)
            ends[:] = [*ends[:1], *answers[:1], answers[-1]]
            return answers

        try:
            import_batches(
                _batches(row, count), noted, done, lambda: progress(done.jobs / count, f"{done.jobs:,} jobs")
            )
        except BaseException:
            if done.jobs:
                progress.say(f"{done.jobs:,} of {count:,} jobs are enqueued")
            raise
        finally:
            progress.done()
    return ends


def _batches(row: Row, count: int) -> Iterator[Batch]:
    for before in range(0, count, CHUNK_ROWS):
        rows = min(CHUNK_ROWS, count - before)
        yield Batch(line=before + rows, rows=[row] * rows)
