"""What Alembic found different between models and database, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

MISSING: Final = "is in the models, not in the database"
EXTRA: Final = "is in the database, not in the models"

# Alembic's tuples begin with the operation that would bring the database to the models.
WHOLE_THINGS: Final = {
    "add_table": ("table", MISSING),
    "remove_table": ("table", EXTRA),
    "add_index": ("index", MISSING),
    "remove_index": ("index", EXTRA),
    "add_constraint": ("constraint", MISSING),
    "remove_constraint": ("constraint", EXTRA),
    "add_fk": ("foreign key", MISSING),
    "remove_fk": ("foreign key", EXTRA),
}


def describe_differences(diffs: Iterable[Any]) -> list[str]:
    """One line a difference; changes of one column come as a list of tuples."""
    return [describe(one) for diff in diffs for one in _flat(diff)]


def _flat(diff: Any) -> Iterator[tuple[Any, ...]]:
    if isinstance(diff, list):
        for one in diff:
            yield from _flat(one)
    else:
        yield diff


def describe(diff: tuple[Any, ...]) -> str:
    """A difference as a sentence."""
    verb = diff[0]
    if verb in WHOLE_THINGS:
        kind, state = WHOLE_THINGS[verb]
        thing = diff[1]
        table = getattr(thing, "table", None)
        of = f" on {table.name}" if table is not None else ""
        return f"{kind} {thing.name or '(unnamed)'}{of} {state}"
    if verb in ("add_column", "remove_column"):
        _, _schema, table, column = diff
        return f"column {table}.{column.name} {MISSING if verb == 'add_column' else EXTRA}"
    if verb.startswith("modify_") and len(diff) == 7:
        _, _schema, table, column, _, existing, wanted = diff
        what = verb.removeprefix("modify_").replace("_", " ")
        return f"column {table}.{column}: {what} is {_text(existing)}, the models say {_text(wanted)}"
    return " ".join(str(part) for part in diff)


def _text(value: Any) -> str:
    arg = getattr(value, "arg", value)
    return str(getattr(arg, "text", arg))
