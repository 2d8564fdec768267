"""One host agent, put together: its address, its connection, its loop."""

from __future__ import annotations

import resource
from contextlib import closing
from typing import Final

from queue_workflows.db.connections.engine import Database
from queue_workflows.db.listen.listener import Listener, Pace
from queue_workflows.errors import ConfigurationError, ExitCode
from queue_workflows.host.processes.harden import bound_to_launcher
from queue_workflows.repositories.sql.families import FAMILIES
from queue_workflows.roles.agent.agent import Agent
from queue_workflows.roles.agent_link.address import serving
from queue_workflows.roles.heartbeat_pipe import told
from queue_workflows.roles.identity import Identity
from queue_workflows.roles.loop import Halt
from queue_workflows.settings import Settings

ROLE: Final = "agent"
# Its workers go on without it meanwhile, each by a connection of its own.
_PACE: Final = Pace(retry_first=0.2, retry_most=2.0)


def run_agent(database: Database, settings: Settings) -> ExitCode:
    """Serve the workers beside this process until told to stop; the status to end the process with."""
    bound_to_launcher()
    secret = Identity.take(settings.host_label, ROLE).agent
    if not secret:
        raise ConfigurationError(
            "the host agent serves the workers of a supervisor", advice="start `qwf supervisor`"
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listener = Listener(
        lambda: database.connect_session(autocommit=True, hot=True),
        [family.channel for family in FAMILIES],
        pace=_PACE,
    )
    halt = Halt(listener.interrupt)
    with (
        halt.on_signals(),
        closing(listener),
        closing(Agent(listener, serving(secret), halt, secret=secret)) as agent,
        told(agent.is_fine, lambda: None),
    ):
        return agent.run()
