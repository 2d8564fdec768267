"""The statements that make of the tables that are there those that a revision makes.

From the two catalogs alone, in an order in which they run: names first, so that nothing is built that has
only another name; then what is too much, tables and columns, functions, constraints, indexes and triggers.
They are for a person to read and to run: before a column is dropped its values are copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy.dialects.postgresql.base import RESERVED_WORDS

from queue_workflows.db.migrations.catalog import Catalog

_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")
_COLUMN: Final = re.compile(
    r"(?P<type>.*?)(?P<not_null> not null)?(?: default (?P<default>.*?))?(?: identity (?P<identity>[ad]))?"
    r"(?: generated (?P<generated>[sv]))?",
    re.DOTALL,
)
_SEQUENCE: Final = re.compile(r"(\S+) (\S+) (\S+) (\S+) (\S+) (\S+) ([tf])")
_UNIQUE: Final = re.compile(r"(PRIMARY KEY|UNIQUE)( NULLS NOT DISTINCT)? \((?P<columns>[^)]*)\)")
_LEADS: Final = re.compile(r"FOREIGN KEY .* REFERENCES (?P<table>[^(]+)\((?P<columns>[^)]*)\)")
_NEXT: Final = re.compile(r" default nextval\('(?P<name>[^']+)'::regclass\)")
_KEY: Final = re.compile(r"PRIMARY KEY \((?P<columns>[^)]*)\)")
# Where tables of another kind are put.
BEFORE: Final = "before_qwf"
_TEXTS: Final = frozenset({"text", "character varying"})
_NO_KEY: Final = "ctid"
_IDENTITY: Final = {"a": "ALWAYS", "d": "BY DEFAULT"}
# What follows a definition that is a statement already: storage settings, whether it is valid or fires.
_BEHIND_INDEX: Final = re.compile(r"( \{.*\})?( invalid)?$")
_BEHIND_TRIGGER: Final = re.compile(r" [ODRA]$")


def moving(expected: Catalog, found: Catalog, ledger: str) -> list[str]:
    """Statements that put tables aside that have keys of another kind, so that ours can be made beside them.

    Empty if there are none: no statement turns the key `'5f0c…'`, and all that names it, into a number.
    """
    there = sorted(name for kind, name in found if kind == "table" and ("table", name) in expected)
    if not any(_has_other_key(expected, found, table) for table in there):
        return []
    moved = [f"ALTER TABLE {_quoted(table)} SET SCHEMA {BEFORE}" for table in [*there, ledger]]
    return [f"CREATE SCHEMA {BEFORE}", *moved]


def _has_other_key(expected: Catalog, found: Catalog, table: str) -> bool:
    keys = [("column", f"{table}.{column.strip()}") for column in _key_of(expected, table)]
    kinds = [(_column(expected[key])["type"], _column(found[key])["type"]) for key in keys if key in found]
    return any(wanted != kind and kind in _TEXTS for wanted, kind in kinds)


def mending(expected: Catalog, found: Catalog, functions: Mapping[str, str]) -> list[str]:
    """Statements without their semicolons; `functions` are the sources of those that are expected."""
    return list(_Mending(expected, dict(found), functions).statements())


@dataclass
class _Mending:
    """`found` is kept as it would be after the statements so far."""

    expected: Catalog
    found: dict[tuple[str, str], str]
    functions: Mapping[str, str]

    def statements(self) -> Iterator[str]:
        yield from self._renamed("constraint", "ALTER TABLE {table} RENAME CONSTRAINT {old} TO {new}")
        yield from self._renamed("index", "ALTER INDEX {old} RENAME TO {new}")
        yield from self._renamed_sequences()
        yield from self._drops()
        yield from self._tables()
        yield from self._columns()
        yield from self._sequences()
        yield from self._functions()
        yield from self._constraints()
        yield from self._indexes()
        yield from self._triggers()
        for kind, name in self._lacking("type", "view"):
            yield f"-- {kind} {name}: see `qwf db upgrade --chain engine --sql`"

    def _lacking(self, *kinds: str) -> list[tuple[str, str]]:
        """What is missing or otherwise, in the order of names."""
        return sorted(
            key for key, text in self.expected.items() if key[0] in kinds and self.found.get(key) != text
        )

    def _too_many(self, kind: str) -> list[tuple[str, str]]:
        """What is there of that kind, on tables of ours, and is not expected."""
        return sorted(
            key
            for key in self.found
            if key[0] == kind and key not in self.expected and ("table", _table(key[1])) in self.expected
        )

    def _renamed(self, kind: str, statement: str) -> Iterator[str]:
        """What is there as it should be but for its name."""
        for key in self._lacking(kind):
            if key in self.found:
                continue
            table, name = _parts(key[1])
            for other in self._too_many(kind):
                old = _parts(other[1])[1]
                if _table(other[1]) != table or not self._is_alike(key, other):
                    continue
                yield statement.format(table=_quoted(table), old=_quoted(old), new=_quoted(name))
                self.found[key] = self.expected[key]
                del self.found[other]
                # The index of a key goes by the name of its constraint.
                index = self.found.pop(("index", f"{table}.{old}"), None)
                if kind == "constraint" and index is not None:
                    self.found["index", f"{table}.{name}"] = _under(index, old, name)
                break

    def _renamed_sequences(self) -> Iterator[str]:
        """That of a column's default, where the column has one of another name."""
        for key in self._lacking("column"):
            new, old = _sequence_of(self.expected[key]), _sequence_of(self.found.get(key, ""))
            if new is None or old is None or ("sequence", new) in self.found:
                continue
            yield f"ALTER SEQUENCE {_quoted(old)} RENAME TO {_quoted(new)}"
            self.found["sequence", new] = self.found.pop(("sequence", old))
            named = {one: text for one, text in self.found.items() if _sequence_of(text) == old}
            for one, text in named.items():
                self.found[one] = text.replace(f"'{_quoted(old)}'", f"'{_quoted(new)}'")

    def _is_alike(self, key: tuple[str, str], other: tuple[str, str]) -> bool:
        if key[0] == "constraint":
            return self.expected[key] == self.found[other]
        return _under(self.found[other], _parts(other[1])[1], _parts(key[1])[1]) == self.expected[key]

    def _drops(self) -> Iterator[str]:
        """Constraints and triggers on our tables that are not ours: some name a column that will be dropped.

        What another table's foreign key leads to can go only after that.
        """
        yield from self._leading_to_what_goes()
        for key in self._too_many("constraint"):
            table, name = _parts(key[1])
            yield f"ALTER TABLE {_quoted(table)} DROP CONSTRAINT {_quoted(name)}"
        for key in self._too_many("trigger"):
            table, name = _parts(key[1])
            yield f"DROP TRIGGER {_quoted(name)} ON {_quoted(table)}"

    def _leading_to_what_goes(self) -> Iterator[str]:
        going = {(_table(name), self.found["constraint", name]) for _, name in self._too_many("constraint")}
        keys = {(table, key["columns"]) for table, text in going if (key := _UNIQUE.match(text)) is not None}
        own = {(_table(name), _quoted(_parts(name)[1])) for _, name in self._too_many("column")}
        for (kind, name), text in sorted(self.found.items()):
            leads = _LEADS.search(text) if kind == "constraint" else None
            if leads is None or ("table", _table(name)) in self.expected:
                continue
            to, columns = leads["table"], leads["columns"]
            if (to, columns) in keys or any((to, column) in own for column in columns.split(", ")):
                table, constraint = _parts(name)
                yield f"ALTER TABLE {_quoted(table)} DROP CONSTRAINT {_quoted(constraint)}"

    def _tables(self) -> Iterator[str]:
        for key in self._lacking("table"):
            name, (_, _, options) = key[1], self.expected[key].partition(" ")
            if key not in self.found:
                yield f"CREATE TABLE {_quoted(name)} ()"
            if options:
                yield f"ALTER TABLE {_quoted(name)} SET ({options})"
            before = self.found.get(key, "").partition(" ")[2]
            more = _option_names(before) - _option_names(options)
            if more:
                yield f"ALTER TABLE {_quoted(name)} RESET ({', '.join(sorted(more))})"

    def _columns(self) -> Iterator[str]:
        for key in self._lacking("column"):
            table, name = _parts(key[1])
            wanted, begun = _column(self.expected[key]), f"ALTER TABLE {_quoted(table)}"
            if key not in self.found:
                default = f" DEFAULT {wanted['default']}" if wanted["default"] else ""
                identity = f" {_identity(wanted)}" if wanted["identity"] else ""
                not_null = " NOT NULL" if wanted["not_null"] else ""
                yield f"{begun} ADD COLUMN {_quoted(name)} {wanted['type']}{default}{not_null}{identity}"
            else:
                for change in self._changes(table, name, _column(self.found[key]), wanted):
                    is_whole = change.startswith(("DROP SEQUENCE", "SELECT"))
                    yield change if is_whole else f"{begun} ALTER COLUMN {_quoted(name)} {change}"
        # What is reckoned from a column goes before it.
        for key in sorted(
            self._too_many("column"), key=lambda key: not _column(self.found[key])["generated"]
        ):
            table, name = _parts(key[1])
            columns = ", ".join(dict.fromkeys([*(_key_of(self.expected, table) or [_NO_KEY]), _quoted(name)]))
            kept = _quoted(f"{table}_{name}"[:63])
            yield f"CREATE TABLE {kept} AS SELECT {columns} FROM {_quoted(table)}"  # noqa: S608 - to be read
            yield f"ALTER TABLE {_quoted(table)} DROP COLUMN {_quoted(name)}"

    def _changes(
        self, table: str, name: str, there: Mapping[str, str], wanted: Mapping[str, str]
    ) -> Iterator[str]:
        """How one column is altered, a clause or a statement each."""
        is_serial = wanted["identity"] and not there["identity"]
        if there["default"] and there["default"] != wanted["default"]:
            yield "DROP DEFAULT"
        sequence = _sequence_of(self.found["column", f"{table}.{name}"]) or f"{table}_{name}_seq"
        if is_serial and ("sequence", sequence) in self.found:
            yield f"DROP SEQUENCE {_quoted(sequence)}"
            del self.found["sequence", sequence]
        if there["type"] != wanted["type"]:
            yield f"TYPE {wanted['type']} USING {_quoted(name)}::{wanted['type']}"
        if wanted["default"] and there["default"] != wanted["default"]:
            yield f"SET DEFAULT {wanted['default']}"
        if there["not_null"] != wanted["not_null"]:
            yield "SET NOT NULL" if wanted["not_null"] else "DROP NOT NULL"
        if there["identity"] and not wanted["identity"]:
            yield "DROP IDENTITY"
        elif there["identity"] and there["identity"] != wanted["identity"]:
            yield f"SET {_identity(wanted)}".replace(" AS IDENTITY", "")
        elif is_serial:
            yield f"ADD {_identity(wanted)}"
            sequence = f"pg_get_serial_sequence('{table}', '{name}')"
            yield f"SELECT setval({sequence}, max({_quoted(name)})) FROM {_quoted(table)}"  # noqa: S608 - to be read

    def _sequences(self) -> Iterator[str]:
        identities = {
            f"{_table(name)}_{_parts(name)[1]}_seq"
            for (kind, name), text in self.expected.items()
            if kind == "column" and _column(text)["identity"]
        }
        for key in self._lacking("sequence"):
            form = _SEQUENCE.fullmatch(self.expected[key])
            # That of an identity comes with it, named after its column.
            if form is None or (key not in self.found and key[1] in identities):
                continue
            verb = "ALTER" if key in self.found else "CREATE"
            kind, start, step, least, most, cache, cycle = form.groups()
            yield (
                f"{verb} SEQUENCE {_quoted(key[1])} AS {kind} INCREMENT {step} MINVALUE {least}"
                f" MAXVALUE {most} START {start} CACHE {cache} {'CYCLE' if cycle == 't' else 'NO CYCLE'}"
            )

    def _functions(self) -> Iterator[str]:
        for _, name in self._lacking("function"):
            yield self.functions.get(name, f"-- function {name}: its source is not known").strip()

    def _constraints(self) -> Iterator[str]:
        lacking = self._lacking("constraint")
        for key in (key for key in lacking if key in self.found):
            table, name = _parts(key[1])
            yield f"ALTER TABLE {_quoted(table)} DROP CONSTRAINT {_quoted(name)}"
            self.found.pop(("index", key[1]), None)
        # What a foreign key leads to has to be a key by then.
        for key in sorted(lacking, key=lambda key: self.expected[key].startswith("FOREIGN")):
            table, name = _parts(key[1])
            definition = self.expected[key]
            yield f"ALTER TABLE {_quoted(table)} ADD CONSTRAINT {_quoted(name)} {definition}"
            if ("index", key[1]) in self.expected:
                self.found["index", key[1]] = self.expected["index", key[1]]

    def _indexes(self) -> Iterator[str]:
        for key in self._lacking("index"):
            if key in self.found:
                yield f"DROP INDEX {_quoted(_parts(key[1])[1])}"
            yield _BEHIND_INDEX.sub("", self.expected[key])

    def _triggers(self) -> Iterator[str]:
        lacking = self._lacking("trigger")
        for key in (key for key in lacking if key in self.found):
            table, name = _parts(key[1])
            yield f"DROP TRIGGER {_quoted(name)} ON {_quoted(table)}"
        for key in lacking:
            yield _BEHIND_TRIGGER.sub("", self.expected[key])


