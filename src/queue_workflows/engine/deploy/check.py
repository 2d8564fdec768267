"""One look at everything that a deploy of this process's code would meet in the database."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import psycopg

from queue_workflows.config import RESERVED_QUEUES, EngineConfig
from queue_workflows.engine.deploy.declarations import limits_found, schedules_found
from queue_workflows.engine.deploy.durable import functions_in_flight
from queue_workflows.engine.deploy.findings import DeployReport, Finding, Level, LookedAt
from queue_workflows.engine.deploy.modules import modules_in_need
from queue_workflows.engine.deploy.tasks import bounds_met, missing_tasks, refused_arguments
from queue_workflows.engine.registry.declared import DEFAULT_OWNER
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.engine.schedules.declared import DeclaredSchedules
from queue_workflows.repositories.limits.declarations import LimitDeclarationRepository
from queue_workflows.repositories.reports.open_work import OpenWorkRepository
from queue_workflows.repositories.schedules.schedules import ScheduleRepository

if TYPE_CHECKING:
    from queue_workflows.models import Schedule
    from queue_workflows.settings import Settings

_PAGE: Final = 500
_ORDER: Final = {level: place for place, level in enumerate(Level)}


def check_deploy(
    connection: psycopg.Connection[Any],
    config: EngineConfig,
    settings: Settings,
    tasks: TaskRegistry,
    *,
    app: str | None,
    queues: Collection[str] = (),
    not_ours: Collection[str] = (),
) -> DeployReport:
    """Compare what is registered here with what is open; in one transaction of the caller's.

    `app` is the module under which the version that runs now declares its limits and schedules. `queues` are
    looked at beside those that the host app says it has. `not_ours` are names, or patterns, of another
    host app on this database.
    """
    known = config.ingest_queues | set(queues) | RESERVED_QUEUES
    open_work = OpenWorkRepository(connection)
    jobs, nodes, schedules = open_work.tasks(), open_work.modules(), _schedules(connection)
    documents = open_work.named_in_documents()
    declared: DeclaredSchedules | None = config.ingest_schedule
    findings: list[Finding] = [
        *bounds_met(jobs, nodes),
        *missing_tasks(jobs, tasks, known),
        *functions_in_flight(open_work, tasks, config, known),
        *refused_arguments(open_work, jobs, tasks, known),
        *modules_in_need(open_work, nodes, documents, config),
        *schedules_found(
            schedules,
            declared,
            declared.owned_by(app) if declared else DEFAULT_OWNER,
            tasks,
            queues=known,
            own_queues=config.ingest_queues,
        ),
        *limits_found(
            LimitDeclarationRepository(connection).declared(app or DEFAULT_OWNER),
            settings.limits,
            open_work.keys,
        ),
    ]
    looked_at = LookedAt(
        tasks=len({one.name for one in jobs}),
        modules=len({one.name for one in nodes} | {one.module for one in documents}),
        jobs=sum(one.jobs for one in (*jobs, *nodes)),
        schedules=len(schedules),
        limits=len(settings.limits),
    )
    told = [_of_another(one) if _is_any(one.name, not_ours) else one for one in findings]
    return DeployReport(sorted(told, key=lambda one: _ORDER[one.level]), looked_at)


def _is_any(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _of_another(one: Finding) -> Finding:
    return replace(one, level=Level.UNSEEN, says=f"{one.says} (said to be another host app's)")


def _schedules(connection: psycopg.Connection[Any]) -> list[Schedule]:
    repository, found = ScheduleRepository(connection), []
    after: str | None = None
    while page := repository.list(limit=_PAGE, after=after):
        found += page
        after = page[-1].name
    return found
