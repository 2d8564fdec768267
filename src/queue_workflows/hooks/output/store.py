"""Records of hooks take effect here, whatever hook they came from and however it ended.

    read_output ──> some records ──> their handlers ──> hold the fence, store them ──┐   one transaction
                     ^                                                               │
                     └──────── until there are no more, then the list of files ──────┘

Storing and processing commit together, so a record that is stored has had its effect. The fence comes last: a
handler takes as long as it does, and meanwhile the job's row is locked for nobody, its worker's renewals of
all their leases above all. A worker that has lost the lease by then takes back what the handlers wrote.
A type that nobody handles is stored like any other.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import psycopg

from queue_workflows.errors import HookError
from queue_workflows.hooks.files import Digests
from queue_workflows.hooks.output.child_runs import discover, start_discovered, take_found
from queue_workflows.hooks.output.machine_records import CHECKSUMS, Checksums, report_binary, report_machine
from queue_workflows.hooks.output.read import FILES, HookLine, HookOutput
from queue_workflows.hooks.output.record_types import RecordContext, RecordType, RecordTypes, registered_types
from queue_workflows.hooks.output.run_updates import (
    Noted,
    is_about_the_run,
    one_by_one,
    tag,
    take_noted,
    update_run,
    write_labels,
)
from queue_workflows.repositories.hooks.records import (
    FILES_LINE,
    HookOfJob,
    HookRecordRepository,
    StoredLine,
    fits_at_once,
)
from queue_workflows.repositories.sql.claimed_job import Fence

RESULT_STATUSES: Final = ("succeeded", "noresults", "failed", "skipped")
_SAID: Final = 500
# How much of an output is one transaction.
_PART_S: Final = 0.5
_PART_LINES: Final = 500
# How often a part is begun if each time its connection was lost, or others were in the way.
_TRIES: Final = 10
# A deadlock, a lock's timeout, a conflict between transactions: the same again may do.
_IN_THE_WAY: Final = frozenset({"40P01", "55P03", "40001"})


class Storing:
    """What a hook's attempt emitted, on its way into the database; `counts` is how many of each type.

    `warnings` are what was the matter with the lines that are stored so far, by their numbers.
    """

    def __init__(
        self,
        fence: Fence,
        output: HookOutput,
        *,
        host_label: str,
        hook: HookOfJob | None = None,
        clock: Callable[[], float] = time.monotonic,
        digests: Digests | None = None,
    ) -> None:
        """A caller that knows the job's `hook` passes it, which saves questions; `digests` save reading."""
        self.counts: Counter[str] = Counter()
        self.warnings: dict[int, str] = {}
        self._fence = fence
        self._hook = hook
        self._output = output
        self._host_label = host_label
        self._clock = clock
        self._stored = self._tries = 0
        self._sums = Checksums(digests)
        for line in output.lines:
            if line.is_record and line.type == "Binary":
                self._sums.add(line.payload)
        # A first attempt without any output leaves nothing to keep.
        self.is_done = output == HookOutput() and fence.attempt == 1

    def store_part(self, conn: psycopg.Connection[Any]) -> None:
        """Let some more of it take effect, all of that or nothing; done again it changes nothing.

        Raises `LeaseLost`, and nothing is written, unless the fence holds.
        """
        self._tries += 1
        if self._tries > _TRIES:
            raise HookError(
                f"its records could not be stored, though it was tried {_TRIES} times",
                advice="see the server's log, and how long the handlers of its records take",
            )
        records = HookRecordRepository(conn)
        counts: Counter[str] = Counter()
        if self._hook is not None and conn.autocommit and self._writes_nothing_else(self._hook):
            part, upto = self._next(conn, self._hook, counts)
            if fits_at_once(part):
                records.hold_and_store(self._fence, part)
                self._done(part, upto, counts)
                return
            counts.clear()
        with conn.transaction():
            hook = records.look(self._fence)
            part, upto = self._next(conn, hook, counts)
            records.hold(self._fence)
            records.store(self._fence, hook, part)
        self._done(part, upto, counts)

    def _done(self, part: Iterable[StoredLine], upto: int, counts: Counter[str]) -> None:
        self.warnings.update((line.line_no, line.warning) for line in part if line.warning)
        self._stored, self._tries, self.is_done = upto, 0, upto == len(self._output.lines)
        self.counts += +counts

    def _writes_nothing_else(self, hook: HookOfJob) -> bool:
        """Whether the records of the next part are only looked at and stored: that takes no transaction."""
        own, run = registered_types(), str(hook.run_id)
        return all(
            own.find(line.type) is None
            and (
                line.type in _LOOKED_AT or (BUILT_IN.find(line.type) is None and run not in line.payload_json)
            )
            for line in self._output.lines[self._stored : self._stored + _PART_LINES]
        )

    def _next(
        self, conn: psycopg.Connection[Any], hook: HookOfJob, counts: Counter[str]
    ) -> tuple[list[StoredLine], int]:
        """The next part as it is to be stored, after it has had its effect, and up to which line it goes."""
        ctx = RecordContext(
            *(conn, hook.run_id, self._fence.job_id, self._fence.attempt),
            *(hook.plugin, hook.hook, self._host_label),
            known={CHECKSUMS: self._sums},
        )
        handled = list(self._handled(ctx, counts))
        _start_found(ctx, counts)
        _label(ctx, counts)
        part = [_to_store(line, ctx.warnings.get(line.line_no)) for line in handled]
        upto = self._stored + len(part)
        if upto == len(self._output.lines):
            part.append(_files_of(self._output))
        return part, upto

    def _handled(self, ctx: RecordContext, counts: Counter[str]) -> Iterator[HookLine]:
        """The next lines, each after its handler has had it."""
        until = self._clock() + _PART_S
        for line in self._output.lines[self._stored : self._stored + _PART_LINES]:
            if line.is_record:
                _handle_each([line], ctx, counts)
            yield line
            if self._clock() >= until:
                return


