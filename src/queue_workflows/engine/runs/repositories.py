"""What a dispatcher works with on its connection; kept from run to run, with its statements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import psycopg

from queue_workflows.repositories.jobs.nodes import NodeJobRepository
from queue_workflows.repositories.runs.nodes import WorkflowNodeRepository
from queue_workflows.repositories.runs.outbox import DispatchRepository
from queue_workflows.repositories.runs.runs import RunRepository
from queue_workflows.repositories.runs.tree import RunTreeRepository
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.settings import Settings
from queue_workflows.workflow.document.load import Document
from queue_workflows.workflow.references.references import HostRefs


@dataclass(frozen=True, slots=True)
class DispatchTools:
    """The repositories, and what the host app answers."""

    connection: psycopg.Connection[Any]
    settings: Settings
    limits: PayloadLimits
    events: DispatchRepository
    nodes: WorkflowNodeRepository
    jobs: NodeJobRepository
    runs: RunRepository
    tree: RunTreeRepository
    host: HostRefs | None
    find_document: Callable[[str], Document]

    @classmethod
    def at(
        cls,
        connection: psycopg.Connection[Any],
        settings: Settings,
        *,
        host: HostRefs | None,
        find_document: Callable[[str], Document],
    ) -> Self:
        """On this connection."""
        limits = PayloadLimits(settings.payload_max_bytes, settings.payload_max_depth)
        return cls(
            connection=connection,
            settings=settings,
            limits=limits,
            events=DispatchRepository(connection),
            nodes=WorkflowNodeRepository(connection),
            jobs=NodeJobRepository(connection, payload_limits=limits),
            runs=RunRepository(connection, payload_limits=limits),
            tree=RunTreeRepository(connection),
            host=host,
            find_document=find_document,
        )
