"""Files of jobs, a JSON object a line: read, checked, and enqueued in batches that are committed one by one.

    lines -> rows, each checked -> a batch is on its way -> meanwhile the next one is read -> its answers

A batch is one statement, so it is there as a whole or not at all, and repeating an import that ended
early adds what is missing, as far as jobs have a `dedupe_key`. Nothing is kept of a line once it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final, TypeAlias
from zlib import error as ZlibError

from queue_workflows.config import current_config
from queue_workflows.db.connections.asking_connection import AskingConnection
from queue_workflows.engine.registry.tasks import TaskRegistry, current_tasks
from queue_workflows.errors import ConfigurationError, LineRefused, PayloadError
from queue_workflows.repositories.jobs.bulk_insert import Enqueued
from queue_workflows.repositories.jobs.enqueue import ENQUEUE, current_rows, unknown_queue
from queue_workflows.repositories.jobs.ingest import IngestJobRepository
from queue_workflows.repositories.jobs.ingest_rows import BULK, IngestRows, NewIngestJob
from queue_workflows.repositories.jobs.unique import UniqueRow, check_alone, unique_of
from queue_workflows.repositories.sql.checks import Row
from queue_workflows.repositories.sql.columns import CHUNK_BYTES, CHUNK_ROWS
from queue_workflows.states import JobFamily
from queue_workflows.telemetry.instruments import count_sent, instruments
from queue_workflows.telemetry.names import BATCH_COUNT
from queue_workflows.telemetry.spans import producing

FIELDS: Final = tuple(one.name for one in fields(NewIngestJob))
# What a line may have beside its args, written in escapes.
BESIDE_ARGS_BYTES: Final = 524_288
# So that progress is told though nothing of a file can be used.
_BATCH_LINES: Final = 20_000
_PAST_BYTES: Final = 1_048_576
_BOM: Final = b"\xef\xbb\xbf"
_begun: Final = json.JSONDecoder().raw_decode
_OWN: Final = frozenset({"task_name", "args"})
_TASK, _QUEUE, _CONTEXT = (BULK.names.index(name) for name in ("task_name", "queue", "traceparent"))
# Side by side.
_ARGS, _KEY = (BULK.names.index(name) for name in ("args", "dedupe_key"))

Line: TypeAlias = tuple[int, bytes]
# Up to so many bytes of a line; None says that nothing comes at this moment.
Readline: TypeAlias = Callable[[int], bytes | None]
# Enqueues rows, and calls what it is given while the server is at it.
Send: TypeAlias = Callable[[list[Row], Callable[[], None]], list[Enqueued]]


class DedupeBy(StrEnum):
    """What the key of a line is made of that has no `dedupe_key` of its own."""

    CONTENT = "content"
    LINE = "line"


@dataclass(slots=True)
class Imported:
    """How far an import came: up to which line all is committed, and what became of the lines."""

    line: int = 0
    created: int = 0
    present: int = 0
    skipped: int = 0
    bytes: int = 0

    @property
    def jobs(self) -> int:
        """How many of the lines were jobs."""
        return self.created + self.present


@dataclass(slots=True)
class Batch:
    """Rows of successive lines, up to `line`."""

    line: int = 0
    lines: int = 0
    skipped: int = 0
    bytes: int = 0
    rows: list[Row] = field(default_factory=list)

    def is_full(self) -> bool:
        """Whether it is as much as one statement takes."""
        rows, size = len(self.rows), self.bytes
        return rows >= CHUNK_ROWS or size >= CHUNK_BYTES or self.lines >= _BATCH_LINES


def lines_of(readline: Readline, *, longest: int) -> Iterator[Line | None]:
    """The lines with their numbers from 1, and None for a pause.

    One that is too long is read past, and has one byte too many.
    """
    number = 0
    while True:
        try:
            text = readline(longest + 1)
            if text is not None and len(text) > longest and not text.endswith(b"\n"):
                _read_past(readline)
        except (OSError, EOFError, ZlibError) as broken:
            raise LineRefused(
                number + 1,
                f"the file cannot be read further: {broken}",
                advice="have it whole",
                is_last=True,
            ) from broken
        if text is None:
            yield None
            continue
        if not text:
            return
        number += 1
        yield number, text.removeprefix(_BOM) if number == 1 else text


def _read_past(readline: Readline) -> None:
    """The rest of a line, of which nothing is kept."""
    rest: bytes | None = None
    while rest is None or (rest and not rest.endswith(b"\n")):
        rest = readline(_PAST_BYTES)


class JobRows:
    """Makes a row of what a job is to be, as `enqueue` of its task would, if this process knows the task."""

    def __init__(self, rows: IngestRows, tasks: TaskRegistry, *, queues: frozenset[str]) -> None:
        self._rows = rows
        self._tasks = tasks
        self._queues = queues
        # What the last job said beside what is its own, and its row.
        self._last: tuple[dict[str, Any], Row] | None = None

    def row(self, given: dict[str, Any]) -> Row:
        """The values to insert; `given` are fields of `NewIngestJob`, a name among them.

        Most lines of a file differ in args and key alone, and then only these are looked at.
        """
        common = given.copy()
        args, key = common.pop("args", None), common.pop("dedupe_key", None)
        if self._last is not None and self._last[0] == common:
            values = self._last[1]
            return (*values[:_ARGS], *self._rows.own(args, key), *values[_KEY + 1 :])
        row = self._whole_row(given)
        self._last = (common, row) if self._is_common(common) else None
        return row

    def _is_common(self, common: dict[str, Any]) -> bool:
        """Whether the next job that says the same gets the same: only texts are so equal, True is 1 too."""
        task = self._tasks.task_named(common["task_name"])
        if task is not None and (task.limit_key_of is not None or task.defaults.get("unique") is not None):
            return False
        return set(map(type, common.values())) == {str}

    def _whole_row(self, given: dict[str, Any]) -> Row:
        name = given["task_name"]
        task = self._tasks.task_named(name) if isinstance(name, str) else None
        if task is not None:
            args, options = given.get("args"), {k: v for k, v in given.items() if k not in _OWN}
            job = task.job(args, **options)
            self.check(job.queue)
            return self._rows.row(job)
        if "queue" not in given:
            raise PayloadError("it has no queue", path="queue", advice="--queue names one")
        self.check(given["queue"])
        unique = given.get("unique")
        check_alone(unique, given.get("dedupe_key"))
        row = self._rows.of({name: value for name, value in given.items() if name != "unique"})
        return row if unique is None else UniqueRow.of(row, unique)

    def check(self, queue: object) -> None:
        """Refuse a queue of nobody's; what is no text at all is refused with the other fields."""
        if isinstance(queue, str) and queue not in self._queues:
            raise unknown_queue(queue, self._queues)


