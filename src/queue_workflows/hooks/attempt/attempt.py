"""One attempt of a hook's job, from its claim to what it returns; see `lifecycle`.

    its plugin's config ─> off? skip ─> its programs ─> run it ─> read its output ─> store that ─> its outcome

All of it happens in the job's own thread. Its output is stored under the job's fence before the job ends.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg

from queue_workflows import clock as time
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.outcomes import Discard, PutAside, Skip
from queue_workflows.errors import HookError, PluginConfigError, QwfError
from queue_workflows.hooks.attempt.at_seal import SEALED
from queue_workflows.hooks.attempt.beginning import Beginning
from queue_workflows.hooks.attempt.directories import HookPlaces, places_of
from queue_workflows.hooks.attempt.directory_env import DirectoryEnvironment, directory_environment
from queue_workflows.hooks.attempt.earlier_files import attempts_that_ran, keep_earlier_files
from queue_workflows.hooks.attempt.earlier_results import earlier_results
from queue_workflows.hooks.attempt.result import result_of
from queue_workflows.hooks.attempt.shared_directory import find_shared_directory
from queue_workflows.hooks.attempt.shared_lock import share_or_take
from queue_workflows.hooks.attempt.tools import AttemptTools
from queue_workflows.hooks.output.machine_records import is_program
from queue_workflows.hooks.output.read import USUAL, HookOutput, read_output
from queue_workflows.hooks.output.store import Storing, keep_what_was_left
from queue_workflows.hooks.plugin_config import PluginConfig, PluginValues
from queue_workflows.hooks.plugins.discovery import Hook
from queue_workflows.hooks.plugins.hooks_file import HooksFile
from queue_workflows.hooks.plugins.shared_locks import SHARED_LOCK
from queue_workflows.hooks.programs.ensure import LOOK_AGAIN_S, ensure
from queue_workflows.hooks.programs.install import InstallationStopped, Installer
from queue_workflows.hooks.readiness import Watch
from queue_workflows.hooks.script.arguments import config_in, hook_arguments
from queue_workflows.hooks.script.environment import hook_environment
from queue_workflows.hooks.script.pid_files import began_ns, sweep_what_was_left, told_to_the_next
from queue_workflows.hooks.script.process import HookCommand, HookStop, run_hook
from queue_workflows.host.commands.orphans import end_orphans
from queue_workflows.host.directories.below import Beneath, OpenDirectory
from queue_workflows.repositories.hooks.binaries import BINARY_MISSING
from queue_workflows.repositories.hooks.records import HookOfJob, HookRecordRepository
from queue_workflows.repositories.jobs.hooks import (
    FOR_TREE,
    NOTHING_LEFT,
    SHARED_DIRECTORY,
    HookJobRepository,
)
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob

_log = logging.getLogger(__name__)

T = TypeVar("T")

# How a hook's job ends for good, raised.
VERDICTS: Final = (Skip, Discard)
# How long what a hook printed and left may take to be read and stored after its own timeout.
_TO_READ_S: Final = 600.0
# One more than is read, so that a reader knows that there was more, also after its worker's death.
_KEPT_BYTES: Final = USUAL.total_bytes + 1
# Why a job waits that is not to run beside another one, which its key names.
STEP_TAKEN: Final = "step_taken"
_ASIDE_S: Final = 0.5
# How many attempts that nobody read are looked for.
_LOOKED_BACK: Final = 5


class HookAttempt:
    """A claimed hook; the `job` as it is held, and with its inputs `resolved`."""

    def __init__(
        self, hook: Hook, job: ClaimedNodeJob, resolved: ClaimedNodeJob, ctx: JobContext, tools: AttemptTools
    ) -> None:
        self._hook, self._job, self._ctx, self._tools = hook, job, ctx, tools
        self._terms = tools.terms
        self._given = dict(resolved.inputs.get("args") or {})
        # As it was when its run was started, whatever its plugin says by now.
        self._is_alone = resolved.inputs.get("alone") is True
        self._ends_at_seal = resolved.inputs.get("at_seal") == "kill"
        self._is_for_tree = resolved.inputs.get(FOR_TREE) is True
        self._shared_lock = resolved.inputs.get(SHARED_LOCK)
        self._is_shared = resolved.inputs.get(SHARED_DIRECTORY) is True
        self._run_config = config_in(self._given)
        self._stop = HookStop()
        self._held = ExitStack()
        self._places = places_of(tools.terms.data_dir, job.run_id, hook, job.attempt)
        self._environ = tools.terms.environ
        self._is_unread = self._is_listener = False
        # Attempts before this one that ran; and when this one began, and each that was broken off.
        self._earlier: dict[int, HookPlaces] = {}
        self._began_ns: dict[int, int] = {}

    def run(self) -> dict[str, Any]:
        """What the job returns; raises `VERDICTS`, or why it is to be tried again or put aside."""
        terms, places, hook, began = self._terms, self._places, self._hook, time.monotonic()
        config = self._tools.shelf.config(hook.path.parent)
        directory = self._of_the_directory()
        self._environ = {**terms.environ, **directory.variables}
        values = config.resolve(self._run_config, self._environ)
        if values.disabled_by is not None:
            raise Skip(values.disabled_by)
        self._listen(values)
        if self._is_shared:
            find_shared_directory(places, job=self._job, host_label=terms.host_label, ask=self._ask)
        # What the retention of another database would take for forgotten is in use.
        run = places.hold()
        self._held.callback(os.close, run.descriptor)
        for needed in directory.needs:
            self._held.callback(os.close, places.hold_beside(needed).descriptor)
        self._take_time(values)
        if self._job.attempt > 1:
            self._earlier = self._before(beneath=run)
            self._end_what_was_left()
            self._keep_what_was_left()
        self._stand_aside()
        if self._shared_lock is not None:
            share_or_take(self._job, self._shared_lock, self._tools.locks, self._ask)
        beginning = self._beginning(config, values.values, beneath=run)
        command = self._command(config, values, directory, beginning, beneath=run)
        if self._stop.reason == SEALED:
            raise Skip(NOTHING_LEFT)
        self._keep_earlier_files(run)
        self._is_unread = True
        with told_to_the_next(places.began, beneath=run) as self._began_ns[self._job.attempt]:
            ended = run_hook(
                command,
                stop=self._stop,
                spawner=self._tools.spawner,
                redactor=self._tools.redactor,
                started=None if beginning is None else beginning.told,
                said=None if beginning is None else beginning.said,
                is_shared=self._is_shared,
            )
        self._ctx.takes_s = min(self._ctx.takes_s, time.monotonic() - began + _TO_READ_S)
        if (ended.code != 0 or ended.timed_out) and ended.stopped is None and self._is_sealed:
            ended = replace(ended, stopped=SEALED)
        output = self._read(
            *(places.directory, places),
            beneath=run,
            since_ns=self._began_ns[self._job.attempt],
            has_printed=ended.stdout_bytes > 0,
        )
        self._store(output)
        self._is_unread = False
        return result_of(
            hook.label,
            ended,
            output,
            earlier=earlier_results(self._job.fence, output, self._ask),
            ends_at_timeout=self._job.background and config.bg_at_timeout == "end",
            limits=terms.limits,
        )

    def _command(
        self,
        config: PluginConfig,
        values: PluginValues,
        directory: DirectoryEnvironment,
        beginning: Beginning | None,
        *,
        beneath: OpenDirectory,
    ) -> HookCommand:
        terms, places, hook = self._terms, self._places, self._hook
        return HookCommand(
            argv=[*hook.interpreter, str(hook.path), *hook_arguments(self._given)],
            env=hook_environment(
                config,
                values,
                engine=self._programs(config) | self._of_the_run(),
                environ=self._environ,
                dsns=terms.dsns,
                directory=directory.variables,
            ),
            cwd=places.directory,
            stdout_path=places.stdout,
            stderr_path=places.stderr,
            timeout_s=None if self._has_grace_only else values.timeout_s,
            grace_s=terms.grace_s,
            beneath=beneath,
            stdout_cap=_KEPT_BYTES,
            line=None if beginning is None else beginning.line,
        )

    def update_and_requeue(self) -> None:
        """Keep what it has printed until now; its row goes back with the ends that its worker writes."""
        if self._is_unread:
            with suppress(QwfError, psycopg.Error, OSError):
                self._keep(self._job.attempt, self._places)

    def cleanup(self) -> None:
        """Nobody tells it to stop any more."""
        self._held.close()

    def _take_time(self, values: PluginValues) -> None:
        """Have the guards of the worker leave it as long as its plugin does, for a tree as long as that."""
        if self._is_listener and self._is_for_tree:
            self._ctx.takes_s = math.inf
        elif values.timeout_s is not None:
            grace_s = max(self._terms.grace_s, values.timeout_s if self._is_listener else 0.0)
            self._ctx.takes_s = values.timeout_s + grace_s + _TO_READ_S

    @property
    def _has_grace_only(self) -> bool:
        """Whether its plugin's timeout says how long it may take to end at the seal, and no more.

        So it is of what is there for all runs of a tree, which takes as long as they do.
        """
        return self._is_listener and (self._is_for_tree or self._hooks_file.background_timeouts == "grace")

    @property
    def _hooks_file(self) -> HooksFile:
        return self._tools.shelf.hooks_file(self._hook.path.parent)

    def _ask(self, question: Callable[[psycopg.Connection[Any]], T]) -> T:
        answer: T = self._tools.ask(self._job, question)
        return answer

    def _listen(self, values: PluginValues) -> None:
        """Hear what ends the process: a cancel, a guard or a stop of the worker, and the seal of its run.

        At the seal it has its own timeout as grace; what would be ended then does not begin after it.
        """
        ctx, job, stop = self._ctx, self._job, self._stop
        self._held.enter_context(ctx.interrupted_by(lambda: stop.request(ctx.stop_reason or "stopped")))
        self._is_listener = job.background and self._ends_at_seal
        if self._is_listener:
            grace_s = values.timeout_s
            self._held.enter_context(self._tools.at_seal.ends(job.id, stop, grace_s=grace_s))
        if self._is_sealed:
            raise Skip(NOTHING_LEFT)

    def _beginning(
        self, config: PluginConfig, values: Mapping[str, Any], *, beneath: Beneath
    ) -> Beginning | None:
        """What is to be told when a background hook runs: those after it wait for it."""
        if not self._job.background:
            return None
        ready, watch = self._hooks_file.ready_of(self._hook) or config.ready, None
        if ready is not None:
            watch = Watch(
                ready,
                plugin=config.plugin,
                directory=self._places.directory,
                beneath=beneath,
                values=values,
            )
        return Beginning(self._job, watch, stop=self._stop, ask=self._ask)

    @property
    def _is_sealed(self) -> bool:
        """Whether it is for the time of its run's steps, and those are over."""
        job_id = self._job.id
        return self._is_listener and bool(self._ask(lambda conn: HookJobRepository(conn).sealed([job_id])))

    def _stand_aside(self) -> None:
        """A retry is put off while a hook of its run is at work that runs alone, and that for a retry.

        Both may see each other, as both are claimed by then; the one that was opened first is back sooner.
        """
        job = self._job
        if job.background or not (self._is_alone or job.attempt > 1):
            return
        beside = self._ask(lambda conn: HookJobRepository(conn).not_beside(job.id))
        if beside is not None:
            delay_s = _ASIDE_S if job.id < beside else _ASIDE_S * 3
            raise PutAside(STEP_TAKEN, f"node:{beside}", delay_s)

    def _store(self, output: HookOutput) -> None:
        """All of it; once the job has to stop, no more than the part that was begun."""
        job = self._job
        storing = Storing(
            *(job.fence, output),
            host_label=self._terms.host_label,
            hook=HookOfJob(job.run_id, job.plugin or "", job.node_module or ""),
            digests=self._tools.reading.digests,
        )
        while not storing.is_done:
            self._ask(storing.store_part)
            if not storing.is_done:
                self._ctx.raise_if_cancelled()
        if storing.warnings:
            line_no, said = next(iter(storing.warnings.items()))
            _log.warning(
                "%s: something is wrong with %d of its lines, first with line %d: %s; "
                "`qwf hooks records %s --warnings` lists them",
                *(self._hook.label, len(storing.warnings), line_no, " ".join(said.split()), job.run_id),
            )

    def _before(self, *, beneath: OpenDirectory) -> dict[int, HookPlaces]:
        """The places of the last attempts before this one that ran."""
        job, hook = self._job, self._hook
        try:
            ran = attempts_that_ran(self._places, hook.name, job.attempt, beneath=beneath)
        except OSError as wrong:
            raise HookError(f"{wrong.filename}: {wrong.strerror}", advice="see to it, then retry") from None
        return {
            attempt: places_of(self._terms.data_dir, job.run_id, hook, attempt)
            for attempt in ran[-_LOOKED_BACK:]
        }

    def _end_what_was_left(self) -> None:
        """End what an earlier attempt left running, if nobody saw its end.

        Its worker may have been killed with all that would have ended it. Of daemons that only a pid file
        names, those are not looked for that another host may have written of.
        """
        for attempt, left in self._earlier.items():
            self._began_ns[attempt] = began_ns(left.began, beneath=left.beneath)
        if not any(self._began_ns.values()):
            return
        end_orphans()
        for left in () if self._is_shared else self._earlier.values():
            sweep_what_was_left(
                *(left.began, left.directory), beneath=left.beneath, grace_s=self._terms.grace_s
            )

    def _keep_earlier_files(self, run: OpenDirectory) -> None:
        """Keep what the last attempt left; it takes none of the hook's own time, and ends with a stop."""
        ctx, began, takes_s = self._ctx, time.monotonic(), self._ctx.takes_s

        def look() -> None:
            if self._stop.reason == SEALED:
                raise Skip(NOTHING_LEFT)
            ctx.raise_if_cancelled()
            if takes_s:
                ctx.takes_s = takes_s + time.monotonic() - began

        keep_earlier_files(self._places, self._hook.name, self._job.attempt, beneath=run, look=look)

    def _keep_what_was_left(self) -> None:
        """Keep what earlier attempts printed, if their worker died before it was stored."""
        if not self._earlier:
            return
        stored = self._ask(lambda conn: HookRecordRepository(conn).stored_before(self._job.fence))
        for attempt, places in self._earlier.items():
            if attempt not in stored:
                self._keep(attempt, places, is_last=attempt == max(self._earlier))

    def _read(
        self,
        directory: Path,
        places: HookPlaces,
        *,
        beneath: Beneath,
        since_ns: int,
        has_printed: bool = False,
    ) -> HookOutput:
        reading = self._tools.reading
        return read_output(
            *(directory, places.stdout),
            beneath=beneath,
            since_ns=since_ns,
            digests=reading.digests,
            turn=reading.turn,
            has_printed=has_printed,
        )

    def _keep(self, attempt: int, places: HookPlaces, *, is_last: bool = True) -> None:
        """What an attempt that was broken off printed, and if it was the last one, what it left."""
        since_ns = self._began_ns.get(attempt, 0)
        directory = places.directory if is_last and since_ns else places.stdout.parent / "nothing"
        left = self._read(directory, places, beneath=places.beneath, since_ns=since_ns)
        self._ask(partial(keep_what_was_left, fence=self._job.fence, attempt=attempt, output=left))

    def _programs(self, config: PluginConfig) -> dict[str, str]:
        """Where the programs of its plugin are; without one the hook waits for it, or is skipped."""
        needs = self._tools.shelf.needs(self._hook.path.parent)
        if not needs:
            return {}
        try:
            prepared = ensure(needs, self._shop(), chosen=partial(self._chosen, config), stop=self._stop)
        except InstallationStopped:
            if self._stop.reason == SEALED:
                raise Skip(NOTHING_LEFT) from None
            raise
        if prepared.skip is not None:
            raise Skip(prepared.skip)
        if prepared.hold_key is not None:
            _log.warning("%s waits for a program: %s", self._hook.label, prepared.why)
            raise PutAside(BINARY_MISSING, prepared.hold_key, LOOK_AGAIN_S)
        return dict(prepared.env)

    def _chosen(self, config: PluginConfig, variable: str) -> str | None:
        """The program that the user named for a variable, which is not looked for anywhere else."""
        said = config.said_by_user(variable, self._run_config, self._environ)
        if not isinstance(said, str) or not said.strip():
            return None
        found = shutil.which(said, path=self._environ.get("PATH"))
        if found is None or not is_program(found):
            raise PluginConfigError(
                config.plugin,
                f"is set to {said!r:.200}, which is no program that this user can run",
                key=variable,
                advice="correct it, or leave it out, and the program is looked for",
            )
        return os.path.abspath(found)

    def _shop(self) -> Installer:
        terms, tools = self._terms, self._tools
        return Installer(
            ask=self._ask,
            host_label=terms.host_label,
            machine_id=tools.machine_id(self._job),
            hook_dirs=terms.dirs,
            data_dir=terms.data_dir,
            spawner=self._tools.spawner,
            claimed_by=terms.worker_id,
            dsns=terms.dsns,
            redactor=self._tools.redactor,
            environ=terms.environ,
            lease_s=terms.lease_s,
        )

    def _of_the_directory(self) -> DirectoryEnvironment:
        """What the `hooks.toml` beside its plugin sets."""
        return directory_environment(
            self._hooks_file,
            hook=self._hook,
            job=self._job,
            places=self._places,
            data_dir=self._terms.data_dir,
            environ=self._terms.environ,
            ask=self._ask,
        )

    def _of_the_run(self) -> dict[str, str]:
        """What a hook is told of its run, beside its arguments."""
        return {
            "QWF_RUN_ID": str(self._job.run_id),
            "QWF_RUN_DIR": str(self._places.run),
            "QWF_PLUGIN": self._hook.plugin,
            "QWF_HOOK": self._hook.name,
            "QWF_STEP": str(self._hook.step),
            "QWF_ATTEMPT": str(self._job.attempt),
        }
