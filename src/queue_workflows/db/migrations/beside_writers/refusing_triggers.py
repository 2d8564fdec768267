"""Triggers by which tables refuse rows as they are inserted, once for each statement; put there by revisions.

Each statement here is a transaction of its own, as a trigger is made and dropped under a lock that holds
writers up, and may be done twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from alembic import op

from queue_workflows.db.migrations.beside_writers.indexes import beside_others, is_there

# refused: the first row that breaks a rule, and the first rule that it breaks.
_REFUSE: Final = """
CREATE OR REPLACE FUNCTION qwf_refuse_{table}() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    refused text[];
BEGIN
{first_look}    SELECT broken.rule INTO refused FROM (
        SELECT CASE
{rules}
        END AS rule
        FROM inserted
    ) AS broken
    WHERE broken.rule IS NOT NULL
    LIMIT 1;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'check_violation', TABLE = TG_TABLE_NAME, COLUMN = refused[1],
            MESSAGE = format('%s.%s cannot be so: %s', TG_TABLE_NAME, refused[1], refused[2]),
            HINT = 'docs/how-to/enqueue.md says what each column may hold';
    END IF;
    RETURN NULL;
END
$$
"""
# By a condition that is true of whatever breaks a rule, and false of most rows: to get all rules ready takes
# the server longer than to look.
_FIRST_LOOK: Final = """    IF NOT EXISTS (SELECT FROM inserted WHERE {unusual}) THEN
        RETURN NULL;
    END IF;
"""
_TRIGGER: Final = """
CREATE OR REPLACE TRIGGER qwf_refused AFTER INSERT ON {table}
REFERENCING NEW TABLE AS inserted
FOR EACH STATEMENT EXECUTE FUNCTION qwf_refuse_{table}()
"""


def refuse_inserts(table: str, rules: Mapping[str, tuple[str, str]]) -> None:
    """Refuse from now on what breaks one of these rules, if there is such a table.

    By column: what breaks the rule, as SQL, and what is said of the column then.
    """
    if not is_there(table):
        return
    with beside_others():
        op.execute(refusing_function(table, rules))
        op.execute(_TRIGGER.replace("{table}", table))


def change_rules(table: str, rules: Mapping[str, tuple[str, str]], unusual: str | None = None) -> None:
    """Refuse by these rules what was refused by others."""
    if is_there(table):
        op.execute(refusing_function(table, rules, unusual))


def refuse_nothing(tables: Iterable[str]) -> None:
    """Take anything again."""
    for table in tables:
        with beside_others():
            op.execute(f"DROP TRIGGER IF EXISTS qwf_refused ON {table}")
            op.execute(f"DROP FUNCTION IF EXISTS qwf_refuse_{table}()")


def refusing_function(table: str, rules: Mapping[str, tuple[str, str]], unusual: str | None = None) -> str:
    """The function that looks at what was inserted; by the rules only where something in it is `unusual`."""
    cases = "\n".join(
        f"            WHEN {breaks} THEN ARRAY['{column}', '{said}']"
        for column, (breaks, said) in rules.items()
    )
    first_look = _FIRST_LOOK.replace("{unusual}", unusual) if unusual else ""
    function = _REFUSE.replace("{table}", table).replace("{first_look}", first_look)
    return function.replace("{rules}", cases)