def store_and_process(
    conn: psycopg.Connection[Any], fence: Fence, output: HookOutput, *, host_label: str
) -> dict[str, int]:
    """Keep what a hook's attempt emitted and let it take effect, part by part; how many of each type."""
    storing = Storing(fence, output, host_label=host_label)
    while not storing.is_done:
        storing.store_part(conn)
    return dict(sorted(storing.counts.items()))


def keep_what_was_left(conn: psycopg.Connection[Any], fence: Fence, attempt: int, output: HookOutput) -> None:
    """Keep what an earlier attempt printed if its worker died before all of it was stored.

    It is there to be read and has no effect: the attempt that holds the job prints its own.
    """
    records = HookRecordRepository(conn)
    with conn.transaction():
        hook = records.hold(fence)
        lines = [*map(_to_store, output.lines), _files_of(output)]
        records.store(fence, hook, lines, attempt=attempt)


def process_hook_records(
    records: Iterable[HookLine | Mapping[str, Any]], ctx: RecordContext
) -> dict[str, int]:
    """Give each record to the handler of its type; how many of each type were taken or merely stored.

    What a handler raises is in `ctx.warnings` by the number of its line, and what it wrote is undone. The
    caller's transaction is open.
    """
    counts: Counter[str] = Counter()
    _handle_each(records, ctx, counts)
    _start_found(ctx, counts)
    _label(ctx, counts)
    return dict(sorted((+counts).items()))


def _handle_each(
    records: Iterable[HookLine | Mapping[str, Any]], ctx: RecordContext, counts: Counter[str]
) -> None:
    own = registered_types()
    for line_no, kind, payload in _numbered(records):
        ctx.line_no = line_no
        try:
            handler = own.find(kind) or (
                _ABOUT_THE_RUN if is_about_the_run(payload, ctx) else BUILT_IN.find(kind)
            )
            if handler is not None:
                _handle(handler, payload, ctx)
            counts[kind] += 1
        except Exception as wrong:
            _warn(wrong, line_no, kind, ctx)


