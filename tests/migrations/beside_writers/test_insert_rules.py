"""A migrated schema refuses by the rules that the code has: one that changes has a revision."""

from __future__ import annotations

from support.rows.schemas import query
from support.servers.postgres_versions import each_version

from queue_workflows.db.migrations.beside_writers.refusing_triggers import refusing_function
from queue_workflows.models.insert_rules import OF_BEGINS, OF_TABLES

JOBS = ("ingest_jobs", "workflow_node_jobs")


@each_version
def test_the_schema_has_the_rules_of_the_code(migrated: str) -> None:
    """Function by function, and with each of them its trigger."""
    source = "SELECT prosrc FROM pg_proc WHERE proname = 'qwf_refuse_{}'"
    for table, rules in OF_TABLES.items():
        ((found,),) = query(migrated, source.format(table))
        wanted = refusing_function(table, rules | OF_BEGINS if table in JOBS else rules)
        assert found == wanted.split("$$")[1]
    triggers = "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'qwf_refused' ORDER BY 1"
    assert [table for (table,) in query(migrated, triggers)] == sorted(OF_TABLES)
