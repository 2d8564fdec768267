"""Installs one program on this machine: asks its providers in order, and the first that succeeds wins.

A provider is a hook, `on_Binary__install_using_{provider}_provider`, the user's own or one of those that come
along. It prints a `Binary` record with the path of what it found or installed; that is believed once the file
is there and can be run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import psycopg

from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.errors import LeaseLost, QwfError
from queue_workflows.hooks.output.machine_records import Checksums, installed_of, promote_waiting
from queue_workflows.hooks.output.read import HookOutput, read_output
from queue_workflows.hooks.plugin_config import PluginConfig, PluginValues, load_plugin_config
from queue_workflows.hooks.plugins.discovery import Hook
from queue_workflows.hooks.plugins.hooks_file import known_of_hook, load_hooks_file
from queue_workflows.hooks.plugins.needs import Need, needs_below
from queue_workflows.hooks.plugins.providers import BUILT_IN, EVENT, NAME, provider_hooks, provider_of
from queue_workflows.hooks.script.arguments import hook_arguments
from queue_workflows.hooks.script.environment import hook_environment
from queue_workflows.hooks.script.process import HookCommand, HookExit, HookStop, run_hook
from queue_workflows.host.commands.client import Spawner
from queue_workflows.path_ownership import DATA, check_directory
from queue_workflows.repositories.hooks.binaries import BINARY, BinaryFence, BinaryRepository, Installed
from queue_workflows.repositories.jobs.nodes import NodeJobRepository

_TIMEOUT_S: Final = 600.0
_GRACE_S: Final = 5.0
_SAID: Final = 400

T = TypeVar("T")


class Asking(Protocol):
    """Puts a question to the database, from any thread; again where the answer was lost."""

    def __call__(self, question: Callable[[psycopg.Connection[Any]], T]) -> T:
        """The answer."""


@dataclass(frozen=True, slots=True)
class Installer:
    """What installing takes: the database (autocommit), this machine, directories, and what starts programs.

    `claimed_by` names the claiming worker, `lease_s` is how long it claims without a renewal. As any
    hook, a provider is kept from the `dsns` in `environ`, and its words from the `redactor`'s secrets.
    """

    ask: Asking
    host_label: str
    machine_id: int
    hook_dirs: tuple[Path, ...]
    data_dir: Path
    spawner: Spawner
    claimed_by: str
    dsns: tuple[str, ...]
    redactor: Redactor
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    lease_s: float = 30.0


class InstallationStopped(QwfError):
    """An installation was told to stop; its program is queued again."""


class InstallationLost(QwfError):
    """An installation is another worker's by now, which goes on with it."""


