"""A migrated schema refuses by the rules that the code has: one that changes has a revision."""

from __future__ import annotations

import re

from support.rows.schemas import query
from support.servers.postgres_versions import each_version, newest_version

from queue_workflows.db.migrations.beside_writers.refusing_triggers import refusing_function
from queue_workflows.models.insert_rules import OF_BEGINS, OF_TABLES, UNUSUAL_JOBS

JOBS = ("ingest_jobs", "workflow_node_jobs")


@each_version
def test_the_schema_has_the_rules_of_the_code(migrated: str) -> None:
    """Function by function, and with each of them its trigger."""
    source = "SELECT prosrc FROM pg_proc WHERE proname = 'qwf_refuse_{}'"
    for table, rules in OF_TABLES.items():
        ((found,),) = query(migrated, source.format(table))
        rules_of = rules | OF_BEGINS if table in JOBS else rules
        wanted = refusing_function(table, rules_of, UNUSUAL_JOBS.get(table))
        assert found == wanted.split("$$")[1]
    triggers = "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'qwf_refused' ORDER BY 1"
    assert [table for (table,) in query(migrated, triggers)] == sorted(OF_TABLES)


@newest_version
def test_a_first_look_passes_no_column_by_that_always_has_something_in_it(migrated: str) -> None:
    """Of a column that it does not judge it asks whether it is NULL, and of NULL no rule is broken."""
    optional = (
        "SELECT attname FROM pg_attribute WHERE attrelid = '{}'::regclass AND NOT attnotnull AND attnum > 0"
    )
    for table in JOBS:
        rules = OF_TABLES[table] | OF_BEGINS
        found = re.search(r"num_nonnulls\((.*?)\) > 0", UNUSUAL_JOBS[table])
        assert found is not None
        unjudged = set(found[1].split(", "))
        judged = {column for column in rules if f"({rules[column][0]})" in UNUSUAL_JOBS[table]}
        assert unjudged | judged | {"args", "inputs", "item"} >= set(rules)
        assert unjudged <= {column for (column,) in query(migrated, optional.format(table))}
        breaks = " OR ".join(rules[column][0] for column in sorted(unjudged))
        assert query(migrated, f"SELECT ({breaks}) IS TRUE FROM (SELECT (NULL::{table}).*) AS row") == [
            (False,)
        ]