def _start_found(ctx: RecordContext, counts: Counter[str]) -> None:
    """The runs of all records together: one by one, two pages with the same links would deadlock."""
    found = take_found(ctx)
    if not found:
        return
    try:
        with ctx.conn.transaction():
            start_discovered(found, ctx)
    except Exception as wrong:
        for one in found:
            _warn(wrong, one.line_no, one.kind, ctx)
            counts[one.kind] -= 1


def _label(ctx: RecordContext, counts: Counter[str]) -> None:
    """The labels of all records together, as the row of the run is locked from then on.

    Where they cannot all be had, each line is written that can be.
    """
    noted = take_noted(ctx)
    if not noted or _wrong_with(noted, ctx) is None:
        return
    for part in one_by_one(noted):
        if (wrong := _wrong_with(part, ctx)) is not None:
            for line_no, (kind, _) in part.items():
                counts[kind] -= line_no not in ctx.warnings
                _warn(wrong, line_no, kind, ctx)


def _wrong_with(noted: Noted, ctx: RecordContext) -> Exception | None:
    """Write these labels; why they cannot be written, if so."""
    try:
        with ctx.conn.transaction():
            write_labels(noted, ctx)
    except Exception as wrong:
        if _is_to_be_tried_again(wrong, ctx):
            raise
        return wrong
    return None


def _warn(wrong: Exception, line_no: int, kind: str, ctx: RecordContext) -> None:
    """Keep what is the matter with a record; what is not its own fault is raised again."""
    if _is_to_be_tried_again(wrong, ctx):
        raise wrong
    said = str(wrong) or type(wrong).__name__
    clean = said.replace("\x00", "").encode("utf-8", "backslashreplace").decode()
    ctx.warnings[line_no] = f"{kind}: {clean}"[:_SAID]


def _handle(handler: RecordType, payload: dict[str, Any], ctx: RecordContext) -> None:
    if not handler.writes:
        handler.handle(payload, ctx)
        return
    with ctx.conn.transaction():
        handler.handle(payload, ctx)


def _numbered(records: Iterable[HookLine | Mapping[str, Any]]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    for number, record in enumerate(records, 1):
        if isinstance(record, HookLine):
            yield record.line_no, record.type, record.payload
        else:
            yield number, str(record.get("type", "")), dict(record)


def _is_to_be_tried_again(wrong: Exception, ctx: RecordContext) -> bool:
    """Whether it is our own connection that is the matter, and not what the handler does beside it."""
    if not isinstance(wrong, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    return bool(ctx.conn.closed) or wrong.sqlstate in _IN_THE_WAY


def _files_of(output: HookOutput) -> StoredLine:
    files = [found.as_json() for found in output.files]
    listing = {
        "type": FILES,
        "files": files,
        "left_out": list(output.left_out),
        "written": output.written,
    }
    return StoredLine(FILES_LINE, FILES, json.dumps(listing, ensure_ascii=False))


def _to_store(line: HookLine, warning: str | None = None) -> StoredLine:
    return StoredLine(line.line_no, line.type, line.payload_json, warning or line.warning or "")


def _check_result(record: dict[str, Any], _ctx: RecordContext) -> None:
    """A result is what its row says; one with an unknown status would be taken for a success by nobody."""
    if record.get("status") not in RESULT_STATUSES:
        raise ValueError(
            f"status must be one of {', '.join(RESULT_STATUSES)}, not {record.get('status')!r:.80}"
        )


_LOOKED_AT: Final = frozenset({"Result", "ArchiveResult"})
_ABOUT_THE_RUN: Final = RecordType(update_run, writes=False)
BUILT_IN: Final = RecordTypes(
    {
        "Result": RecordType(_check_result, writes=False),
        "ArchiveResult": RecordType(_check_result, writes=False),
        "Tag": RecordType(tag, writes=False),
        "Run": RecordType(discover, writes=False),
        "Snapshot": RecordType(discover, writes=False),
        "Machine": RecordType(report_machine),
        "Binary": RecordType(report_binary),
    }
)
