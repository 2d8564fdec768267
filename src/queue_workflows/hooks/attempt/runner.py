"""Runs the hooks of a worker: finds what a claimed job names, and brings it to its end.

A hook is looked up by the words of its row among what the configured directories have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import psycopg

from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.limits.held_host_locks import KeptLocks
from queue_workflows.errors import HookError, QwfError
from queue_workflows.hooks.attempt.at_seal import AtSeal
from queue_workflows.hooks.attempt.attempt import VERDICTS, HookAttempt
from queue_workflows.hooks.attempt.directories import run_directory
from queue_workflows.hooks.attempt.tools import AttemptTools, HookTerms
from queue_workflows.hooks.plugins.cache import PluginCache
from queue_workflows.hooks.plugins.discovery import Hook
from queue_workflows.hooks.script.lifecycle import bring_to_its_end
from queue_workflows.host.commands.client import Spawner
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob
from queue_workflows.repositories.workers.machines import MachineRepository

# Puts a question to the database for a job, for as long as that is held.
AskFor = Callable[[ClaimedNodeJob, Callable[[psycopg.Connection[Any]], Any]], Any]


class HookRunner:
    """Runs hooks in their jobs' threads, on one spawner; `close` ends what is left of them."""

    def __init__(self, terms: HookTerms, ask: AskFor, *, locks: KeptLocks, redactor: Redactor) -> None:
        self._terms = terms
        self._ask = ask
        self._spawner = Spawner()
        self._machine: int | None = None
        self._shelf = PluginCache(terms.dirs)
        self._tools = AttemptTools(
            terms,
            ask,
            shelf=self._shelf,
            spawner=self._spawner,
            redactor=redactor,
            at_seal=AtSeal(),
            locks=locks,
            machine_id=self._machine_id,
        )

    def close(self) -> None:
        """End every hook."""
        self._spawner.close()

    def knows(self, label: str) -> bool:
        """Whether a directory has the hook that is called so, whatever is wrong with it."""
        plugin, _, name = label.partition("/")
        try:
            return self._shelf.find(plugin, name) is not None
        except HookError:
            return True

    def work(self, job: ClaimedNodeJob) -> Work | None:
        """What to call for a job; None if no directory has its hook."""
        label = f"{job.plugin}/{job.node_module}"
        try:
            hook = self._shelf.find(job.plugin or "", job.node_module or "")
        except HookError as broken:
            return Work(label, _raiser(broken), is_async=False, returns_dict=True)
        if hook is None:
            return None
        return Work(label, partial(self._run, hook, job), is_async=False, returns_dict=True)

    def let_go(self, job: ClaimedNodeJob) -> None:
        """What no directory here has may be another host's, unless the run has begun on this one."""
        host = self._terms.host_label
        if not run_directory(self._terms.data_dir, job.run_id).exists():
            self._ask(job, lambda conn: HookJobRepository.at(host)(conn).let_go(job, self.knows))

    def ending_at_seal(self) -> list[int]:
        """The jobs of the runs that are to be looked at."""
        return self._tools.at_seal.jobs()

    def end_at_seal(self, jobs: Iterable[int]) -> None:
        """End the hooks of these jobs, as their runs are sealed."""
        self._tools.at_seal.end(jobs)

    def _run(
        self, hook: Hook, job: ClaimedNodeJob, resolved: ClaimedNodeJob, ctx: JobContext
    ) -> dict[str, Any]:
        """The `job` as it is held, and with its inputs `resolved`."""
        return bring_to_its_end(HookAttempt(hook, job, resolved, ctx, self._tools), verdicts=VERDICTS)

    def _machine_id(self, job: ClaimedNodeJob) -> int:
        """This machine, which is told of once."""
        if self._machine is None:
            host = self._terms.host_label
            self._machine = int(self._ask(job, lambda conn: MachineRepository(conn).seen(host)))
        return self._machine


def _raiser(broken: QwfError) -> Callable[[Any, JobContext], Any]:
    def call(_job: Any, _ctx: JobContext) -> Any:
        raise broken

    return call
