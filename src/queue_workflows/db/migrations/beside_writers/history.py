"""The table of ingest jobs and that of their history, which have one set of columns, and the view over both.

A revision that adds or drops a column of `ingest_jobs` by `columns` changes all three; one that changes a
column in another way puts the table's change between `hide_both` and `show_both` itself.
"""

from __future__ import annotations

from typing import Final

TABLE: Final = "ingest_jobs"
HISTORY: Final = "ingest_jobs_history"
VIEW: Final = "ingest_jobs_and_history"
# By the names of columns, as the two tables may have them in another order; columns are added at the end, so
# that the view, and what was granted on it, stays. Nothing where no revision has made the history yet. In one
# transaction with a change, so that nobody finds a view that lacks a column of the table, nor none.
_CHANGE: Final = """
DO $$
DECLARE
    names text;
BEGIN
{changes}    IF to_regclass('ingest_jobs_history') IS NULL THEN
        RETURN;
    END IF;
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO names FROM pg_attribute
    WHERE attrelid = 'ingest_jobs'::regclass AND attnum > 0 AND NOT attisdropped;
    EXECUTE format(
        'CREATE OR REPLACE VIEW ingest_jobs_and_history AS SELECT %s FROM ingest_jobs '
        'UNION ALL SELECT %s FROM ingest_jobs_history', names, names
    );
END
$$
"""


def show_both() -> str:
    """The statement that makes the view over both tables, or adds to it what they have more."""
    return _CHANGE.replace("{changes}", "")


def hide_both() -> str:
    """The statement that drops the view, before a column of it is dropped or changed; grants go with it."""
    return f"DROP VIEW IF EXISTS {VIEW}"


def alter_both(actions: str, *, hides: bool) -> str:
    """The statement that changes columns of both tables alike, and the view with them."""
    changes = [hide_both()] if hides else []
    changes += [f"ALTER TABLE IF EXISTS {table} {actions}" for table in (TABLE, HISTORY)]
    return _CHANGE.replace("{changes}", "".join(f"    {change};\n" for change in changes))
