"""Records of hooks take effect here, whatever hook they came from and however it ended.

    read_output ──> store ──> process_hook_records ──> handlers by type      one transaction, under the fence

Storing and processing commit together, so a record that is stored has had its effect. A type that nobody
handles is stored like any other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import psycopg

from queue_workflows.hooks.child_runs import start_discovered
from queue_workflows.hooks.output import HookLine, HookOutput
from queue_workflows.hooks.record_types import RecordContext, RecordType, RecordTypes, registered_types
from queue_workflows.hooks.reported import report_binary, report_machine
from queue_workflows.repositories.claimed import Fence
from queue_workflows.repositories.hook_records import HookRecordRepository, StoredLine

# The line that stands for what a hook left rather than printed, its files; of every attempt that was read.
FILES_LINE: Final = 0
FILES: Final = "Files"
RESULT_STATUSES: Final = ("succeeded", "failed", "skipped")
_SAID: Final = 500


def store_and_process(
    conn: psycopg.Connection[Any], fence: Fence, output: HookOutput, *, host_label: str
) -> dict[str, int]:
    """Keep what a hook's attempt emitted and let it take effect, all or nothing; how many of each type.

    Raises `LeaseLost`, and nothing is written, unless `fence` holds. Called again for the same attempt it
    changes nothing. A first attempt without any output leaves nothing to keep.
    """
    if output == HookOutput() and fence.attempt == 1:
        return {}
    records = HookRecordRepository(conn)
    with conn.transaction():
        hook = records.hold(fence)
        records.store(fence, hook, _to_store(output))
        ctx = RecordContext(
            conn, hook.run_id, fence.job_id, fence.attempt, hook.plugin, hook.hook, host_label
        )
        counts = process_hook_records(output.records, ctx)
        records.warn(fence, ctx.warnings)
    return counts


def keep_what_was_left(
    conn: psycopg.Connection[Any], fence: Fence, printed: Mapping[int, Callable[[], HookOutput]]
) -> None:
    """Keep what earlier attempts printed whose worker died before it was stored; `printed` reads them.

    It is there to be read and has no effect: the attempt that holds the job prints its own.
    """
    records = HookRecordRepository(conn)
    if not printed.keys() - records.stored_before(fence):
        return
    with conn.transaction():
        hook = records.hold(fence)
        for attempt in sorted(printed.keys() - records.stored_before(fence)):
            records.store(fence, hook, _to_store(printed[attempt]()), attempt=attempt)


def process_hook_records(
    records: Iterable[HookLine | Mapping[str, Any]], ctx: RecordContext
) -> dict[str, int]:
    """Give each record to the handler of its type; how many of each type were taken or merely stored.

    What a handler raises is in `ctx.warnings` by the number of its line, and what it wrote is undone. The
    caller's transaction is open.
    """
    counts: Counter[str] = Counter()
    own = registered_types()
    for line_no, kind, payload in _numbered(records):
        handler = own.find(kind) or BUILT_IN.find(kind)
        ctx.line_no = line_no
        try:
            if handler is not None:
                _handle(handler, payload, ctx)
            counts[kind] += 1
        except psycopg.OperationalError:
            # The connection, a deadlock: nothing of the transaction is left that could be kept.
            raise
        except Exception as wrong:
            said = str(wrong) or type(wrong).__name__
            clean = said.replace("\x00", "").encode("utf-8", "backslashreplace").decode()
            ctx.warnings[line_no] = f"{kind}: {clean}"[:_SAID]
    return dict(sorted(counts.items()))


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


def _to_store(output: HookOutput) -> Iterator[StoredLine]:
    files = [found.as_json() for found in output.files]
    listing = {"type": FILES, "files": files, "left_out": list(output.left_out)}
    yield StoredLine(FILES_LINE, FILES, json.dumps(listing, ensure_ascii=False))
    for line in output.lines:
        yield StoredLine(line.line_no, line.type, line.payload_json, line.warning or "")


def _check_result(record: dict[str, Any], _ctx: RecordContext) -> None:
    """A result is what its row says; one with an unknown status would be taken for a success by nobody."""
    if record.get("status") not in RESULT_STATUSES:
        raise ValueError(
            f"status must be one of {', '.join(RESULT_STATUSES)}, not {record.get('status')!r:.80}"
        )


def _check_tag(record: dict[str, Any], _ctx: RecordContext) -> None:
    if not isinstance(record.get("name"), str) or not record["name"].strip():
        raise ValueError("a tag has a name")


BUILT_IN: Final = RecordTypes(
    {
        "Result": RecordType(_check_result, writes=False),
        "ArchiveResult": RecordType(_check_result, writes=False),
        "Tag": RecordType(_check_tag, writes=False),
        "Run": RecordType(start_discovered),
        "Snapshot": RecordType(start_discovered),
        "Machine": RecordType(report_machine),
        "Binary": RecordType(report_binary),
    }
)
