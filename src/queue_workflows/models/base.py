"""The declarative base: names, types and storage that every table of the engine shares."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Connection,
    DateTime,
    MetaData,
    Table,
    Text,
    Uuid,
    event,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase

# Constraint names are part of the schema contract: migrations and error messages refer to them.
NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """All engine tables; a host app keeps its own base and refers to ours by `ForeignKey(WorkflowRun.id)`."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map = {
        int: BigInteger(),
        str: Text(),
        datetime: DateTime(timezone=True),
        uuid.UUID: Uuid(),
        dict[str, Any]: JSONB(none_as_null=True),
        list[Any]: JSONB(none_as_null=True),
    }


def one_of(column: str, values: Iterable[str]) -> str:
    """The CHECK text for a column that holds one of a few words."""
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


def among(column: str, values: Iterable[str], *, which: str = "= ANY") -> str:
    """`one_of` in fewer words of the server's own, for a table that each job writes several times.

    A statement reads the conditions of its table anew as it begins, and each word that stands for itself is
    five times as long as in an array.
    """
    return f"{column} {which} ('{{{','.join(map(str, values))}}}'::text[])"


def checks(conditions: Mapping[str, str]) -> Iterator[CheckConstraint]:
    """A CHECK for each condition, by its name."""
    for name, condition in conditions.items():
        yield CheckConstraint(condition, name=name)


def store_with(model: type[Base], **parameters: float) -> None:
    """Give a table its storage parameters when it is created from the metadata."""
    table = cast(Table, model.__table__)
    settings = ", ".join(f"{name} = {value}" for name, value in sorted(parameters.items()))
    statement = text(f"ALTER TABLE {table.name} SET ({settings})")

    def apply(_table: Table, connection: Connection, **_: Any) -> None:
        connection.execute(statement)

    event.listen(table, "after_create", apply)
