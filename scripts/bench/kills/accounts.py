"""What became of each job of a soak, from three witnesses: the rows, a trigger of ours, and the ledger."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

# Whoever writes a terminal row is written down, also if the row was terminal before.
WATCH_ENDS: Final = """
CREATE TABLE soak_ends (job_id bigint NOT NULL, attempt integer NOT NULL);
CREATE FUNCTION soak_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO soak_ends VALUES (NEW.id, NEW.attempt);
    RETURN NULL;
END
$$;
CREATE TRIGGER soak_end AFTER UPDATE ON ingest_jobs FOR EACH ROW
WHEN (NEW.finished_at IS NOT NULL) EXECUTE FUNCTION soak_end()
"""
JOBS: Final = "SELECT id, status, attempt, crash_count FROM ingest_jobs"
TWICE: Final = (
    "SELECT count(*) FROM (SELECT job_id FROM soak_ends GROUP BY job_id HAVING count(*) > 1) AS twice"
)
ENDED: Final = "SELECT count(DISTINCT job_id) FROM soak_ends"


# The workers that a job may kill before it is ended as failed.
MAX_CRASHES: Final = 3


@dataclass(frozen=True)
class Account:
    """The lines of the table, and whether they add up."""

    lines: dict[str, int]
    is_right: bool


def watch_ends(dsn: str) -> None:
    """From now on every end is written down."""
    with psycopg.connect(dsn) as connection:
        connection.execute(WATCH_ENDS)


def account(dsn: str, ledger: Path, enqueued: AbstractSet[int]) -> Account:
    """Compare the witnesses."""
    text = ledger.read_text(encoding="utf-8") if ledger.exists() else ""
    ran = {(int(job), int(attempt)) for job, attempt in (line.split() for line in text.splitlines())}
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(JOBS).fetchall()
        ((twice,),) = connection.execute(TWICE).fetchall()
        ((ended,),) = connection.execute(ENDED).fetchall()
    known = {row[0] for row in rows}
    completed = {row[0]: row[2] for row in rows if row[1] == "completed"}
    failed = {row[0]: row[3] for row in rows if row[1] == "failed"}
    # A job that happened to be alone in so many killed workers looks like poison, and is ended as such.
    given_up = {job for job, crashes in failed.items() if crashes >= MAX_CRASHES}
    blamed = len(failed) - len(given_up)
    unseen = sum(one not in ran for one in completed.items())
    missing = len(enqueued - known)
    unfinished = len(known - completed.keys() - failed.keys())
    return Account(
        {
            "jobs enqueued": len(enqueued),
            "jobs completed": len(completed),
            "jobs given up after crashes": len(given_up),
            "attempts in the ledger": len(ran),
            "attempts beyond the first": len(ran) - len({job for job, _ in ran}),
            "jobs missing": missing,
            "jobs not ended": unfinished,
            "jobs failed with fewer crashes": blamed,
            "jobs ended twice": twice,
            "jobs completed by an attempt not in the ledger": unseen,
        },
        is_right=bool(enqueued)
        and not (missing or unfinished or blamed or twice or unseen)
        and ended == len(known),
    )
