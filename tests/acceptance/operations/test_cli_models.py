"""`qwf models`: which models are loaded on which GPU, how many queued jobs want each, and what nobody has."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.processes.commands import qwf_here
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, jobs_of

from queue_workflows.repositories import HeartbeatRepository
from queue_workflows.repositories.reports.model_demand import ModelDemand, ModelDemandRepository
from queue_workflows.repositories.workers.hardware import HardwareRepository

CARD = {"id": "GPU-1", "vendor": "nvidia", "number": 0, "name": "H100", "is_split": False, "worker": "g1"}
READING = {"machine": {}, "containers": None, "devices": [CARD], "troubles": []}


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    """Two GPU workers, one on a card that its supervisor told of, and one that is long gone."""
    with jobs_of("node", qwf_dsn) as jobs:
        jobs.connection.execute(CLEAR_WITH_WORKERS + "; TRUNCATE host_hardware")
        beats = HeartbeatRepository(jobs.connection)
        for name, host, models in (("g1", "h1", ("x", "y")), ("g2", "h2", ()), ("gone", "h3", ("z",))):
            beats.beat(
                name,
                host_label=host,
                queue="gpu",
                pid=7,
                state="busy" if models else "idle",
                current_model=models[0] if models else None,
                cached_models=models,
            )
        beats.beat("c1", host_label="h1", queue="cpu", pid=8, state="idle")
        jobs.connection.execute(
            "UPDATE worker_heartbeats SET last_seen = now() - interval '1 d' WHERE worker_id = 'gone'"
        )
        HardwareRepository(jobs.connection).report("h1", READING, every_s=5.0, parts=[])
        yield jobs


def test_hosts_cards_models_and_the_jobs_left_to_them(qwf_dsn: str, jobs: Jobs) -> None:
    """Workers that are not heard of have nothing loaded; a model that jobs want and nobody has is named."""
    jobs.enqueue(3, queue="gpu", required_model="x")
    jobs.enqueue(2, queue="gpu", required_model="z")
    jobs.enqueue(1, queue="gpu")
    told = json.loads(qwf_here("--db", qwf_dsn, "models", "--json").stdout)
    no_memory = {"memory_used_mb": None, "memory_total_mb": None}
    card = {"host_label": "h1", "device": "GPU-1", "device_name": "H100", "worker_id": "g1", "queue": "gpu"}
    nothing = {"host_label": "h2", "device": None, "device_name": None, "worker_id": "g2", "queue": "gpu"}
    assert told == {
        "workers": [
            card
            | no_memory
            | {
                "state": "busy",
                "current_model": "x",
                "models": [
                    {"model": "x", "queued": 3, "at_least": False},
                    {"model": "y", "queued": 0, "at_least": False},
                ],
            },
            nothing | no_memory | {"state": "idle", "current_model": None, "models": []},
        ],
        "models": [
            {"model": "x", "queued": 3, "held": 0, "at_least": False, "loaded_by": ["g1"]},
            {"model": "z", "queued": 2, "held": 0, "at_least": False, "loaded_by": []},
            {"model": "y", "queued": 0, "held": 0, "at_least": False, "loaded_by": ["g1"]},
        ],
        "cold": ["z"],
        "memory": [],
    }
    assert qwf_here("--db", qwf_dsn, "models").stdout.splitlines() == [
        "HOST  GPU   WORKER  STATE  LOADED",
        "h1    H100  g1      busy   x (in use), y",
        "h2    -     g2      idle   -",
        "MODEL  QUEUED  ON HOLD  LOADED BY",
        "x      3       0        g1",
        "z      2       0        -",
        "y      0       0        g1",
        "z is wanted, and no worker has it loaded",
    ]


def test_how_full_a_card_is_as_its_supervisor_says_now(qwf_dsn: str, jobs: Jobs) -> None:
    """What it said before it fell silent is no figure of now."""
    full = READING | {"devices": [CARD | {"memory_used_mb": 40960, "memory_total_mb": 81920}]}
    HardwareRepository(jobs.connection).report("h1", full, every_s=5.0, parts=[])

    def told() -> list[tuple[int | None, int | None]]:
        workers = json.loads(qwf_here("--db", qwf_dsn, "models", "--json").stdout)["workers"]
        return [(one["memory_used_mb"], one["memory_total_mb"]) for one in workers]

    assert told() == [(40960, 81920), (None, None)]
    jobs.connection.execute("UPDATE host_hardware SET sampled_at = now() - interval '1 h'")
    assert told() == [(None, None), (None, None)]


def test_counts_stop_at_their_bound(jobs: Jobs) -> None:
    """What nobody could load is counted apart from what is queued."""
    jobs.enqueue(5, queue="gpu", required_model="x")
    held = jobs.enqueue(2, queue="gpu", required_model="odd")
    jobs.connection.execute(
        "UPDATE workflow_node_jobs SET status = 'scheduled', hold_reason = 'model_unknown', hold_key = 'odd'"
        " WHERE id = ANY (%s)",
        [held],
    )
    demand = ModelDemandRepository(jobs.connection)
    assert demand.read() == [
        ModelDemand("odd", 0, 2, at_least=False),
        ModelDemand("x", 5, 0, at_least=False),
    ]
    assert demand.read(most=3) == [
        ModelDemand("odd", 0, 2, at_least=False),
        ModelDemand("x", 3, 0, at_least=True),
    ]


def test_where_nothing_loads_models_it_says_so(qwf_dsn: str, jobs: Jobs) -> None:
    """An empty table would look like a mistake."""
    jobs.connection.execute("DELETE FROM worker_heartbeats")
    said = qwf_here("--db", qwf_dsn, "models")
    assert (said.stdout, said.stderr) == ("", "no worker that loads models is heard of\n")
