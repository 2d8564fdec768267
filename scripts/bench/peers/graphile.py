"""graphile-worker on Node, with its local queue and batched completions: what it calls batching."""

from __future__ import annotations

from typing import Any, Final

from bench.peers.kinds import Peer


def _elsewhere(*_: Any) -> Any:
    raise SystemExit("graphile-worker runs on Node: graphile.cjs does this")


PEER: Final = Peer(
    prepare=_elsewhere,
    produce=_elsewhere,
    work=_elsewhere,
    # As `graphile.cjs` sets it.
    settings="24 at once, local queue of 500, completions batched",
    tables=("graphile_worker._private_jobs",),
    key="",
    fill="SELECT count(*) FROM graphile_worker.add_jobs(ARRAY("
    "SELECT jsonb_populate_record(NULL::graphile_worker.job_spec, "
    "jsonb_build_object('identifier', 'noop', 'payload', jsonb_build_object('n', n))) "
    "FROM generate_series(1, %s::bigint) AS n))",
    left="SELECT count(*) FROM graphile_worker._private_jobs",
    program="graphile.cjs",
)