def our_rows() -> JobRows:
    """Rows of jobs for the queues and by the tasks and settings of this host app."""
    return JobRows(current_rows(), current_tasks(), queues=current_config().ingest_queues)


class LineReader:
    """Makes a row of a line."""

    def __init__(
        self,
        rows: JobRows,
        *,
        longest: int,
        queue: str | None = None,
        task_name: str | None = None,
        dedupe_by: DedupeBy | None = None,
    ) -> None:
        self._rows = rows
        self._longest = longest
        self._defaults = {
            name: value for name, value in (("task_name", task_name), ("queue", queue)) if value is not None
        }
        self._dedupe_by = dedupe_by
        self._names = frozenset(FIELDS)

    def row(self, number: int, text: bytes) -> Row:
        """The values to insert; `PayloadError` or `ConfigurationError` says what is wrong with the line."""
        if len(text) > self._longest:
            raise PayloadError(
                f"longer than {self._longest:,} bytes",
                advice="store the data elsewhere and send a reference, or raise QWF_PAYLOAD_MAX_BYTES",
            )
        given = self._given(text)
        if self._dedupe_by is not None and "dedupe_key" not in given and "unique" not in given:
            given["dedupe_key"] = _key_of(number, text, self._dedupe_by)
        return self._rows.row(given)

    def _given(self, text: bytes) -> dict[str, Any]:
        """What the line says, and the defaults for what it does not."""
        given = _object(text)
        if None in given.values():
            given = {name: value for name, value in given.items() if value is not None}
        if not self._names.issuperset(given):
            unknown = ", ".join(sorted(repr(name)[:40] for name in given.keys() - self._names)[:3])
            raise PayloadError(f"unknown: {unknown}", advice=f"a job has {', '.join(FIELDS)}")
        if "run_at" in given:
            given["run_at"] = moment_of(given["run_at"])
        if "unique" in given:
            given["unique"] = unique_of(given["unique"])
        if self._defaults:
            given = self._defaults | given
        if "task_name" not in given:
            raise PayloadError("it has no task_name", advice="--task names one")
        return given


