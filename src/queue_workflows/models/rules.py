"""What a column may hold, as SQL that is true of what it may not.

The tables of jobs, runs and answers ask for it in a trigger that looks at what is inserted (`insert_rules`);
those of schedules, caps and rates in CHECK constraints. `sql/checks` refuses by the same limits, and
a test compares the two. Revision 0032 has put them there: a rule that changes needs a revision which makes
its constraint or its trigger's function anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queue_workflows.payload import YEARS

# What is indexed must fit into a btree entry (2,704 bytes), two such columns together.
NAME_BYTES: Final = 512
KEY_BYTES: Final = 1024
TEXT_BYTES: Final = 65_536
# Half as much again as the largest setting allows, as Postgres writes a blank behind each comma.
JSON_BYTES: Final = 268_435_456
LONGEST_S: Final = 100 * 365 * 86_400.0
# How often a job is tried of which nothing is said.
MAX_ATTEMPTS: Final = 3
# A ticker that was away inserts them with one statement.
MOST_CAUGHT_UP: Final = 10_000
# Of a rate, per second and at once.
MOST_TOKENS: Final = 1e12
# A day beyond the years, as a moment may be said in any time zone.
_FIRST: Final = f"'{YEARS[0] - 1:04}-12-31 00:00:00+00'"
_LAST: Final = f"'{YEARS[1] + 1}-01-02 00:00:00+00'"


def no_text(column: str, most: int = NAME_BYTES) -> str:
    """An empty one is a mistake where NULL says that there is none."""
    return f"octet_length({column}) NOT BETWEEN 1 AND {most}"


def no_queue(column: str) -> str:
    """As `settings.check_queue_name` has it."""
    return f"{column} !~ '^[A-Za-z][A-Za-z0-9_.-]{{0,62}}$'"


def no_ingest_queue(column: str) -> str:
    """None of the engine's own either."""
    return f"{no_queue(column)} OR lower({column}) IN ('cpu', 'gpu', 'hooks')"


def no_limit_key(column: str) -> str:
    """A `*` is for the patterns that limits are set by."""
    return f"{no_text(column)} OR strpos({column}, '*') > 0"


def no_key_pattern(column: str) -> str:
    """A key, or the beginning of keys and a `*`."""
    return f"{no_text(column)} OR strpos(left({column}, -1), '*') > 0"


def no_host_lock(column: str) -> str:
    """A name that people can read, behind at most one `elsewhere:`."""
    unreadable = r"'^elsewhere:(elsewhere:|$)|[\u0001-\u001f\u007f]|^ | $|^elsewhere: '"
    return f"{no_text(column)} OR {column} ~ {unreadable}"


def no_json_object(column: str) -> str:
    """Some bytes of JSON stand for gigabytes of text, which nobody could read."""
    return f"jsonb_typeof({column}) <> 'object' OR {no_json(column)}"


def no_json(column: str) -> str:
    """Any value that is not too large."""
    return f"octet_length({column}::text) > {JSON_BYTES}"


def no_moment(column: str) -> str:
    """One that Python can read in every time zone."""
    return f"{column} NOT BETWEEN {_FIRST} AND {_LAST}"


def no_span_or_none(column: str) -> str:
    """A length of time, which may be none at all; NaN is above everything."""
    return f"{column} NOT BETWEEN 0 AND {LONGEST_S:.0f}"


def no_span(column: str) -> str:
    """A length of time, more than none."""
    return f"{column} <= 0 OR {column} > {LONGEST_S:.0f}"


def conditions(broken: Mapping[str, str], *, unless: str = "") -> dict[str, str]:
    """What is true of each row that breaks none of these rules; rows that are as `unless` says may do so."""
    free = f"{unless} OR " if unless else ""
    return {name: f"{free}NOT ({breaks})" for name, breaks in broken.items()}
