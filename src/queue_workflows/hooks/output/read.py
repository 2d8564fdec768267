"""What a hook said and left: one function reads it for every hook, however it ran and however it ended.

Its standard output is one JSON object a line. Words between them are a log; what was meant as a record and is
none becomes a warning with the number of its line. Nothing that a hook prints can make reading it fail, or
take more memory than the caps allow.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from queue_workflows.errors import PayloadError
from queue_workflows.hooks.files import (
    USUAL_CAPS,
    Digests,
    FileCaps,
    FileListing,
    FoundFile,
    find_files,
    open_regular,
)
from queue_workflows.host.directories.below import Beneath, directory_beneath
from queue_workflows.payload import check_payload
from queue_workflows.repositories.sql.checks import NAME_BYTES, PayloadLimits

WARNING: Final = "Warning"
FILES: Final = "Files"
LOG: Final = "Log"
RESULT_TYPES: Final = frozenset({"Result", "ArchiveResult"})
_SHOWN: Final = 120
_LONGEST_LOG: Final = 2_000
_BLOCK: Final = 1 << 16
_MAX_DEPTH: Final = 100
_AT_ONCE: Final = nullcontext()
# What says nothing as the `output_json` of a result.
NOTHING: Final[tuple[Any, ...]] = (None, "", {}, [])
_EMPTY: Final[dict[str, Any]] = {
    "status": None,
    "output_str": "",
    "records": {},
    "output_json": None,
    "files": [],
}


@dataclass(frozen=True, slots=True)
class OutputCaps:
    """How much of a hook's output is kept."""

    line_bytes: int = 1 << 20
    lines: int = 1_000_000
    records: int = 10_000
    warnings: int = 200
    logs: int = 200
    total_bytes: int = 16 << 20
    files: FileCaps = USUAL_CAPS

    def of(self, kind: str) -> int:
        """How many lines of a kind are kept."""
        return {"record": self.records, "log": self.logs}.get(kind, self.warnings)


USUAL: Final = OutputCaps()


@dataclass(frozen=True, slots=True)
class HookLine:
    """A line of a hook's output: a record, a warning about what was meant as one, or words of a log."""

    line_no: int
    type: str
    payload_json: str = "{}"
    warning: str | None = None
    is_log: bool = False

    @property
    def payload(self) -> dict[str, Any]:
        """The record, made of its text anew: as objects all of an output would be many times as large."""
        payload: dict[str, Any] = json.loads(self.payload_json)
        return payload

    @property
    def kind(self) -> str:
        """Whether it is a record, a warning or a line of a log."""
        return "log" if self.is_log else "record" if self.is_record else "warning"

    @property
    def is_record(self) -> bool:
        """Whether the line was a record."""
        return self.warning is None and not self.is_log


@dataclass(frozen=True, slots=True)
class HookOutput:
    """Records and warnings in the order of their lines, and the files found.

    Files that were changed from `since_ns` on are the attempt's own, if nobody works beside it.
    """

    lines: tuple[HookLine, ...] = ()
    files: tuple[FoundFile, ...] = ()
    left_out: tuple[str, ...] = ()
    since_ns: int = field(default=0, compare=False)

    @property
    def records(self) -> tuple[HookLine, ...]:
        """The lines that were records."""
        return tuple(line for line in self.lines if line.is_record)

    @property
    def warnings(self) -> tuple[HookLine, ...]:
        """The lines with which something is wrong."""
        return tuple(line for line in self.lines if line.warning is not None)

    @property
    def written(self) -> int:
        """How many files with content were written since the attempt began."""
        return sum(1 for found in self.files if found.size and found.changed_ns >= self.since_ns)

    @property
    def found_nothing(self) -> bool:
        """Whether there is no file of its own with content, and no word but one of its own outcome."""
        return not (
            self.written
            or any(line.type not in RESULT_TYPES for line in self.records)
            or self._said.get("output_json") not in NOTHING
        )

    @property
    def _said(self) -> dict[str, Any]:
        """Its last result."""
        return next((line.payload for line in reversed(self.records) if line.type in RESULT_TYPES), {})

    def result(self) -> dict[str, Any]:
        """What other nodes may refer to: the last result, all files, how many records of each type.

        `status` is None where the hook said nothing of its result.
        """
        said = self._said
        status, text = said.get("status"), said.get("output_str")
        return {
            "status": status if isinstance(status, str) else None,
            "output_str": text if isinstance(text, str) else "",
            "output_json": said.get("output_json"),
            "files": [found.as_json() for found in self.files],
            "records": dict(sorted(Counter(line.type for line in self.records).items())),
            "warnings": len(self.warnings),
        }


def as_much_as_fits(result: dict[str, Any], limits: PayloadLimits) -> dict[str, Any]:
    """A result in which what is too large or too deep is empty, and named in `left_out`.

    The hook's records have all of it.
    """
    return result if fits(result, limits) else _cut(result, limits)


def fits(result: dict[str, Any], limits: PayloadLimits) -> bool:
    """Whether it may be stored."""
    try:
        limits.json(result)
    except PayloadError:
        return False
    return True


def _cut(whole: dict[str, Any], limits: PayloadLimits) -> dict[str, Any]:
    """As much of a result as fits, the shorter parts first."""
    cut = whole | _EMPTY | {"left_out": []}
    for name in _EMPTY:
        more = cut | {name: whole[name]}
        cut = more if fits(more, limits) else cut | {"left_out": [*cut["left_out"], name]}
    return cut


