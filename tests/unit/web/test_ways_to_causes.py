"""Each kind of reason that an explanation can have leads to its cause, and to no page that there is not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest
from starlette.routing import Match, Route

import queue_workflows.engine.explain
import queue_workflows.views.stuck
from queue_workflows.engine.explain.history import Reason
from queue_workflows.engine.limits.wait_loop import Wait
from queue_workflows.engine.node_inputs.loaded_model import UNKNOWN_MODEL
from queue_workflows.engine.registry.node_modules import UNKNOWN_MODULE
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK
from queue_workflows.hooks.attempt.attempt import STEP_TAKEN
from queue_workflows.repositories.claims.by_host_lock import HOST_LOCK
from queue_workflows.repositories.durable.waits import ASLEEP, CHILDREN, EVENT, PARKED
from queue_workflows.repositories.hooks.binaries import BINARY_MISSING
from queue_workflows.repositories.limits.lanes import LIMIT_FULL
from queue_workflows.repositories.runs.tree import OPEN_RUNS
from queue_workflows.states import DesiredState, JobStatus
from queue_workflows.web.pages.all import ADDRESSES
from queue_workflows.web.pages.links import WAYS, Explained, linked, place
from queue_workflows.workflow.planning.progress import SESSION_LOST

RUN: Final = "018f3c2a-0000-7000-8000-000000000000"
OF_JOB: Final = Explained(RUN, "draw", "node:7", "gpu", "h1:gpu:2", "h1", None)
OF_RUN: Final = Explained(RUN)
# What a variable in the place of a kind may be, by its module, and the values that end one made of parts.
VARIABLES: Final = {
    "hosts.py: NOT_SHARED": {"not_shared"},
    "job.py: reason": {UNKNOWN_TASK, UNKNOWN_MODULE, UNKNOWN_MODEL},
    "job.py: BINARY_MISSING": {BINARY_MISSING},
    "job.py: LIMIT_FULL": {LIMIT_FULL},
    "locks.py: HOST_LOCK": {HOST_LOCK},
    "parked.py: reason": {ASLEEP, CHILDREN},
    "parked.py: EVENT": {EVENT},
    "run.py: code": {SESSION_LOST, "node_error"},
    "run.py: hold_reason": {OPEN_RUNS},
    "stuck.py: first.code": set(),
    "versions.py: code": {UNKNOWN_TASK, UNKNOWN_MODULE},
}
# Kinds of holds that have no sentence of their own: they are told by the reason that is stored.
TOLD_BY_THEMSELVES: Final = {STEP_TAKEN}
ENDINGS: Final = {
    "jobs_": {status.value for status in JobStatus},
    "queue_": {DesiredState.PAUSE.value, DesiredState.OFF.value},
    "waits_for_": {wait.value for wait in Wait},
}


def kinds_in(path: Path) -> Iterator[str]:
    """The kinds of reasons that a module makes; a kind that cannot be told from its text has no way."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
            continue
        if node.func.id not in ("Reason", "_of_runs") or isinstance(node.args[0], ast.Starred):
            continue
        match node.args[0]:
            case ast.Constant(str() as kind):
                yield kind
            case ast.JoinedStr([ast.Constant(str() as start), ast.FormattedValue()]) if start in ENDINGS:
                yield from (start + end for end in ENDINGS[start])
            case other:
                variable = f"{path.name}: {ast.unparse(other)}"
                yield from VARIABLES.get(variable, {variable})


def all_kinds() -> set[str]:
    """Of all modules that explain."""
    (explaining,) = queue_workflows.engine.explain.__path__
    modules = [*Path(explaining).glob("*.py"), Path(queue_workflows.views.stuck.__file__)]
    return TOLD_BY_THEMSELVES.union(*map(kinds_in, modules))


def test_every_kind_of_reason_has_a_way_to_its_cause() -> None:
    """Whoever adds a kind says where its cause can be looked at."""
    assert all_kinds() - set(WAYS) == set()


@pytest.mark.parametrize("kind", PARKED)
def test_a_durable_function_that_waits_has_no_obstacle(kind: str) -> None:
    """It waits as it means to: its steps say for what, and it does not look like a job on hold."""
    of = Explained(job="ingest:7", sections=frozenset({"steps"}))
    (told,) = linked([Reason(kind, "")], of, prefix="/ops")
    assert (told.href, told.look, told.is_obstacle) == ("/ops/jobs/ingest:7#steps", "scheduled", False)


def is_page(address: str) -> bool:
    """Whether there is such a page."""
    scope = {"type": "http", "method": "GET", "path": unquote(urlsplit(address).path), "root_path": ""}
    routes = (Route(one.path, lambda _request: None) for one in ADDRESSES)
    return any(route.matches(scope)[0] is Match.FULL for route in routes)


@pytest.mark.parametrize("of", [OF_JOB, OF_RUN, Explained(queue="fetch"), Explained()], ids=str)
@pytest.mark.parametrize("kind", [*sorted(WAYS), "a kind of a host app"])
def test_a_way_leads_to_a_page(kind: str, of: Explained) -> None:
    """Also where the facts that it would go by are not there."""
    data: dict[str, Any] = {"host_label": "*", "queue": "fetch"} if kind.startswith("queue_") else {}
    assert is_page(place(kind, data, of))


