"""Insert rows with keys that may be taken already, one or many; learn each one's id and whether it is new.

The statement inserts what is free (ON CONFLICT DO NOTHING waits for a transaction that holds the key open); a
second one, with a newer snapshot, finds the rows that have the other keys. A row that vanished in between is
tried again.

Many go as arrays into one statement per chunk. Not by COPY, which knows neither ON CONFLICT nor pipelines,
and is no faster with the temporary table that would make up for it;
docs/decisions/0004-repositories-on-any-connection.md has the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice, repeat
from typing import Any, Final, NamedTuple, TypeAlias

from queue_workflows.errors import DatabaseError
from queue_workflows.repositories.sql.columns import Columns
from queue_workflows.repositories.sql.connection import Answer, Params, Statements
from queue_workflows.repositories.sql.families import unindented

# given: the rows in the caller's order, each with its place in the queue, which also tells them apart below;
# taken here, or beforehand where the rows of a call go in several statements.
# inserted: in the order of their keys, so that two statements with the same keys wait and do not deadlock.
INSERT_MANY = """
WITH given AS MATERIALIZED (
    SELECT {position}{arrays}
    FROM ROWS FROM ({array_params}) AS given ({arrays})
), inserted AS (
    INSERT INTO {table} (position, {columns})
    SELECT
        position,
        {values}
    FROM {source}
    {in_order}
    {on_conflict} {key_where} {then}
    RETURNING id, position
)
{answer}
"""
# As one array: to read a row for each takes longer than all else that is done with an answer.
# A row with a taken key has no id; where there are no keys, all have one.
ANSWER_KEYED: Final = """
SELECT array_agg(inserted.id ORDER BY position) FROM given LEFT JOIN inserted USING (position)
"""
ANSWER: Final = "SELECT array_agg(id ORDER BY position) FROM inserted"

TAKE_PLACES = "SELECT array_agg(nextval('{table}_position_seq')) FROM generate_series(1, %(rows)s::integer)"

# By the database's clock: `run_at`, or else `delay_s` from now; what is due is queued.
RUN_AT: Final = """COALESCE(
            COALESCE({run_at}, statement_timestamp() + make_interval(secs => {delay_s})),
            statement_timestamp()
        )"""
_DUE: Final = """CASE
            WHEN COALESCE({run_at}, statement_timestamp() + make_interval(secs => {delay_s}))
                > statement_timestamp()
            THEN 'scheduled' ELSE 'queued'
        END"""
# The same for rows that nobody is to claim: their status is given.
DUE_UNLESS_GIVEN: Final = (
    (
        "status",
        """COALESCE({status}, CASE
            WHEN COALESCE({run_at}, statement_timestamp() + make_interval(secs => {delay_s}))
                > statement_timestamp()
            THEN 'scheduled' ELSE 'queued'
        END)""",
    ),
    ("run_at", RUN_AT),
    ("finished_at", "CASE WHEN {status} = 'skipped' THEN statement_timestamp() END"),
    ("expires_at", "COALESCE({expires_at}, statement_timestamp() + make_interval(secs => {expires_s}))"),
)

GIVEN: Final = "given"

TRIES: Final = 20
# How many statements are on their way at once, where the connection can; their rows are in memory once more.
# Few, as nobody reads the answers to the last ones while the server works.
IN_FLIGHT: Final = 8


class Enqueued(NamedTuple):
    """The row's id, and whether this call made it; if not, the row that had the key already."""

    id: int
    created: bool


@dataclass(frozen=True)
class BulkTable:
    """A job table: its columns with their types, the unique key, and the statement that finds rows by it."""

    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    key_where: str
    # Takes an array for each key column, returns (ordinality, id).
    find: str
    # Columns that are made of others, `{named}` in the expression, and those that only serve this.
    made: tuple[tuple[str, str], ...] = (("status", _DUE), ("run_at", RUN_AT))
    only_for_made: tuple[str, ...] = ("run_at", "delay_s")
    # What the rows are read from, which may have a column more, worked out once for each row.
    source: str = GIVEN
    # What becomes of a row with a taken key.
    on_conflict: str = "DO NOTHING"

    @property
    def large(self) -> tuple[str, ...]:
        """The columns with the texts that bound what one statement takes."""
        return tuple(name for name, kind in self.columns if kind == "jsonb")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)


# A statement's rows with their places, and what gives its answer.
_Asked: TypeAlias = tuple[Columns, Sequence[int] | None, Answer]


def insert_or_find(statements: Statements, insert: str, find: str, params: Params) -> tuple[Any, bool]:
    """One row: `insert` returns its id unless the key is taken, `find` the id of the row that has it."""
    for _ in range(TRIES):
        if rows := statements.rows(insert, params):
            return rows[0][0], True
        if rows := statements.rows(find, params):
            return rows[0][0], False
    raise swallowed()


