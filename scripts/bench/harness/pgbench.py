"""The opponent: bare `pgbench`, which does with prepared statements and no Python what the engine does."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# What somebody would write by hand: a claim and an end, each committed, as short as they can be while they
# keep the lease and the fence.
CLAIM_AND_FINISH: Final = """
WITH next AS MATERIALIZED (
    SELECT id FROM ingest_jobs WHERE status = 'queued' AND queue = 'bare'
    ORDER BY priority DESC, position LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE ingest_jobs SET status = 'running', attempt = attempt + 1, claimed_by = 'pgbench', progress = NULL,
    started_at = statement_timestamp(), lease_expires_at = statement_timestamp() + interval '30 s'
WHERE id = (SELECT id FROM next)
RETURNING id, attempt, task_name, reason, args \\gset
UPDATE ingest_jobs SET status = 'completed', finished_at = statement_timestamp(), lease_expires_at = NULL
WHERE id = :id AND attempt = :attempt AND claimed_by = 'pgbench' AND status = 'running';
"""
ENQUEUE: Final = """
INSERT INTO ingest_jobs (task_name, queue, args) VALUES ('noop', 'fetch', '{"n": 1}');
"""
# The same for many at a time: the end of a batch and the claim of the next are one statement and one commit.
END_AND_CLAIM: Final = """
WITH ended AS (
    UPDATE ingest_jobs SET status = 'completed', finished_at = statement_timestamp(), lease_expires_at = NULL
    WHERE id = ANY (:ids::bigint[]) AND claimed_by = 'pgbench' AND status = 'running'
), next AS MATERIALIZED (
    SELECT id FROM ingest_jobs WHERE status = 'queued' AND queue = 'bare'
    ORDER BY priority DESC, position LIMIT {batch} FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
    UPDATE ingest_jobs SET status = 'running', attempt = attempt + 1, claimed_by = 'pgbench', progress = NULL,
        started_at = statement_timestamp(), lease_expires_at = statement_timestamp() + interval '30 s'
    WHERE id = ANY (ARRAY(SELECT id FROM next))
    RETURNING id, attempt, task_name, reason, args
)
SELECT COALESCE(array_agg(id), '{}') AS ids, array_agg(attempt) AS attempts, array_agg(task_name) AS tasks,
    array_agg(reason) AS reasons, array_agg(args) AS args
FROM claimed \\gset
"""
_TPS: Final = re.compile(r"^tps = ([\d.]+) \(without initial connection time\)", re.MULTILINE)


def batched(bindir: Path, dsn: str, jobs: int, batch: int) -> float:
    """Jobs a second of one client that ends a batch and claims the next in one statement."""
    script = END_AND_CLAIM.replace("{batch}", str(batch))
    # The first has nothing to end.
    turns = -(-jobs // batch) + 1
    return tps(bindir, dsn, script, transactions=turns, variables={"ids": "{}"}) * jobs / turns


def tps(
    bindir: Path,
    dsn: str,
    script: str,
    *,
    transactions: int,
    clients: int = 1,
    variables: Mapping[str, str] | None = None,
) -> float:
    """Transactions a second, connecting not counted; every client does the script so many times."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        command = [str(bindir / "pgbench"), "--no-vacuum", "--protocol=prepared", f"--file={file.name}"]
        command += [f"--define={name}={value}" for name, value in (variables or {}).items()]
        command += [f"--client={clients}", f"--transactions={transactions}", dsn]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found = _TPS.search(ran.stdout)
    if ran.returncode or found is None:
        raise SystemExit(f"pgbench failed: {ran.stderr.strip()[-500:]}")
    return float(found[1])