class Installation:
    """A claimed program; see `lifecycle`."""

    def __init__(self, need: Need, fence: BinaryFence, workshop: Installer, stop: HookStop) -> None:
        self._need = need
        self._fence = fence
        self._shop = workshop
        self._stop = stop
        self._over = threading.Event()
        self._is_lost = False
        self._renewing = threading.Thread(target=self._renew, name=f"install {need.name}", daemon=True)

    def run(self) -> Installed | None:
        """The program, and its row says so; None if no provider could, and its row says why."""
        self._renewing.start()
        refused: list[str] = []
        providers = providers_in_order(self._need, self._shop.hook_dirs)
        if not providers:
            refused.append(f"no hooks.toml allows {', '.join(self._need.providers)}")
        for provider in providers:
            try:
                found = self._install_by(provider)
            except (QwfError, ValueError, OSError) as wrong:
                if self._is_lost:
                    raise self._lost() from wrong
                if self._stop.reason is not None:
                    raise InstallationStopped(self._stop.reason) from wrong
                refused.append(f"{provider}: {wrong}"[:_SAID])
                continue
            self._write(partial(BinaryRepository.installed, fence=self._fence, found=found), wakes=True)
            return found
        self._write(lambda binaries: binaries.failed(self._fence, "; ".join(refused)))
        return None

    def update_and_requeue(self) -> None:
        """Queue it again at once, as nothing is known of it."""
        # A worker that has taken it over, or has ended it, knows better.
        with suppress(InstallationLost, LeaseLost, psycopg.Error):
            self._write(lambda binaries: binaries.released(self._fence), wakes=True)

    def cleanup(self) -> None:
        """End the renewals."""
        self._over.set()
        if self._renewing.is_alive():
            self._renewing.join()

    def _write(self, what: Callable[[BinaryRepository], None], *, wakes: bool = False) -> None:
        """Write its row; `wakes` the jobs that wait for it, in one transaction."""

        def question(connection: psycopg.Connection[Any]) -> None:
            with connection.transaction():
                what(BinaryRepository(connection))
                if wakes:
                    promote_waiting(NodeJobRepository(connection), self._shop.host_label, self._need.name)

        try:
            self._shop.ask(question)
        except LeaseLost as lost:
            if lost.family != BINARY:
                raise
            raise self._lost() from lost

    def _renew(self) -> None:
        while not self._over.wait(self._shop.lease_s / 3):
            try:
                self._shop.ask(lambda conn: BinaryRepository(conn).renew(self._fence, self._shop.lease_s))
            except LeaseLost as lost:
                # Of the program, or of the hook's job that it is installed for.
                self._is_lost = lost.family == BINARY
                self._stop.request(str(lost))
                return
            except psycopg.Error:
                # The fence has the last word; the next renewal may get through.
                continue

    def _lost(self) -> InstallationLost:
        return InstallationLost(f"somebody else installs {self._need.name} by now")

    def _install_by(self, provider: str) -> Installed:
        hook = provider_hook(provider, self._shop.hook_dirs)
        check_directory(self._shop.data_dir, DATA)
        directory = self._shop.data_dir.absolute() / "binaries"
        place = directory / self._need.name
        printed = directory / ".output" / self._need.name / f"{provider}.{self._fence.attempt}"
        for made in (place, printed.parent):
            made.mkdir(parents=True, exist_ok=True)
        command = self._command(hook, provider, place, printed)
        ended = run_hook(command, spawner=self._shop.spawner, stop=self._stop, redactor=self._shop.redactor)
        output = read_output(place / ".none", command.stdout_path, beneath=directory)
        return self._found(provider, ended, output)

    def _command(self, hook: Hook, provider: str, place: Path, printed: Path) -> HookCommand:
        config = load_plugin_config(hook.path.parent)
        directory = load_hooks_file(hook.path.parent.parent).environment(
            known_of_hook(hook, data_dir=self._shop.data_dir, environ=self._shop.environ)
        )
        environ = {**self._shop.environ, **directory}
        values = config.resolve({}, environ)
        if values.disabled_by is not None:
            raise QwfError(values.disabled_by)
        inputs = {
            "name": self._need.name,
            **_asked(hook, provider, self._need),
            "min_version": self._need.min_version,
            "overrides": self._need.overrides,
            "machine_id": self._shop.machine_id,
            "binary_id": self._fence.id,
        }
        return HookCommand(
            argv=[*hook.interpreter, str(hook.path), *hook_arguments(inputs)],
            env=hook_environment(
                *(config, values), engine={}, environ=environ, dsns=self._shop.dsns, directory=directory
            ),
            cwd=place,
            stdout_path=printed.with_name(f"{printed.name}.stdout.jsonl"),
            stderr_path=printed.with_name(f"{printed.name}.stderr.log"),
            timeout_s=_timeout_of(config, values, environ),
            grace_s=_GRACE_S,
            beneath=self._shop.data_dir.absolute() / "binaries",
        )

    def _found(self, provider: str, ended: HookExit, output: HookOutput) -> Installed:
        if ended.stopped is not None or ended.timed_out or ended.code != 0:
            raise QwfError(_why(ended))
        said = [record.payload for record in output.records if record.type == EVENT]
        if not said:
            raise QwfError("it printed no Binary record")
        # It may speak of others as well, such as one that it needs itself.
        own = [one for one in said if one.get("name") == self._need.name and one.get("abspath")]
        record, sums = (own or said)[0], Checksums()
        sums.add(record)
        found = installed_of(record, sums, name=self._need.name)
        if self._need.is_old(found.version):
            least, there = self._need.min_version, found.version or "of a version that it does not say"
            raise QwfError(f"{found.abspath} is {there}, and {least} is needed")
        return found if found.provider else found._replace(provider=provider)


def provider_hook(provider: str, dirs: Iterable[Path]) -> Hook:
    """The hook of a provider: the user's own before the one that comes along."""
    for place in (*dirs, BUILT_IN):
        for hook in provider_hooks(place):
            if provider_of(hook) == provider:
                return hook
    raise QwfError(f"there is no hook on_{EVENT}__{NAME.format(provider)}")


def providers_in_order(need: Need, dirs: Iterable[Path]) -> tuple[str, ...]:
    """The providers that are asked for a program, one by one.

    Directories with an event of their own for it are asked in the order of their hooks, or in that of the
    names that their `hooks.toml` lists. No others are asked for what only plugins of directories with such a
    list need. Without such a file the need's own order counts.
    """
    files = {place: load_hooks_file(place) for place in dirs}
    ordered: list[str] = []
    for place, file in files.items():
        if file.providers is not None:
            ordered += file.providers
        elif file.provider_event is not None:
            ordered += map(provider_of, provider_hooks(place))
    lists = [file.providers is not None for place, file in files.items() if need.name in needs_below([place])]
    is_whole = all(lists) if lists else any(file.providers is not None for file in files.values())
    first = [provider for provider in dict.fromkeys(ordered) if provider in need.providers]
    others = [provider for provider in need.providers if provider not in ordered]
    return tuple(first if is_whole else [*first, *others])


def _asked(hook: Hook, provider: str, need: Need) -> dict[str, Any]:
    """The providers as a hook is told: one that has an event of its own gets all that may install it."""
    if hook.event == EVENT:
        return {"bin_providers": provider}
    return {"binproviders": list(need.providers)}


def _timeout_of(config: PluginConfig, values: PluginValues, environ: Mapping[str, str]) -> float:
    """A time-out for all plugins is meant for pages: for an installation only what is said of it counts."""
    own = f"{config.prefix}_TIMEOUT"
    is_said = own in config.properties or own in environ or "TIMEOUT" in environ
    return values.timeout_s if is_said and values.timeout_s else _TIMEOUT_S


def _why(ended: HookExit) -> str:
    said = ended.stderr_tail.strip().splitlines()
    if ended.timed_out:
        how = f"ended after {ended.seconds:.0f} s, its timeout"
    else:
        how = f"exit {ended.code}" if ended.code is not None else f"killed by signal {ended.signal}"
    return f"{said[-1]} ({how})" if said else how
