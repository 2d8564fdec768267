"""From the hooks of an event to an ordinary workflow document: a node for each hook, and steps between them.

    step 0    step 1   …   last step    seal        End hooks
    ──────    ──────       ─────────    ────        ─────────
    a ─┐  ┌── c ─ …  ──── x ──┐
       ├──┤   ^               ├──────── seal ──┬── tidy
    b ─┘  └── : d.bg ─ … ─ … ─│ … … … … … … … ─┘
              └ e: once d.bg has begun           (told to end, unless its plugin says to wait)

A node depends on the foreground of the step before with `when: all_done`, and since both have a `step` it
passes at the end of their first attempts. It depends as well on the background hooks before it in order, and
passes when each of them has begun and is ready; only the End hooks wait for their ends. Whether a plugin is
switched off is for the worker to say, which has its configuration. `order` says in which order they go.

With a setup all of this is the document of a node in another one, of the run that sets up a tree:

    steps of the setup ── first run ── descendants ── seal ── End hooks of the setup
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeVar

from queue_workflows.config import HOOKS_QUEUE
from queue_workflows.errors import HookError
from queue_workflows.hooks.plugin_config import PluginConfig
from queue_workflows.hooks.plugins.cache import PluginCache
from queue_workflows.hooks.plugins.discovery import Hook, discover_hooks, overlooked
from queue_workflows.hooks.plugins.hooks_file import HOOKS_FILE, Order, Setup, load_hooks_file
from queue_workflows.hooks.plugins.order import SEQUENTIAL_STEPS, HookOrder, order_of
from queue_workflows.hooks.plugins.providers import unknown_providers
from queue_workflows.hooks.plugins.shared_locks import share_locks
from queue_workflows.repositories.jobs.hooks import FOR_TREE, SHARED_DIRECTORY
from queue_workflows.repositories.runs.labels import SETUP

T = TypeVar("T")
_log = logging.getLogger(__name__)

SEAL: Final = "seal"
DESCENDANTS: Final = "descendants"
FIRST_RUN: Final = "first_run"
# Behind the ten that a file's name can say.
_SEAL_STEP: Final = 10
_DESCENDANTS_STEP: Final = 11
_FIRST_END_STEP: Final = 20
_LONGEST_ID: Final = 120


def compile_hooks(
    event: str,
    dirs: Iterable[Path | str],
    sequential_steps: Collection[int] = SEQUENTIAL_STEPS,
    *,
    plugins: Collection[str] | None = None,
    order: Order | None = None,
    wait_for_descendants: bool | None = None,
    max_open_runs: int | None = None,
    shared_directory: bool | None = None,
    setup: Setup | None = None,
) -> dict[str, Any]:
    """The workflow document of an event's hooks; of these `plugins` only, if they are named.

    Every hook's arguments are the run's inputs. In a sequential step hooks run one after the other, in all
    others at once; without an `order` the first directory counts of which `hooks.toml` says one, else it is
    "steps". Its End hooks and its end wait for the runs that its records began, if they began any; with
    `wait_for_descendants` also while one of its hooks is to be tried again, and may begin others, and with
    False for none. At most `max_open_runs` of the tree that it begins are open at once. With a
    `shared_directory` it belongs to no host, unless a hook runs in the background. With the hooks of a
    `setup` event it is the document of a run that sets up a tree with those, and then begins a run of this
    event; with False there is none. Where any of these is left open, `hooks.toml` may say. Raises
    `HookError` if there are no hooks, or one cannot be run.
    """
    places = list(dirs)
    files = [load_hooks_file(Path(place)) for place in places]
    if wait_for_descendants is None and (said := _first(file.descendants for file in files)):
        wait_for_descendants = said == "wait"
    is_shared = bool(_first([shared_directory, *(file.shared_directory for file in files)]))
    if max_open_runs is None:
        max_open_runs = _first(file.max_open_runs for file in files)
    # What is read here counts for all of the document, however lately it was written.
    config = cache(PluginCache([Path(place) for place in places], now_ns=lambda: sys.maxsize).config)
    source = _Source(places, plugins, order, sequential_steps, config)
    hooks = source.hooks(event)
    set_up = source.setup(event, setup)
    for said in (*_ready_for_nothing(places), *unknown_providers(places)):
        _log.warning("%s", said)
    nodes = source.steps(event, hooks)
    share_locks(nodes.all)
    nodes.seal()
    if wait_for_descendants is not False:
        nodes.wait_for_descendants(always=wait_for_descendants is True)
    source.ends(event, nodes)
    if set_up is not None:
        share_locks(nodes.all, share_locks(set_up.all))
    if is_shared:
        nodes.share_directory(beside=set_up)
    document = {"name": event, "on_failure": "continue", "nodes": nodes.all}
    if set_up is not None:
        document = source.tree(set_up, document, is_shared=is_shared)
    return document | ({} if max_open_runs is None else {"max_open_runs": max_open_runs})


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the hooks of a document are looked for, and how they go."""

    places: list[Path | str]
    plugins: Collection[str] | None
    order: Order | None
    sequential_steps: Collection[int]
    config: Callable[[Path], PluginConfig]

    def hooks(self, event: str) -> list[Hook]:
        """The hooks of an event; `HookError` where there are none."""
        found = discover_hooks(event, self.places, plugins=self.plugins)
        if not found:
            raise HookError(
                f"there are no hooks of {event} below {self._below}",
                advice=f"a hook is an executable {{plugin}}/on_{event}__{{NN}}_{{name}}.{{ext}}",
            )
        return found

    def steps(self, event: str, hooks: Sequence[Hook], *, sets_up: bool = False) -> _Nodes:
        """The nodes of its hooks, in their steps; what `sets_up` a tree always has a run to go on beside."""
        goes = self._goes(event)
        self._warn(*map(goes.unnumbered, hooks), *overlooked(event, self.places))
        if not sets_up:
            self._warn(*goes.ended_at_once(hooks, self.config))
        has_foreground = sets_up or not all(hook.is_background for hook in hooks)
        nodes = _Nodes(event, goes, self.config, has_foreground=has_foreground, sets_up=sets_up)
        for step, group in _in_steps(goes, hooks):
            nodes.add(step, group)
        return nodes

    def ends(self, event: str, nodes: _Nodes) -> None:
        """The hooks that run at the end of it."""
        goes, hooks = self._goes(event), discover_hooks(f"{event}End", self.places, plugins=self.plugins)
        self._warn(*map(goes.unnumbered, hooks))
        for step, group in _in_steps(goes, hooks):
            nodes.add(_FIRST_END_STEP + step, group, is_end=True)

    def setup(self, event: str, asked: Setup | None) -> _Nodes | None:
        """The nodes that set up a tree; None if nothing does. What is `asked` for has to be there."""
        name = setup_event(event, self.places, asked)
        if name is None:
            return None
        hooks = self.hooks(name) if asked else discover_hooks(name, self.places, plugins=self.plugins)
        if not hooks:
            _log.info("there are no hooks of %s below %s: %s begins without", name, self._below, event)
            return None
        return self.steps(name, hooks, sets_up=True)

    def tree(self, nodes: _Nodes, first: dict[str, Any], *, is_shared: bool) -> dict[str, Any]:
        """The document of a run that sets up a tree, and then begins the `first` run of it."""
        nodes.begin_tree(first)
        self.ends(nodes.event, nodes)
        if is_shared:
            nodes.share_directory()
        return first | {"labels": {SETUP: nodes.event}, "nodes": nodes.all}

    @property
    def _below(self) -> str:
        return ", ".join(map(str, self.places)) or "no directory"

    def _goes(self, event: str) -> HookOrder:
        return order_of(event, self.places, self.order, self.sequential_steps)

    def _warn(self, *said: str | None) -> None:
        for one in said:
            if one is not None:
                _log.warning("%s", one)


