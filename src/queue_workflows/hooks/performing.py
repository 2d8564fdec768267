"""Runs the hooks of a worker: from a claimed job to what it returns.

    find it ─> its plugin's config ─> off? skip ─> run it ─> read its output ─> store that ─> its outcome

All of it happens in the job's own thread. A hook is looked up by the words of its row among what the
configured directories have; its output is stored under the job's fence before the job ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg

from queue_workflows.errors import HookError, QwfError
from queue_workflows.hooks.arguments import config_in, hook_arguments
from queue_workflows.hooks.binaries import prepare
from queue_workflows.hooks.discovery import Hook
from queue_workflows.hooks.environment import hook_environment
from queue_workflows.hooks.installing import Workshop
from queue_workflows.hooks.outcomes import SEALED, result_of
from queue_workflows.hooks.output import HookOutput, read_output
from queue_workflows.hooks.places import HookPlaces, places_of, run_directory
from queue_workflows.hooks.plugin_config import PluginConfig
from queue_workflows.hooks.process import HookCommand, HookStop, run_hook
from queue_workflows.hooks.records import Storing, keep_what_was_left
from queue_workflows.hooks.shelf import Shelf
from queue_workflows.host.orphans import end_orphans
from queue_workflows.host.spawner import Spawner
from queue_workflows.jobs.context import JobContext
from queue_workflows.jobs.outcomes import PutAside, Skip
from queue_workflows.jobs.redaction import Redactor
from queue_workflows.jobs.work import Work
from queue_workflows.repositories.claimed import ClaimedNodeJob
from queue_workflows.repositories.hook_jobs import HookJobRepository
from queue_workflows.repositories.hook_records import HookRecordRepository
from queue_workflows.repositories.machines import MachineRepository

# Puts a question to the database for a job, for as long as that is held.
AskFor = Callable[[ClaimedNodeJob, Callable[[psycopg.Connection[Any]], Any]], Any]


# How long what a hook printed and left may take to be read and stored after its own timeout.
_TO_READ_S: Final = 600.0
# How many attempts that nobody read are looked for.
_LOOKED_BACK: Final = 5


@dataclass(frozen=True, slots=True)
class HookTerms:
    """What holds for all hooks of one worker."""

    dirs: tuple[Path, ...]
    data_dir: Path
    host_label: str
    environ: Mapping[str, str]
    grace_s: float
    dsns: tuple[str, ...]
    worker_id: str
    lease_s: float
    connect: Callable[[], psycopg.Connection[Any]]


class HookRunner:
    """Runs hooks in their jobs' threads, on one spawner; `close` ends what is left of them."""

    def __init__(self, terms: HookTerms, ask: AskFor, *, redactor: Redactor) -> None:
        self._terms = terms
        self._ask = ask
        self._redactor = redactor
        self._spawner = Spawner()
        self._shelf = Shelf(terms.dirs)
        self._lock = threading.Lock()
        self._workshop: Workshop | None = None
        # Background hooks that end when their run is sealed, by their jobs.
        self._ending_at_seal: dict[int, HookStop] = {}

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
        """The jobs whose runs are to be looked at."""
        with self._lock:
            return list(self._ending_at_seal)

    def end_at_seal(self, jobs: Iterable[int]) -> None:
        """End the hooks of these jobs, whose runs are sealed."""
        with self._lock:
            stops = [stop for job_id in jobs if (stop := self._ending_at_seal.get(job_id)) is not None]
        for stop in stops:
            stop.request(SEALED)

    def _run(
        self, hook: Hook, job: ClaimedNodeJob, resolved: ClaimedNodeJob, ctx: JobContext
    ) -> dict[str, Any]:
        """The `job` as it is held, and with its inputs `resolved`."""
        terms = self._terms
        config = self._shelf.config(hook.path.parent)
        given = dict(resolved.inputs.get("args") or {})
        values = config.resolve(config_in(given), terms.environ)
        given.pop("config", None)
        if values.disabled_by is not None:
            raise Skip(values.disabled_by)
        places = places_of(terms.data_dir, job.run_id, hook, job.attempt)
        places.make()
        if values.timeout_s is not None:
            ctx.takes_s = values.timeout_s + terms.grace_s + _TO_READ_S
        if job.attempt > 1:
            # Of the attempt before, whose worker may have been killed with all that would have ended it.
            end_orphans()
        self._keep_what_was_left(hook, job)
        with self._stoppable(job, config, ctx) as stop:
            told = self._programs(hook, job, stop) | _of_the_run(job, hook, places)
            command = HookCommand(
                argv=[*hook.interpreter, str(hook.path), *hook_arguments(given)],
                env=hook_environment(config, values, engine=told, environ=terms.environ, dsns=terms.dsns),
                cwd=places.directory,
                stdout_path=places.stdout,
                stderr_path=places.stderr,
                timeout_s=values.timeout_s,
                grace_s=terms.grace_s,
            )
            ended = run_hook(command, stop=stop, spawner=self._spawner, redactor=self._redactor)
        output = read_output(places.directory, places.stdout, beneath=places.run.parent)
        self._store(job, output, ctx)
        return result_of(hook.label, ended, output, is_background=job.background)

    def _store(self, job: ClaimedNodeJob, output: HookOutput, ctx: JobContext) -> None:
        """All of it; once the job has to stop, no more than the part that was begun."""
        storing = Storing(job.fence, output, host_label=self._terms.host_label)
        while not storing.is_done:
            self._ask(job, storing.store_part)
            if not storing.is_done:
                ctx.raise_if_cancelled()

    def _keep_what_was_left(self, hook: Hook, job: ClaimedNodeJob) -> None:
        """What attempts before this one printed whose worker died before it was stored."""
        printed = {}
        for attempt in range(max(1, job.attempt - _LOOKED_BACK), job.attempt):
            places = places_of(self._terms.data_dir, job.run_id, hook, attempt)
            if places.stdout.exists():
                printed[attempt] = places
        if not printed:
            return
        stored = self._ask(job, lambda conn: HookRecordRepository(conn).stored_before(job.fence))
        for attempt, places in printed.items():
            if attempt not in stored:
                nothing = places.stdout.parent / "nothing"
                left = read_output(nothing, places.stdout, beneath=places.run.parent)
                self._ask(job, partial(keep_what_was_left, fence=job.fence, attempt=attempt, output=left))

    def _programs(self, hook: Hook, job: ClaimedNodeJob, stop: HookStop) -> dict[str, str]:
        """Where the programs of its plugin are; without one the hook waits for it, or is skipped."""
        if not self._shelf.needs(hook.path.parent):
            return {}
        prepared = prepare(hook.path.parent, self._shop(job), stop=stop)
        if prepared.skip is not None:
            raise Skip(prepared.skip)
        if prepared.hold_key is not None:
            raise PutAside(prepared.hold_reason, prepared.hold_key, prepared.delay_s)
        return dict(prepared.env)

    def _shop(self, job: ClaimedNodeJob) -> Workshop:
        """What installing takes here; this machine is told of once."""
        if self._workshop is None:
            terms = self._terms
            machine_id = self._ask(job, lambda conn: MachineRepository(conn).seen(terms.host_label))
            self._workshop = Workshop(
                connect=terms.connect,
                host_label=terms.host_label,
                machine_id=machine_id,
                hook_dirs=terms.dirs,
                data_dir=terms.data_dir,
                spawner=self._spawner,
                claimed_by=terms.worker_id,
                dsns=terms.dsns,
                redactor=self._redactor,
                environ=terms.environ,
                lease_s=terms.lease_s,
            )
        return self._workshop

    @contextmanager
    def _stoppable(self, job: ClaimedNodeJob, config: PluginConfig, ctx: JobContext) -> Iterator[HookStop]:
        """What ends the process: a cancel, a guard or a stop of the worker, and the seal of its run."""
        stop = HookStop()
        with ctx.interrupted_by(lambda: stop.request(ctx.stop_reason or "stopped")):
            if job.background and config.bg_at_seal == "kill":
                with self._lock:
                    self._ending_at_seal[job.id] = stop
            try:
                yield stop
            finally:
                with self._lock:
                    self._ending_at_seal.pop(job.id, None)


def _of_the_run(job: ClaimedNodeJob, hook: Hook, places: HookPlaces) -> dict[str, str]:
    """What a hook is told of its run, beside its arguments."""
    return {
        "QWF_RUN_ID": str(job.run_id),
        "QWF_RUN_DIR": str(places.run),
        "QWF_PLUGIN": hook.plugin,
        "QWF_HOOK": hook.name,
        "QWF_STEP": str(hook.step),
        "QWF_ATTEMPT": str(job.attempt),
    }


def _raiser(broken: QwfError) -> Callable[[Any, JobContext], Any]:
    def call(_job: Any, _ctx: JobContext) -> Any:
        raise broken

    return call