def _key_of(expected: Catalog, table: str) -> list[str]:
    """The columns of a table's primary key."""
    for (kind, name), text in expected.items():
        if kind == "constraint" and _table(name) == table and (key := _KEY.match(text)):
            return key["columns"].split(", ")
    return []


def _parts(name: str) -> tuple[str, str]:
    """Table and name of what belongs to a table."""
    table, _, own = name.partition(".")
    return table, own


def _table(name: str) -> str:
    return name.partition(".")[0]


def _quoted(name: str) -> str:
    """Where that is needed: a column of a host's own may be called `order` or `user`."""
    is_plain = _PLAIN.fullmatch(name) is not None and name not in RESERVED_WORDS
    return name if is_plain else '"' + name.replace('"', '""') + '"'


def _under(definition: str, old: str, new: str) -> str:
    """An index's definition, if it had another name."""
    return definition.replace(f" INDEX {_quoted(old)} ON ", f" INDEX {_quoted(new)} ON ", 1)


def _column(definition: str) -> dict[str, str]:
    """The parts of a column's definition, empty where it has none."""
    found = _COLUMN.fullmatch(definition)
    return {name: text or "" for name, text in found.groupdict().items()} if found else {}


def _sequence_of(definition: str) -> str | None:
    """The sequence that a column's default asks, if that is all it does."""
    found = _NEXT.search(definition)
    return None if found is None else found["name"].strip('"').replace('""', '"')


def _identity(wanted: Mapping[str, str]) -> str:
    return f"GENERATED {_IDENTITY[wanted['identity']]} AS IDENTITY"


def _option_names(options: str) -> set[str]:
    return {one.partition("=")[0] for one in options.split(", ") if one}
