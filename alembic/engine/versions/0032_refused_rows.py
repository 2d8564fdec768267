"""What no worker could handle is refused by the tables, whoever inserts it.

Rows of jobs, runs and answers are looked at once, as they are inserted, by a trigger for each statement: a
CHECK would be prepared anew by every statement that claims, renews or ends a job. Nothing that is there is
read; a job from before that breaks a rule is failed by the worker that claims it. Schedules, caps and rates
are few and have CHECKs.
"""

from __future__ import annotations

from queue_workflows.db.migrations.beside_writers.checks import add_checks, drop_checks
from queue_workflows.db.migrations.beside_writers.refusing_triggers import refuse_inserts, refuse_nothing
from queue_workflows.models import insert_rules, rules
from queue_workflows.models.limits import UNUSABLE_BUCKET, UNUSABLE_CAP
from queue_workflows.models.schedules import UNUSABLE, USABLE

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

CHECKED = {
    "schedules": (UNUSABLE, USABLE),
    "concurrency_limits": (UNUSABLE_CAP, rules.conditions(UNUSABLE_CAP)),
    "rate_limits": (UNUSABLE_BUCKET, rules.conditions(UNUSABLE_BUCKET)),
}
# paused: schedules that nobody could read; the audit log says which, and why.
PAUSE = """
WITH paused AS (
    UPDATE schedules SET enabled = false, updated_at = statement_timestamp()
    WHERE enabled AND ({broken})
    RETURNING name
)
INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason)
SELECT 'qwf', 'schedule.pause', 'schedule', left(name, 500), 'it broke a rule of its table at revision 0032'
FROM paused
"""
# removed: caps that are no key's.
REMOVE_CAPS = """
WITH removed AS (
    DELETE FROM concurrency_limits WHERE {broken} RETURNING key_pattern, max_slots
)
INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
SELECT 'qwf', 'limits.clear', 'concurrency_limit', left(key_pattern, 500),
    'it broke a rule of its table at revision 0032', jsonb_build_object('was', max_slots)
FROM removed
"""
REMOVE_RATES = "DELETE FROM rate_limits WHERE {broken}"
MENDED = {"schedules": PAUSE, "concurrency_limits": REMOVE_CAPS, "rate_limits": REMOVE_RATES}


def upgrade() -> None:
    for table, (unusable, usable) in CHECKED.items():
        broken = " OR ".join(f"({breaks})" for breaks in unusable.values())
        add_checks(table, usable, mend=MENDED[table].replace("{broken}", broken))
    for table, refused in insert_rules.OF_TABLES.items():
        refuse_inserts(table, refused)


def downgrade() -> None:
    refuse_nothing(insert_rules.OF_TABLES)
    for table, (_, usable) in CHECKED.items():
        drop_checks(table, usable)