def read_output(
    directory: Path,
    stdout: Path,
    *,
    beneath: Beneath,
    caps: OutputCaps = USUAL,
    digests: Digests | None = None,
    turn: AbstractContextManager[Any] = _AT_ONCE,
    has_printed: bool = False,
    since_ns: int = 0,
) -> HookOutput:
    """Read what a hook wrote to `stdout` and left in `directory`; what is not there is empty.

    Both lie below `beneath`, and no link below it is followed. A line is parsed in its `turn`: of many
    outputs that are read at once only one line is in memory as objects. Of a hook that `has_printed` the
    output has to be there. It began at `since_ns`.
    """
    lines: tuple[HookLine, ...] = ()
    found, left_out = FileListing(), []
    try:
        with directory_beneath(stdout.parent, beneath=beneath) as parent:
            opened = open_regular(stdout.name, within=parent)
        try:
            lines = tuple(read_lines(opened, caps, turn))
        finally:
            os.close(opened)
    except FileNotFoundError:
        if has_printed:
            lines = (_warning(1, "the output cannot be read: the hook has removed its file"),)
    except OSError as wrong:
        lines = (_warning(1, f"the output cannot be read: {wrong.strerror or wrong}"),)
    try:
        with directory_beneath(directory, beneath=beneath) as opened:
            found = find_files(opened, caps.files, digests)
    except FileNotFoundError:
        pass
    except OSError as wrong:
        left_out.append(f"the directory cannot be read: {wrong.strerror or wrong}")
    return HookOutput(lines, found.files, (*found.left_out, *left_out), since_ns)


def read_lines(
    opened: int, caps: OutputCaps = USUAL, turn: AbstractContextManager[Any] = _AT_ONCE
) -> Iterator[HookLine]:
    """The records and warnings of an open file."""
    kept: Counter[str] = Counter()
    for line_no, content, is_whole in _split(opened, caps):
        if line_no > caps.lines:
            yield _warning(line_no, f"more than {caps.lines:,} lines: what follows was not read")
            return
        if is_whole and not content.strip():
            continue
        if is_whole:
            with turn:
                line = _parsed(line_no, content)
        else:
            line = _warning(line_no, _too_long(content, caps))
        kept[line.kind] += 1
        beyond = kept[line.kind] - caps.of(line.kind)
        if beyond > 0 and line.is_record:
            yield _warning(line_no, f"more than {caps.records:,} records: what follows was not read")
            return
        if beyond <= 0:
            yield line
        elif beyond == 1:
            yield _no_more(line, caps)


def _no_more(line: HookLine, caps: OutputCaps) -> HookLine:
    """In place of a warning, or a line of the log, beyond those that are kept."""
    if line.is_log:
        return _log(line.line_no, f"more than {caps.logs:,} lines of words: no further ones are kept")
    return _warning(line.line_no, f"more than {caps.warnings:,} warnings: no further ones are kept")


def _split(opened: int, caps: OutputCaps) -> Iterator[tuple[int, bytes, bool]]:
    """The lines with their numbers from 1; of one that is too long its beginning, and False."""
    pending, read, line_no, overlong = b"", 0, 1, False
    while read < caps.total_bytes and (block := os.read(opened, min(_BLOCK, caps.total_bytes - read))):
        read += len(block)
        *ended, rest = block.split(b"\n")
        for end in ended:
            content = pending + end
            if not overlong:
                yield line_no, content[: caps.line_bytes + 1], len(content) <= caps.line_bytes
            pending, overlong, line_no = b"", False, line_no + 1
        if overlong:
            continue
        pending += rest
        if len(pending) > caps.line_bytes:
            yield line_no, pending, False
            pending, overlong = b"", True
    if read >= caps.total_bytes and os.read(opened, 1):
        yield line_no + overlong, b"", False  # a number is stored once
    elif pending:
        yield line_no, pending, True


def _too_long(content: bytes, caps: OutputCaps) -> str:
    if not content:
        return f"the output has more than {caps.total_bytes:,} bytes: what follows was not read"
    return f"a line of more than {caps.line_bytes:,} bytes: {_shown(content)}"


def _parsed(line_no: int, content: bytes) -> HookLine:
    if not content.lstrip().startswith(b"{"):
        return _log(line_no, _shown(content, _LONGEST_LOG))
    try:
        payload = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        return _warning(line_no, f"not UTF-8: {_shown(content)}")
    except (ValueError, RecursionError) as wrong:
        said = wrong.msg if isinstance(wrong, json.JSONDecodeError) else "too deep or too large a number"
        return _warning(line_no, f"not JSON ({said}): {_shown(content)}")
    try:
        text = check_payload(payload, max_depth=_MAX_DEPTH)
        kind = payload.get("type")
        if not isinstance(kind, str) or not kind or len(kind.encode()) > NAME_BYTES or kind == WARNING:
            raise PayloadError("it has no `type`, or none that can be kept")
        if kind == FILES:
            raise PayloadError(f"the type {FILES!r} is the engine's own, for what it has found itself")
    except PayloadError as refused:
        return _warning(line_no, f"{refused.message}: {_shown(content)}")
    return HookLine(line_no, kind, text)


def _shown(content: bytes, most: int = _SHOWN) -> str:
    """The beginning of a line, in a way that can be stored and printed."""
    text = content[:most].decode("utf-8", "backslashreplace")
    clean = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return clean + ("…" if len(content) > most else "")


def _log(line_no: int, text: str) -> HookLine:
    return HookLine(line_no, LOG, check_payload({"type": LOG, "text": text}), is_log=True)


def _warning(line_no: int, said: str) -> HookLine:
    return HookLine(line_no, WARNING, warning=said)