def insert_many(statements: Statements, table: BulkTable, rows: Columns) -> list[Enqueued]:
    """Each row's id in the order given; the first of several with one key makes it, the rest point at it."""
    bounds = list(rows.bounds(table.large))
    if len(bounds) < 2:
        if not bounds:
            return []
        return _settled(statements, table, rows, None, statements.rows(*_insertion(table, rows, None)))
    if (order := _by_key(table, rows)) is None:
        parts = ((rows.part(*ends), None) for ends in bounds)
        return [answer for chunk in _insert_chunks(statements, table, parts) for answer in chunk]
    # By key across all statements too, and for the same reason; so the places are taken beforehand.
    ((taken,),) = statements.rows(TAKE_PLACES.replace("{table}", table.name), {"rows": rows.count})
    places = sorted(taken)
    chosen = [sorted(order[start:stop]) for start, stop in rows.picked(order).bounds(table.large)]
    picked = ((rows.picked(numbers), list(map(places.__getitem__, numbers))) for numbers in chosen)
    done: dict[int, Enqueued] = {}
    for numbers, answers in zip(chosen, _insert_chunks(statements, table, picked), strict=True):
        done.update(zip(numbers, answers, strict=True))
    return [done[number] for number in range(rows.count)]


def send_many(statements: Statements, table: BulkTable, rows: Columns) -> None:
    """Insert rows without their ids coming back, where nobody else writes their keys at this time."""
    if rows.count == 1 and table.source == GIVEN:
        statements.send(_single(table), rows.same)
        return
    for ends in rows.bounds(table.large):
        statements.send(*_insertion(table, rows.part(*ends), None))


def _by_key(table: BulkTable, rows: Columns) -> list[int] | None:
    """The rows' numbers in the order in which the server sorts their keys; None if they are in it already.

    A row without a key waits for nobody, and comes last.
    """
    if any(name in rows.same and rows.same[name] is None for name in table.key):
        return None
    columns = [rows.each[name] for name in table.key if name in rows.each]
    numbers = range(rows.count)
    without = sorted({at for column in columns if None in column for at in numbers if column[at] is None})
    keyed = list(numbers) if not without else sorted(set(numbers).difference(without))
    # Stable, so the last column first.
    for column in reversed(columns):
        keyed.sort(key=column.__getitem__)
    order = keyed + without
    return None if order == list(numbers) else order


def _insert_chunks(
    statements: Statements, table: BulkTable, chunks: Iterable[tuple[Columns, Sequence[int] | None]]
) -> Iterator[list[Enqueued]]:
    """What became of each: the answers to one flight are read while the server is at the next one."""
    coming = iter(chunks)
    landed: list[_Asked] = []
    with statements.flowing():
        while True:
            flying: list[_Asked] = [
                (rows, places, statements.ask(*_insertion(table, rows, places)))
                for rows, places in islice(coming, IN_FLIGHT)
            ]
            for rows, places, answer in landed:
                yield _settled(statements, table, rows, places, answer())
            if not flying:
                return
            # In a pipeline a call for the first answer waits for all of them.
            rows, places, first = flying[0]
            landed = [(rows, places, first._replace(rows=partial(list, first()))), *flying[1:]]


def _settled(
    statements: Statements,
    table: BulkTable,
    rows: Columns,
    places: Sequence[int] | None,
    answers: Sequence[Sequence[Any]],
) -> list[Enqueued]:
    """Each row's id; for a row with a taken key, the id of the row that has the key."""
    ids = _ids(answers)
    if len(ids) == rows.count and None not in ids:
        # A call of Python's for each would cost as much as all else that is done with an answer.
        return list(map(tuple.__new__, repeat(Enqueued), zip(ids, repeat(True))))
    done: dict[int, Enqueued] = {}
    left = list(range(rows.count))
    for _ in range(TRIES):
        if len(ids) != len(left):
            break
        for at, new_id in zip(left, ids, strict=True):
            if new_id is not None:
                done[at] = Enqueued(new_id, True)
        left = [at for at in left if at not in done]
        if left:
            for number, found_id in _find(statements, table, rows.picked(left)):
                done[left[number - 1]] = Enqueued(found_id, False)
            left = [at for at in left if at not in done]
        if not left:
            return [done[at] for at in range(rows.count)]
        theirs = places and [places[at] for at in left]
        ids = _ids(statements.rows(*_insertion(table, rows.picked(left), theirs)))
    raise swallowed()


def _ids(answers: Sequence[Sequence[Any]]) -> list[int | None]:
    """Of the one row of an answer, which has nothing in it where nothing was inserted."""
    ((ids,),) = answers
    return ids or []