def batches_of(
    lines: Iterable[Line | None],
    row_of: Callable[[int, bytes], Row],
    *,
    skip: Callable[[LineRefused], None] | None,
) -> Iterator[Batch]:
    """Rows in batches; what is refused goes to `skip`, or ends it all after the batch of what came before.

    A pause ends a batch, be it empty: the jobs of a slowly fed pipe are seen soon, and a caller that has
    something else to do is not kept waiting for more.
    """
    batch = Batch()
    try:
        for line in lines:
            if line is None:
                yield batch
                batch = Batch(line=batch.line)
                continue
            number, text = line
            if not text.isspace():
                try:
                    batch.rows.append(row_of(number, text))
                except (PayloadError, ConfigurationError) as refused:
                    bad = LineRefused(number, refused.message, advice=refused.advice)
                    if skip is None:
                        raise bad from refused
                    skip(bad)
                    batch.skipped += 1
            batch.line = number
            batch.lines += 1
            batch.bytes += len(text)
            if batch.is_full():
                yield batch
                batch = Batch(line=number)
    except LineRefused:
        yield batch
        raise
    yield batch


def import_batches(batches: Iterator[Batch], send: Send, done: Imported, tell: Callable[[], None]) -> None:
    """Send batch after batch, and count in `done` what is committed; `tell` is called after each."""
    following: list[Batch] = []
    failed: list[BaseException] = []

    def read_on() -> None:
        """Fetch one batch ahead; whatever that ends with waits until the one on its way is answered."""
        try:
            if not failed:
                following.extend([batch for batch in [next(batches, None)] if batch is not None])
        except BaseException as exc:
            failed.append(exc)

    read_on()
    while following:
        batch = following.pop()
        answers = send(batch.rows, read_on) if batch.rows else []
        if not batch.rows:
            read_on()
        created = sum(answer.created for answer in answers)
        done.line = max(done.line, batch.line)
        done.created += created
        done.present += len(answers) - created
        done.skipped += batch.skipped
        done.bytes += batch.bytes
        tell()
    if failed:
        raise failed[0]


def sending_on(connection: AskingConnection, repository: IngestJobRepository) -> Send:
    """Enqueue on an autocommit connection: what is called meanwhile overlaps with the server's work."""

    def send(rows: list[Row], meanwhile: Callable[[], None]) -> list[Enqueued]:
        asked = [meanwhile]

        def once() -> None:
            if asked:
                asked.pop()()

        connection.meanwhile = once
        try:
            with producing(ENQUEUE, None, None, JobFamily.INGEST) as traced:
                enqueued = repository.enqueue_rows(_traced(rows, traced.traceparent))
                traced.note(BATCH_COUNT, len(enqueued))
        finally:
            connection.meanwhile = None
            once()
        if instruments() is not None:
            new = [row for row, each in zip(rows, enqueued, strict=True) if each.created]
            count_sent(ENQUEUE, JobFamily.INGEST, [(row[_QUEUE], row[_TASK]) for row in new])
        return enqueued

    return send


def _traced(rows: list[Row], traceparent: str | None) -> list[Row]:
    """With the context of their batch, where a line has none of its own."""
    if traceparent is None:
        return rows
    return [row if row[_CONTEXT] is not None else _with_context(row, traceparent) for row in rows]


def _with_context(row: Row, traceparent: str) -> Row:
    traced = (*row[:_CONTEXT], traceparent, *row[_CONTEXT + 1 :])
    return UniqueRow.of(traced, row.unique) if isinstance(row, UniqueRow) else traced


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = _parsed(text.decode().rstrip(" \t\r\n"))
    except UnicodeDecodeError as wrong:
        raise PayloadError(f"no UTF-8 at byte {wrong.start + 1}") from None
    except json.JSONDecodeError as wrong:
        raise PayloadError(f"no JSON: {wrong.msg} at column {wrong.colno}") from None
    except ValueError as wrong:
        raise PayloadError(f"no JSON that can be read: {wrong}") from None
    except RecursionError:
        raise PayloadError("nested too deeply") from None
    if not isinstance(found, dict):
        raise PayloadError(
            "no object", advice='a line is an object, as in {"task_name": "fetch_page", "args": {}}'
        )
    return found


def _parsed(line: str) -> Any:
    """As `json.loads` does it, which takes as long for what is around a value as for a short one itself."""
    try:
        found, end = _begun(line)
    except ValueError:
        return json.loads(line)
    return found if end == len(line) else json.loads(line)


def moment_of(value: object) -> datetime:
    """A point in time in ISO 8601; whether it has a zone is checked with all others."""
    try:
        if isinstance(value, str):
            return datetime.fromisoformat(value)
    except ValueError:
        pass
    raise PayloadError(f"run_at {value!r:.80} is no time", advice="write it as in 2030-01-31T12:00:00Z")


def _key_of(number: int, text: bytes, by: DedupeBy) -> str:
    """A hash of the line as it is written, blanks around it aside, with its number if that is to count."""
    digest = blake2b(text.strip(), digest_size=16).hexdigest()
    return f"import:{digest}:{number}" if by is DedupeBy.LINE else f"import:{digest}"
