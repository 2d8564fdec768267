"""`qwf queue import`: jobs from a file or a pipe, one a line."""

from __future__ import annotations

import gzip
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final

import click
import psycopg

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import json_option, print_json
from queue_workflows.cli.shared.progress import Progress
from queue_workflows.config import effective_settings, resolve_dsn
from queue_workflows.db.connections.engine import Database, classify_failure
from queue_workflows.engine.operate.import_file import (
    BESIDE_ARGS_BYTES,
    Batch,
    DedupeBy,
    Imported,
    LineReader,
    Readline,
    batches_of,
    import_batches,
    lines_of,
    our_rows,
    sending_on,
)
from queue_workflows.engine.operate.piped_lines import PipedLines
from queue_workflows.errors import ConfigurationError, ExitCode, ImportStopped, LineRefused, QwfError
from queue_workflows.repositories.jobs.ingest import IngestJobRepository

STDIN: Final = "-"


@click.command("import")
@click.argument("file", metavar="FILE|-", type=click.Path(allow_dash=True))
@click.option("--queue", "queue_name", metavar="QUEUE", help="For lines that name no queue.")
@click.option("--task", "task_name", metavar="NAME", help="For lines that name no task.")
@click.option(
    "--dedupe-by",
    type=click.Choice([by.value for by in DedupeBy]),
    help="Give lines without a dedupe_key one: of their content, or of content and line number.",
)
@click.option("--skip-bad", is_flag=True, help="Report bad lines, and go on.")
@click.option("--dry-run", is_flag=True, help="Check the lines, and enqueue nothing; needs no database.")
@json_option
@click.pass_obj
def import_(
    invocation: Invocation,
    *,
    file: str,
    queue_name: str | None,
    task_name: str | None,
    dedupe_by: str | None,
    skip_bad: bool,
    dry_run: bool,
    as_json: bool,
) -> ExitCode:
    """Enqueue the jobs of FILE, a JSON object a line: task_name, queue, args, dedupe_key, priority, ...

    - is standard input; a FILE that ends in .gz is read as gzip. Lines are committed in batches, so an
    import that ended early is repeated as it was: what has a dedupe_key is not added twice.
    """
    longest = effective_settings().payload_max_bytes + BESIDE_ARGS_BYTES
    rows = our_rows()
    try:
        rows.check(queue_name)
    except ConfigurationError as unknown:
        raise click.BadParameter(f"{unknown.message} — {unknown.advice}", param_hint="--queue") from None
    reader = LineReader(
        rows,
        longest=longest,
        queue=queue_name,
        task_name=task_name,
        dedupe_by=DedupeBy(dedupe_by) if dedupe_by else None,
    )
    done = Imported()
    progress = Progress()

    def skip(bad: LineRefused) -> None:
        progress.say(str(bad))

    with _opened(file) as source:
        lines = lines_of(source.readline, longest=longest)
        batches = batches_of(lines, reader.row, skip=skip if skip_bad or dry_run else None)

        def tell() -> None:
            progress(source.share(), _so_far(done, progress.seconds))

        try:
            if dry_run:
                _check(batches, done, tell)
            else:
                _import(invocation, batches, done, tell)
        except KeyboardInterrupt:
            if not dry_run:
                progress.say(f"{_committed(done)}; the same command adds the rest")
            raise
        finally:
            progress.done()
    _print(done, dry_run=dry_run, as_json=as_json)
    return ExitCode.USAGE if dry_run and done.skipped else ExitCode.DONE


def _import(
    invocation: Invocation, batches: Iterator[Batch], done: Imported, tell: Callable[[], None]
) -> None:
    try:
        with (
            Database.open(invocation.db_url, role="import") as database,
            closing(database.connect(autocommit=True)) as connection,
        ):
            import_batches(batches, sending_on(connection, IngestJobRepository(connection)), done, tell)
    except LineRefused as bad:
        way_past = "" if bad.is_last else ", or go past it with --skip-bad"
        raise ImportStopped(
            f"{bad.message}; {_committed(done)}",
            line=done.line,
            exit_code=bad.exit_code,
            advice=f"{bad.advice or 'mend the line'}; then repeat the command{way_past}",
        ) from bad
    except (psycopg.Error, QwfError, OSError) as failed:
        if not done.line:
            raise
        known = classify_failure(failed, resolve_dsn(invocation.db_url).dsn or "")
        raise ImportStopped(
            f"{known.message}; {_committed(done)}",
            line=done.line,
            exit_code=known.exit_code,
            advice="the same command adds the rest; lines without a dedupe_key it adds again",
        ) from failed


def _check(batches: Iterator[Batch], done: Imported, tell: Callable[[], None]) -> None:
    for batch in batches:
        done.line, done.bytes = batch.line, done.bytes + batch.bytes
        done.created += len(batch.rows)
        done.skipped += batch.skipped
        tell()


@dataclass(frozen=True)
class _Source:
    """Where lines come from, and how much of it has been read, where that can be told."""

    readline: Readline
    size: int
    position: Callable[[], int]

    def share(self) -> float | None:
        return min(1.0, self.position() / self.size) if self.size else None


@contextmanager
def _opened(file: str) -> Iterator[_Source]:
    if file == STDIN:
        if sys.stdin is None or sys.stdin.closed:
            raise click.UsageError("FILE is -, and there is no standard input")
        yield _Source(_of_stdin(sys.stdin.buffer), 0, lambda: 0)
        return
    try:
        raw = open(file, "rb")  # noqa: SIM115 - closed below
    except OSError as wrong:
        raise click.UsageError(f"{file}: {wrong.strerror}") from None
    with raw:
        size = os.fstat(raw.fileno()).st_size
        if not file.endswith(".gz"):
            yield _Source(raw.readline, size, raw.tell)
            return
        with gzip.GzipFile(fileobj=raw) as unpacked:
            yield _Source(io.BufferedReader(unpacked).readline, size, raw.tell)


def _of_stdin(stream: BinaryIO) -> Readline:
    try:
        return PipedLines(stream.fileno()).readline
    except OSError:  # it is none of the system's
        return stream.readline


def _committed(done: Imported) -> str:
    if not done.line:
        return "nothing was imported"
    return f"all up to line {done.line} is imported: {_counts(done)}"


def _counts(done: Imported) -> str:
    parts = [f"{done.created:,} new", f"{done.present:,} there already"]
    return ", ".join(parts + ([f"{done.skipped:,} bad lines skipped"] if done.skipped else []))


def _so_far(done: Imported, seconds: float) -> str:
    return f"{done.line:,} lines, {done.line / max(seconds, 0.001):,.0f}/s"


def _print(done: Imported, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        counts = {"lines": done.line, "skipped": done.skipped, "dry_run": dry_run}
        print_json(
            counts
            | ({"good": done.created} if dry_run else {"created": done.created, "present": done.present})
        )
    elif dry_run:
        click.echo(f"{_lines(done)}: {done.created:,} good, {done.skipped:,} bad; nothing was imported")
    else:
        click.echo(f"{_lines(done)}: {_counts(done)}")


def _lines(done: Imported) -> str:
    return "1 line" if done.line == 1 else f"{done.line:,} lines"
