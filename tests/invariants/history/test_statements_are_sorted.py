"""Each statement on ingest jobs is sorted by what it has to do with the history that they may have moved to.

A new one fails here until it is sorted: one that lists, counts or looks up jobs which may be over reads the
view over both; one that changes such a job brings it back first.
"""

from __future__ import annotations

from support.reference.history_statements import statements

# What waits, is held or runs, by its status, its claim or its lease; a row that moved is none of it.
NOT_OVER = {
    "claims/begins": {"BEGIN"},
    "claims/by_host_lock": {"HOLDERS", "PROMOTE", "TAKE"},
    "claims/claim": {"CLAIMING", "CLAIM_ALONE", "HAS_SUSPECT", "NEXT"},
    "claims/claim_by_model": {"_CLAIM"},
    "claims/declared_options": {"FILL"},
    "claims/end": {"ENDING"},
    "claims/hold_lease": {
        "BEAT",
        "CLAIM_AGAIN",
        "FIND",
        "RENEW",
        "WATCH",
        "_PUT_ASIDE",
        "_SEEN",
        "_SEEN_HOOKS",
    },
    "claims/operator_verbs": {"CANCEL", "COUNTED", "MARK", "OPEN_BELOW"},
    "claims/sweep": {"HELD_KEYS", "PROMOTE", "PROMOTE_HELD", "_RECLAIM"},
    "claims/sweep_look": {"LOOK"},
    "claims/unread_claims": {"_READ"},
    "claims/withdraw_doubts": {"WITHDRAW"},
    "due_times": {"MOVES", "NEXT_DUE"},
    "durable/children": {"ADOPT", "HOLD", "STANDING"},
    "durable/listing": {"OPEN_CHILDREN", "OPEN_CHILDREN_OF_EACH"},
    "durable/steps": {"BEGIN_ROUND", "STORE"},
    "durable/waits": {"WAIT", "WAKE"},
    "explain/explain_job": {"AHEAD", "AT_WORK", "JUDGED", "SUSPECTS_AHEAD"},
    "explain/explain_run_jobs": {"HOLDERS_OF_EACH"},
    "forecast/queue_now": {"FACTS", "LANES", "LANE_DEPTHS", "LATER", "OF_KEY"},
    "limits/lane_turns": {"ADVANCE"},
    "limits/lanes": {"ADMIT", "LANES", "MOVE_OTHERS", "MOVE_SURPLUS"},
    "limits/overview": {"BEFORE_IN_LANE", "_JUMPS", "_WAITING"},
    "limits/slots": {"_LEFT"},
    "limits/waiting": {"FIRST"},
    "reports/open_work": {"ARGS", "_DURABLE", "_KEYS", "_SPAWNED", "_TASKS"},
    "reports/next_jobs": {"MEETS", "_IN_LINE", "_SUSPECTS"},
    "reports/queue_depth": {"DEPTHS"},
    "reports/stuck_jobs": {"STUCK"},
    "explain/waits": {"AT_WORK"},
    "sql/bounded_walk": {"BRANCH"},
    "workers/heartbeats": {"_HOLDS"},
    "workers/jobs_at_work": {"AT_WORK", "COUNTED", "COUNTED_ON_HOST", "ON_HOST"},
    "workers/obedience": {"_STANDING"},
}
# New rows, and what is looked up by a key or a schedule, with which a row does not move.
INSERTED_OR_KEYED = {
    "demo/story": {"_roll_back"},
    "jobs/bulk_insert": {"INSERT_MANY", "_single"},
    "jobs/ingest": {"ENQUEUE", "ENQUEUE_KEYED", "ENQUEUE_PLAIN", "FIND"},
    "jobs/ingest_rows": {"FIND_MANY"},
    "schedules/schedules": {"TRIGGER"},
    "schedules/ticks": {"_INSERT"},
}
# What durable functions spawned: none of it moves.
DURABLE = {"claims/operator_verbs": {"CANCELLED_BELOW"}, "durable/children": {"EMPTIED", "ENDS", "SIZE"}}
# What waits, ended in the last hour, or failed: none of it moves.
LATELY_OR_FAILED = {
    "reports/drain_progress": {"PUT_OFF"},
    "reports/job_listing": {"COUNT_FAILED", "FAILURES"},
    "reports/overview": {"_ENDED"},
    "reports/queue_statistics": {"LANES", "QUEUED", "RUNNING", "SCHEDULED"},
}
# The view over both, or the table with a look at the view for what it lacks.
READS_BOTH = {
    "demo/films": {"IS_OF_OTHERS"},
    "forecast/ended": {"ENDED"},
    "jobs/ingest": {"COUNTS", "FETCH", "FETCH_ANYWHERE"},
    "jobs/picked": {"PICKED_INGEST"},
    "reports/drain_progress": {"OUTCOMES"},
    "reports/ends": {"LOOK", "MOVED"},
    "reports/job_listing": {"COUNT"},
    "reports/job_search": {"OLD_ENOUGH"},
    "reports/queue_statistics": {"FINISHED"},
    "explain/waits": {"ENDED", "HOW_MANY", "RAN", "RAN_AT"},
    "retention": {"STANDING_INGEST"},
    "sql/bounded_walk": {"STEP"},
    "sql/table": {"Table"},
}
# A fork, and a retry: by id they bring back what they miss, by filter a retry goes on with the history.
BRINGS_BACK = {
    "claims/operator_verbs": {"MISSED", "RETRY"},
    "durable/fork": {"FORK"},
    "reports/job_listing": {"LAST_ID", "MOVED_PAGE", "PAGE"},
}
# Retention of what stays in the table, and the history itself.
KEEPS_HOUSE = {
    "db/migrations/beside_writers/history": {"_CHANGE"},
    "due_times": {"EMPTIES"},
    "history": {"IS_LEFT"},
    "reports/metrics": {"PRUNING_LAG"},
    "retention": {
        "DELETE_INGEST",
        "DELETE_OLDEST_INGEST",
        "DELETE_OLD_INGEST",
        "DELETE_ORPHAN_STEPS",
        "OLDEST_INGEST",
        "OLD_INGEST",
        "STRIP_INGEST",
        "_IS_NOT_AWAITED",
    },
}
# Of node jobs alone, which have no history by months, or a part of their statements.
OF_NODES = {
    "jobs/hooks": {"NEXT", "NEXT_OF_RUNS", "TRUST", "_CLAIMING"},
    "runs/parked": {"EXPIRE"},
    "sql/families": {"_RUNS"},
}


def test_every_statement_is_sorted() -> None:
    """What the source has, and no more, stands in one of the lists above."""
    kinds = (
        NOT_OVER,
        INSERTED_OR_KEYED,
        DURABLE,
        LATELY_OR_FAILED,
        READS_BOTH,
        BRINGS_BACK,
        KEEPS_HOUSE,
        OF_NODES,
    )
    told = [(module, name) for kind in kinds for module, names in kind.items() for name in names]
    assert sorted(told) == sorted((module, name) for module, names in statements().items() for name in names)
