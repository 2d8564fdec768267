"""Starts the process of a supervisor's slot, with all that it is given besides its command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from queue_workflows.host.processes.launcher import Child, spawn
from queue_workflows.roles.heartbeat_pipe import PIPE, HeartbeatPipe
from queue_workflows.roles.supervisor.gpu_placement import Handover
from queue_workflows.roles.supervisor.slots import RoleSpec, Spec
from queue_workflows.settings import Settings

# Where the output of the child of this name goes; None is where ours goes.
Outlet = Callable[[str], AbstractContextManager[int | None]]


def started(
    spec: Spec,
    command: Sequence[str],
    told: Mapping[str, str],
    *,
    output: AbstractContextManager[int | None],
    given: Handover,
    settings: Settings,
    now: float,
) -> tuple[Child, HeartbeatPipe | None]:
    """The child, in its environment what it is `told`; and the pipe of one that sends no heartbeat."""
    env = {**given.environ, **told}
    with output as stream:
        if not isinstance(spec, RoleSpec):
            held = given.descriptors
            child = spawn(command, env=env, stdout=stream, stderr=stream, pass_fds=held, with_last_word=True)
            return child, None
        heartbeat_pipe = HeartbeatPipe(
            now, stale_s=settings.stale_heartbeat_s, first_s=settings.first_heartbeat_s
        )
        env[PIPE] = str(heartbeat_pipe.fd)
        try:
            own = [heartbeat_pipe.fd]
            child = spawn(command, env=env, stdout=stream, stderr=stream, pass_fds=own, with_last_word=True)
        except BaseException:
            heartbeat_pipe.close()
            raise
        finally:
            heartbeat_pipe.handed_over()
        return child, heartbeat_pipe