def setup_event(event: str, dirs: Iterable[Path | str], asked: Setup | None = None) -> str | None:
    """The event that sets up a tree which begins with a run of another one; None if there is none.

    What is `asked` for, else as `hooks.toml` says; `HookError` where an event is asked to set up itself.
    """
    if asked == event:
        raise HookError(f"{event} cannot set up itself", advice="name another event, or leave it out")
    said = (load_hooks_file(Path(place)).setup_of(event) for place in dirs)
    name = next((one for one in (asked, *said) if one is not None), None)
    return name if isinstance(name, str) and name != event else None


def _in_steps(goes: HookOrder, hooks: Sequence[Hook]) -> Iterator[tuple[int, list[Hook]]]:
    """Hooks as they go, by steps that never go back: by name alone 100 comes before 11."""
    latest = 0
    for step, group in groupby(goes.sorted(hooks), key=lambda hook: hook.step):
        latest = max(latest, step)
        yield latest, list(group)


def _first(said: Iterable[T | None]) -> T | None:
    """What the first directory says that says anything of it."""
    return next((one for one in said if one is not None), None)


def _ready_for_nothing(places: Iterable[Path | str]) -> list[str]:
    """What to tell the author of a `[ready]` that names no plugin of its directory, and no hook of one."""
    return [
        f"{Path(place, HOOKS_FILE)}: ready.{name[:120]} is no plugin there, nor a hook of one"
        for place in places
        for name in load_hooks_file(Path(place)).ready
        if not Path(place, name).exists()
    ]