WAYS_OF_FACTS: Final = [
    (OF_JOB, "limit_full", {"hold_key": "host:a/b", "holders": ["ingest:1"]}, "/limits/host:a%2Fb"),
    (OF_JOB, "limit_full", {"limit_key": "host:a", "holders": []}, "/limits/host:a"),
    (OF_JOB, "waits_for_limit", {"keys": ["host:a", "b"]}, "/limits/host:a"),
    (OF_JOB, "waits_for_rate", {"keys": ["api:a"]}, "/rates"),
    (OF_JOB, "waits_for_host_lock", {"keys": ["disk"]}, "/hosts/h1"),
    (OF_JOB, "host_lock", {"holders": [{"job": "ingest:3", "worker_id": "w"}]}, "/jobs/ingest:3"),
    (OF_JOB, "host_lock", {"holders": []}, "/hosts/h1"),
    (OF_JOB, "queue_pause", {"host_label": "*", "queue": "*"}, "/workers"),
    (OF_JOB, "queue_off", {"host_label": "*", "queue": "fetch"}, "/queues/fetch"),
    (OF_JOB, "queue_pause", {"host_label": "h2", "queue": "*"}, "/hosts/h2"),
    (OF_JOB, "all_busy", {"jobs": ["ingest:9", "ingest:2"]}, "/jobs/ingest:9"),
    (OF_JOB, "all_busy", {"jobs": []}, "/queues/gpu"),
    (OF_JOB, "no_free_worker", {"workers": ["w"]}, "/workers?queue=gpu"),
    (OF_JOB, "worker_silent", {}, "/workers/h1:gpu:2"),
    (OF_JOB, "step_taken", {"hold_key": "node:8"}, "/jobs/node:8"),
    (OF_JOB, "retry", {}, "/jobs/node:7#row"),
    (OF_JOB, "awaiting_input", {}, f"/runs/{RUN}/answer/draw"),
    (OF_JOB, "child_run", {}, f"/runs/{RUN}/children"),
    (Explained(job="ingest:7", schedule="nightly"), "scheduled", {}, "/schedules/nightly"),
    (Explained(job="ingest:7", sections=frozenset({"attempts"})), "retry", {}, "/jobs/ingest:7#attempts"),
    (Explained(job="ingest:7", queue="hooks"), "unknown_module", {}, "/hooks"),
    (OF_RUN, "jobs_queued", {"node": "draw", "jobs": 5}, f"/runs/{RUN}/nodes/draw?state=queued"),
    (OF_RUN, "run_over", {"error": {"node": "cut"}}, f"/runs/{RUN}/nodes/cut"),
    (OF_RUN, "run_over", {"error": None}, f"/runs/{RUN}?view=nodes"),
    (OF_RUN, "parents", {"waits_for": ["write", "draw"]}, f"/runs/{RUN}/nodes/write"),
    (OF_RUN, "poisoned", {"event": 3, "node": "cut"}, f"/runs/{RUN}/nodes/cut"),
    (OF_RUN, "poisoned", {"event": 3, "node": None}, f"/runs/{RUN}#history"),
    (OF_RUN, "poisoned", {}, "/runs?q=poisoned:yes"),
    (OF_RUN, "open_runs", {"capped_by": "r"}, "/runs/r"),
    (OF_RUN, "set_up", {"run_id": "r", "host": "h"}, "/runs/r"),
    (OF_RUN, "no_orchestrator", {}, "/#outbox"),
    (OF_RUN, "took", {}, f"/runs/{RUN}?view=timeline"),
]


@pytest.mark.parametrize(("of", "kind", "data", "where"), WAYS_OF_FACTS)
def test_the_cause_is_where_the_facts_say(of: Explained, kind: str, data: dict[str, Any], where: str) -> None:
    """And not behind another fact of the sentence: a count of jobs is no job, a lock no limit."""
    assert place(kind, data, of) == where


def test_the_reasons_of_a_run_are_of_one_group_of_jobs_after_the_other() -> None:
    """What is told of the first job of a group leads to that job, its queue and its worker."""
    reasons = [
        Reason("jobs_running", "", {"node": "draw", "first": "node:7", "queue": "gpu", "jobs": 2}),
        Reason("running", "", {"worker_id": "h1:gpu:2"}),
        Reason("lease_lapsed", ""),
        Reason("jobs_scheduled", "", {"node": "cut", "first": "node:9", "queue": "cpu", "jobs": 1}),
        Reason("scheduled", ""),
        Reason("no_worker", "", {"queue": "cpu"}),
    ]
    assert [one.href for one in linked(reasons, OF_RUN, prefix="/ops")] == [
        f"/ops/runs/{RUN}/nodes/draw?state=running",
        "/ops/workers/h1:gpu:2",
        "/ops/workers/h1:gpu:2",
        f"/ops/runs/{RUN}/nodes/cut?state=scheduled",
        "/ops/jobs/node:9#row",
        "/ops/queues/cpu",
    ]