def _insertion(table: BulkTable, rows: Columns, places: Sequence[int] | None) -> tuple[str, dict[str, Any]]:
    """A column that has one value throughout goes as that value: arrays are a large part of the work.

    One that nobody gave stands in the statement as NULL, of which the server then makes nothing per row.
    """
    missing = tuple([name for name in table.names if name in rows.same and rows.same[name] is None])
    arrays = tuple([name for name in table.names if name in rows.each])
    params: dict[str, Any] = {name: value for name, value in rows.same.items() if value is not None}
    lists = tuple([name for name in arrays if name in table.large and None not in rows.each[name]])
    params.update((name, list(rows.each[name])) for name in arrays if name not in lists)
    params.update((name, f"[{','.join(rows.each[name])}]") for name in lists)
    if not arrays:
        # Some array has to say how many rows there are.
        arrays = table.key[:1]
        params[arrays[0]] = [params[arrays[0]]] * rows.count
    if places is not None:
        params["position"] = places
    return _statement(table, arrays, lists, missing, places is not None), params


def _find(statements: Statements, table: BulkTable, rows: Columns) -> Sequence[Sequence[Any]]:
    return statements.rows(table.find, {name: list(rows.values(name)) for name in table.key})


@lru_cache(maxsize=256)
def _statement(
    table: BulkTable,
    arrays: tuple[str, ...],
    lists: tuple[str, ...],
    missing: tuple[str, ...],
    placed: bool,
) -> str:
    """INSERT_MANY for the columns that go as arrays, and those that nobody gave; made of the table's names.

    JSON goes as one JSON list, which the server takes apart quicker than it reads text for text.

    Without keys there is no conflict, and preparing for one would cost a tenth of the insert.
    Arrays are sent in binary (`%(name)b`): escaping texts into an array literal costs as much as the insert.
    """

    kinds = dict(table.columns)

    def value(name: str) -> str:
        kind = kinds[name]
        if name in missing:
            return f"NULL::{kind}"
        if name not in arrays:
            return f"%({name})s::{kind}"
        return f"{name}::jsonb" if kind == "jsonb" else name

    by_key = [
        f'{name} COLLATE "C"' if kind == "text" else name
        for name, kind in table.columns
        if name in table.key and name in arrays
    ]
    columns = table.columns
    position = f"nextval('{table.name}_position_seq') AS position, "
    if placed:
        columns, arrays, position = (("position", "bigint"), *columns), ("position", *arrays), ""
    plain = [name for name in table.names if name not in table.only_for_made]
    made = dict(table.made)
    for source in table.names:
        made = {name: sql.replace(f"{{{source}}}", value(source)) for name, sql in made.items()}
    from_given = table.source
    for name in table.names:
        from_given = from_given.replace(f"{{{name}}}", f"given.{name}" if name in arrays else value(name))
    unnested = [(name, kind) for name, kind in columns if name in arrays and name not in lists]
    keyed = not any(name in missing for name in table.key)
    fragments = {
        "{table}": table.name,
        "{position}": position,
        "{arrays}": ", ".join([*(name for name, _ in unnested), *lists]),
        "{array_params}": _sources(unnested, lists),
        "{columns}": ", ".join([*made, *plain]),
        "{values}": ", ".join([*made.values(), *map(value, plain)]),
        "{source}": from_given,
        "{in_order}": f"ORDER BY {', '.join([*by_key, 'position'])}" if by_key else "",
        "{on_conflict}": f"ON CONFLICT ({', '.join(table.key)})" if keyed else "",
        "{key_where}": table.key_where if keyed else "",
        "{then}": table.on_conflict if keyed else "",
        "{answer}": ANSWER_KEYED if keyed else ANSWER,
    }
    statement = INSERT_MANY
    for mark, fragment in fragments.items():
        statement = statement.replace(mark, fragment)
    return unindented(statement)


def _sources(arrays: Sequence[tuple[str, str]], lists: Sequence[str]) -> str:
    """What the rows come from, side by side."""
    sent = ", ".join(f"%({name})b::{'text' if kind == 'jsonb' else kind}[]" for name, kind in arrays)
    unnested = [f"unnest({sent})"] if arrays else []
    return ", ".join([*unnested, *(f"jsonb_array_elements(%({name})s::jsonb)" for name in lists)])


@lru_cache(maxsize=16)
def _single(table: BulkTable) -> str:
    """The statement for one row: the server takes half as long for it as for one with arrays."""
    kinds = dict(table.columns)
    plain = [name for name in table.names if name not in table.only_for_made]
    made = dict(table.made)
    for source in table.only_for_made:
        made = {
            name: sql.replace(f"{{{source}}}", f"%({source})s::{kinds[source]}") for name, sql in made.items()
        }
    values = [*made.values(), *(f"%({name})s::{kinds[name]}" for name in plain)]
    return unindented(f"""
INSERT INTO {table.name} (position, {", ".join([*made, *plain])})
VALUES (nextval('{table.name}_position_seq'), {", ".join(values)})
ON CONFLICT ({", ".join(table.key)}) {table.key_where} {table.on_conflict}
RETURNING id
""")  # noqa: S608 - the table's own names


def swallowed() -> DatabaseError:
    """Something of the database's owner keeps our rows out."""
    return DatabaseError(
        f"a row was neither inserted nor found, in {TRIES} tries",
        advice="look for a trigger, rule or policy of your own on the engine's tables",
    )