class _Nodes:
    """The nodes so far, and what the next step waits for."""

    def __init__(
        self,
        event: str,
        order: HookOrder,
        config: Callable[[Path], PluginConfig],
        *,
        has_foreground: bool,
        sets_up: bool,
    ) -> None:
        self.all: list[dict[str, Any]] = []
        self.event, self._sets_up = event, sets_up
        self._order, self._config, self._has_foreground = order, config, has_foreground
        self._before: list[str] = []
        self._foreground: list[str] = []
        # What is ended at the seal, by plugin: what works with it depends on it.
        self._sessions: dict[str, list[str]] = {}
        # What is to have begun before the next step, as no hook of `before` has waited for it.
        self._beginning: list[str] = []
        self._background: list[str] = []
        self._ids: set[str] = set()

    def add(self, step: int, hooks: Sequence[Hook], *, is_end: bool = False) -> None:
        """A step; End hooks have nothing left to run beside."""
        before, foreground = self._before, []
        beginning, since = list(self._beginning), list(self._beginning)
        for hook in hooks:
            background = hook.is_background and not is_end
            waits_for = before if background else [*before, *beginning]
            sessions = [] if is_end else self._sessions_of(hook)
            node = self._node(hook, step, dict.fromkeys([*waits_for, *sessions]))
            node |= {"sessions": sessions} if sessions else {}
            node["inputs"] |= {"alone": True} if self._order.is_alone(hook) and not background else {}
            self.all.append(node)
            if background:
                node["background"] = True
                if self._has_foreground and self._config(hook.path.parent).bg_at_seal == "kill":
                    node["inputs"] |= {"at_seal": "kill"} | ({FOR_TREE: True} if self._sets_up else {})
                    self._sessions.setdefault(hook.plugin, []).append(node["id"])
                self._background.append(node["id"])
                beginning.append(node["id"])
                since.append(node["id"])
                continue
            since = []
            self._foreground.append(node["id"])
            if self._order.is_alone(hook):
                before, beginning, foreground = [node["id"]], [], [node["id"]]
            else:
                foreground.append(node["id"])
        self._before, self._beginning = foreground or self._before, since

    def seal(self) -> None:
        """The end of the last step, where there is somebody beside it to be told.

        Where all are in the background it is the end of the last of them: in no step, it waits for that.
        """
        if self._background:
            seal: dict[str, Any] = {"id": SEAL, "type": "seal"}
            seal |= {"step": _SEAL_STEP} if self._has_foreground else {}
            self.all.append(seal | _after(self._foreground if self._has_foreground else self._background))
            self._ids.add(SEAL)
            self._before, self._beginning = [SEAL, *self._background], []

    def wait_for_descendants(self, *, always: bool) -> None:
        """Wait for the runs that any of them began, before the End hooks."""
        node: dict[str, Any] = {"id": DESCENDANTS, "type": "descendants"}
        node |= {"step": _DESCENDANTS_STEP} if self._has_foreground else {}
        node |= {"always": True} if always else {}
        before = self._before if self._background else self._foreground
        self.all.append(node | _after(before))
        self._ids.add(DESCENDANTS)
        self._before, self._beginning = [DESCENDANTS, *self._background], []

    def begin_tree(self, first: dict[str, Any]) -> None:
        """Begin the first run of a tree when all of these have succeeded or, in the background, have begun.

        What is in the background goes on until all runs of the tree are over.
        """
        sessions = [session for of_plugin in self._sessions.values() for session in of_plugin]
        node: dict[str, Any] = {"id": FIRST_RUN, "type": "workflow", "workflow": first["name"], "tree": first}
        node |= {"depends_on": [*self._foreground, *self._background]}
        self.all.append(node | ({"sessions": sessions} if sessions else {}))
        wait = {"id": DESCENDANTS, "type": "descendants"}
        self.all.append(wait | _after([FIRST_RUN, *self._foreground]))
        self._before, self._beginning = [DESCENDANTS], []
        if self._background:
            self.all.append({"id": SEAL, "type": "seal"} | _after([DESCENDANTS]))
            self._before = [SEAL, *self._background]

    def share_directory(self, *, beside: _Nodes | None = None) -> None:
        """Let any host run the hooks, unless one listens in the background, for those beside it.

        So does one of the setup of their tree, for all of these.
        """
        listeners = [*self._background, *([] if beside is None else beside._background)]
        if listeners:
            _log.warning(
                "a run of these hooks belongs to one host, although its directory is shared: %s runs in the"
                " background, and others may need it on their own host",
                listeners[0],
            )
            return
        for node in self.all:
            if node.get("queue") == HOOKS_QUEUE:
                node["inputs"] = {**node["inputs"], SHARED_DIRECTORY: True}

    def _sessions_of(self, hook: Hook) -> list[str]:
        """What runs in the background of its own plugin, and of those that this one requires."""
        used = [hook.plugin, *self._config(hook.path.parent).requires]
        return [session for plugin in used for session in self._sessions.get(plugin, [])]

    def _node(self, hook: Hook, step: int, before: Iterable[str]) -> dict[str, Any]:
        return {
            "id": self._id(hook),
            "queue": HOOKS_QUEUE,
            "module": hook.name,
            "plugin": hook.plugin,
            "step": step,
            "inputs": {"args": {"$from": "inputs"}},
            **_after(before),
            **self._policies(hook.path.parent),
        }

    def _policies(self, plugin: Path) -> dict[str, Any]:
        """What a plugin says of all its hooks."""
        config = self._config(plugin)
        retry = {"max_attempts": config.max_attempts, "backoff_s": config.retry_s}
        retry = {name: value for name, value in retry.items() if value is not None}
        said: dict[str, Any] = {"retry": retry} if retry else {}
        return said if config.host_lock is None else said | {"host_lock": config.host_lock}

    def _id(self, hook: Hook) -> str:
        """What commands call a hook: its plugin and the part of its file's name behind the event."""
        short = hook.name.removeprefix(f"on_{hook.event}__")
        if hook.event.endswith("End"):
            short = f"end_{short}"
        base = re.sub(r"[^A-Za-z0-9_-]", "_", f"{hook.plugin}__{short}")[:_LONGEST_ID]
        base = base if base[0].isalpha() or base[0] == "_" else f"_{base}"[:_LONGEST_ID]
        node_id, number = base, 2
        while node_id in self._ids:
            node_id, number = f"{base}_{number}", number + 1
        self._ids.add(node_id)
        return node_id


def _after(before: Iterable[str]) -> dict[str, Any]:
    depends_on = list(before)
    return {"depends_on": depends_on, "when": "all_done"} if depends_on else {}
