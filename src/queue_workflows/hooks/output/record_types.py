"""What becomes of a record, by its type: the registry of handlers, and what a handler is given."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, overload

import psycopg

from queue_workflows.errors import ConfigurationError
from queue_workflows.repositories.sql.checks import NAME_BYTES

# What is called with a record as it was printed; it raises for one that it does not take.
RecordHandler: TypeAlias = "Callable[[dict[str, Any], RecordContext], object]"
H = TypeVar("H")


@dataclass(slots=True)
class RecordContext:
    """Where a record comes from, and the transaction in which it is processed; a handler commits nothing.

    `line_no` is that of the record at hand. A handler may be called again for what is the same to it, as a
    retried hook prints its records anew, so what it writes has a key of its own.
    """

    conn: psycopg.Connection[Any]
    run_id: uuid.UUID
    node_job_id: int
    attempt: int
    plugin: str
    hook: str
    host_label: str
    line_no: int = 0
    # What went wrong, by line; stored with the records.
    warnings: dict[int, str] = field(default_factory=dict)
    # What handlers have found out, for the records that follow.
    known: dict[str, Any] = field(default_factory=dict)


class RecordType(NamedTuple):
    """A handler; one that only looks needs no savepoint."""

    handle: RecordHandler
    writes: bool = True


class RecordTypes:
    """Handlers by the types of records; the latest registration counts."""

    def __init__(self, built_in: Mapping[str, RecordType] | None = None) -> None:
        self._types = dict(built_in or {})
        self._lock = threading.Lock()

    def register(self, name: str, handle: RecordHandler) -> None:
        """Have records of a type handled by this function from now on."""
        with self._lock:
            self._types[name] = RecordType(handle)

    def find(self, name: str) -> RecordType | None:
        """The handler of a type; None for a type that is only stored."""
        return self._types.get(name)


_REGISTERED: Final = RecordTypes()


def registered_types() -> RecordTypes:
    """What this process has registered, which comes before what is built in."""
    return _REGISTERED


@overload
def register_record_type(name: str) -> Callable[[H], H]: ...
@overload
def register_record_type(name: str, handler: H) -> H: ...
def register_record_type(name: str, handler: Any = None) -> Any:
    """Have records of a type handled by `handler(record, ctx)`, or by a class's `from_jsonl`; a decorator.

    It is called in the worker that ran the hook, in the transaction that stores the record, and raises for a
    record that it does not take: that becomes a warning beside the record, and what it wrote is undone.
    """
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.encode()) <= NAME_BYTES:
        raise ConfigurationError(f"register_record_type({name!r:.80}): that is no record's type")

    def register(given: H) -> H:
        handle: Any = getattr(given, "from_jsonl", given)
        if not callable(handle) or (isinstance(given, type) and handle is given):
            raise ConfigurationError(
                f"register_record_type({name!r}): {given!r:.80} cannot be called with a record",
                advice="give a function of the record and its context, or a class with `from_jsonl`",
            )
        _REGISTERED.register(name, handle)
        return given

    return register if handler is None else register(handler)
