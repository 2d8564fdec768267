"""One supervisor process, put together: its database, its signals, its devices, its spares, its loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from queue_workflows.db.connections.engine import Database
from queue_workflows.errors import ExitCode
from queue_workflows.host.systemd import ServiceManager
from queue_workflows.roles import identity
from queue_workflows.roles.agent_link.address import new_secret
from queue_workflows.roles.loop import Halt, Waiter
from queue_workflows.roles.supervisor.database_thread import DatabaseThread, Pace
from queue_workflows.roles.supervisor.gpu_placement import Placement
from queue_workflows.roles.supervisor.restarts import Restarts
from queue_workflows.roles.supervisor.slots import AGENT, EachDevice, Spec, worth_a_spare
from queue_workflows.roles.supervisor.spares import Spares
from queue_workflows.roles.supervisor.start_child import Outlet
from queue_workflows.roles.supervisor.supervisor import Supervisor
from queue_workflows.settings import Settings


def supervise(
    specs: Sequence[Spec],
    *,
    command_for: Callable[[Spec], Sequence[str]],
    settings: Settings,
    db_url: str | None = None,
    each: EachDevice | None = None,
    pace: Pace | None = None,
    with_spares: bool = False,
    outlet: Outlet | None = None,
    restarts: Restarts | None = None,
    late: Callable[[], Sequence[Spec]] = tuple,
    begins: Callable[[Halt], None] = lambda _halt: None,
) -> ExitCode:
    """Supervise in this process, from its main thread, until a signal says otherwise or all have finished.

    `each` asks for a worker on every device, `late` tells what shall be there from now on. `with_spares` is
    for commands that are `qwf worker`, which knows how to stand by. `begins` is given what stops all of them,
    for what wants that beside a signal.
    """
    if AGENT in specs:
        os.environ[identity.AGENT] = new_secret()
    manager = ServiceManager.from_environment()
    with Waiter() as waiter, Database.open(db_url, role="supervisor", settings=settings) as database:
        halt = Halt(waiter.ring)
        placement = Placement.of(settings, each, waiter.ring)
        database_thread = DatabaseThread(
            lambda: database.connect(autocommit=True),
            host_label=settings.host_label,
            max_crashes=settings.max_crashes,
            tell=waiter.ring,
            errand=placement.errand,
            pace=pace,
        )
        with halt.on_signals():
            begins(halt)
            return Supervisor(
                specs,
                command_for=command_for,
                settings=settings,
                database_thread=database_thread,
                placement=placement,
                waiter=waiter,
                halt=halt,
                manager=manager,
                spares=Spares(worth_a_spare(specs) if with_spares else (), command_for, waiter),
                outlet=outlet,
                restarts=restarts,
                late=late,
            ).run()
