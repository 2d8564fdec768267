"""A directory's `hooks.toml`: what holds for all plugins in it, beside what each says of itself.

    order = "strict"                       # or "steps": how the numbers in the names of hooks are read; or
                                           # by event: order = {Page = "strict", Site = "steps"}
    descendants = "leave"                  # or "wait": whether a run waits for those that its records began
    max_open_runs = 3                      # of the tree that a run begins, with itself
    setup = "SiteSetup"                    # the event that sets up a tree before its first run; or by event:
                                           # setup = {Page = "SiteSetup", Site = false}
    shared_directory = true                # any host may run its hooks, as all of them see its directory
    background_timeouts = "grace"          # not "limit": see `HooksFile`

    [env]                                  # variables of every hook in this directory, made for each attempt
    CACHE_DIR = "{data_dir}/cache"
    PAGE_DIR = "{run_dir}"
    CONTEXT = {run = "{run}", plugin = "{plugin}", depth = "{depth}"}     # a table is handed over as JSON

    [providers]                            # hooks that install programs
    event = "Binary"
    names = ["env", "pip"]                 # these and no others, in this order

    [ready]                                # what shows that background hooks are ready, by plugin or hook
    browser = {file = "session.json"}
    "browser/on_Page__20_tab.bg.js" = {line = "^open$", within_s = 30}

Everything in it is optional. A file that is wrong is refused as a whole, and the error names the key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, cast

from queue_workflows.errors import HookError
from queue_workflows.hooks.files import small_file
from queue_workflows.hooks.plugin_config import may_be_seen
from queue_workflows.hooks.plugins.discovery import EVENT_NAME, PROVIDER_NAME, Hook
from queue_workflows.hooks.readiness import Readiness, flaws_of_readiness, read_readiness
from queue_workflows.payload import check_payload
from queue_workflows.workflow.document.nodes import INT_MAX

HOOKS_FILE: Final = "hooks.toml"
Order: TypeAlias = Literal["steps", "strict"]
ORDERS: Final = ("steps", "strict")
Descendants: TypeAlias = Literal["wait", "leave"]
DESCENDANTS: Final = ("wait", "leave")
# The event that sets up the trees which begin with runs of another one, or False for none.
Setup: TypeAlias = str | Literal[False]
BackgroundTimeouts: TypeAlias = Literal["limit", "grace"]

# What a template may name, and what it stands for.
TEMPLATE_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "run_dir": "the directory of the run",
        "root_run_dir": "that of the run with which its tree began",
        "data_dir": "the setting data_dir",
        "hooks_dir": "the directory in which hooks.toml lies",
        "plugin_dir": "the plugin's own directory, with its scripts",
        "run": "the id of the run",
        "root_run": "the id of the run with which its tree began",
        "depth": "how far the run is from that one",
        "event": "the event of the hook",
        "plugin": "the plugin's name",
        "hook": "the name of the hook's file",
        "step": "its step",
        "attempt": "which attempt it is, from 1",
        "PATH": "that of the worker",
        "HOME": "that of the worker",
    }
)
_KEYS: Final = (
    *("order", "descendants", "max_open_runs", "setup", "shared_directory"),
    *("background_timeouts", "env", "providers", "ready"),
)
_PROVIDER_KEYS: Final = ("event", "names")


@dataclass(frozen=True, slots=True)
class HooksFile:
    """What a directory of plugins says of all of them; what it leaves open is None, empty or the usual.

    Where `background_timeouts` are "grace", a plugin's timeout says how long a background hook that is ended
    at the seal may take from there on, and not how long it may live.
    """

    order: Order | Mapping[str, Order] | None = None
    descendants: Descendants | None = None
    max_open_runs: int | None = None
    setup: Setup | Mapping[str, Setup] | None = None
    shared_directory: bool | None = None
    env: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    background_timeouts: BackgroundTimeouts = "limit"
    provider_event: str | None = None
    providers: tuple[str, ...] | None = None
    ready: Mapping[str, Readiness] = field(default_factory=lambda: MappingProxyType({}))

    def ready_of(self, hook: Hook) -> Readiness | None:
        """What it says of this hook, else of its plugin."""
        return self.ready.get(hook.label) or self.ready.get(hook.plugin)

    def order_of(self, event: str) -> Order | None:
        """The order of an event's hooks, if it says any."""
        return self.order.get(event) if isinstance(self.order, Mapping) else self.order

    def setup_of(self, event: str) -> Setup | None:
        """The event that sets up a tree which begins with a run of this one, if it says any."""
        return self.setup.get(event) if isinstance(self.setup, Mapping) else self.setup

    @property
    def names(self) -> frozenset[str]:
        """What its templates need to know."""
        return frozenset(name for text in _texts(self.env) for name in _fields(text))

    def environment(self, known: Mapping[str, Any]) -> dict[str, str]:
        """The variables for one process; one that names what is not `known` is left out."""
        return {
            name: value.format_map(known) if isinstance(value, str) else check_payload(_filled(value, known))
            for name, value in self.env.items()
            if all(one in known for text in _texts(value) for one in _fields(text))
        }


def known_of_hook(hook: Hook, *, data_dir: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """What a template may name of a hook that belongs to no run, such as one that installs a program."""
    return {
        "data_dir": str(data_dir.absolute()),
        "hooks_dir": str(hook.path.parent.parent),
        "plugin_dir": str(hook.path.parent),
        "event": hook.event,
        "plugin": hook.plugin,
        "hook": hook.name,
        "step": hook.step,
        "PATH": environ.get("PATH", ""),
        "HOME": environ.get("HOME", ""),
    }


def load_hooks_file(directory: Path) -> HooksFile:
    """What `hooks.toml` in a directory of plugins says; `HookError` if that makes no sense."""
    path = directory / HOOKS_FILE
    try:
        content = small_file(path)
    except FileNotFoundError:
        return HooksFile()
    except OSError as wrong:
        raise HookError(f"{path}: {wrong.strerror}", advice=f"make {path} readable, or remove it") from None
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as wrong:
        raise _wrong(path, f"not valid TOML: {wrong}") from None
    return read_hooks_file(document, path)


def read_hooks_file(document: Mapping[str, Any], path: Path) -> HooksFile:
    """The file's content, checked; `path` is for the error."""
    for said in _flaws(document):
        raise _wrong(path, said)
    providers = document.get("providers", {})
    names = providers.get("names")
    return HooksFile(
        order=cast("Order | dict[str, Order] | None", document.get("order")),
        descendants=cast("Descendants | None", document.get("descendants")),
        max_open_runs=document.get("max_open_runs"),
        setup=document.get("setup"),
        shared_directory=document.get("shared_directory"),
        background_timeouts=cast("BackgroundTimeouts", document.get("background_timeouts", "limit")),
        env=MappingProxyType(document.get("env", {})),
        provider_event=providers.get("event"),
        providers=None if names is None else tuple(names),
        ready=MappingProxyType(
            {name: read_readiness(said) for name, said in document.get("ready", {}).items()}
        ),
    )


def _wrong(path: Path, said: str) -> HookError:
    return HookError(f"{path}: {said}", advice=f"correct {path}")


def _flaws(document: Mapping[str, Any]) -> Iterator[str]:
    yield from _strangers(document, _KEYS, "")
    yield from _flaws_of_order(document.get("order", "steps"))
    if "descendants" in document and document["descendants"] not in DESCENDANTS:
        yield f'descendants must be "wait" or "leave", not {document["descendants"]!r:.60}'
    most = document.get("max_open_runs", 1)
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= INT_MAX:
        yield f"max_open_runs must be a whole number from 1, not {most!r:.60}"
    yield from _flaws_of_setup(document.get("setup", False))
    if not isinstance(document.get("shared_directory", False), bool):
        yield f"shared_directory must be true or false, not {document['shared_directory']!r:.60}"
    if document.get("background_timeouts", "limit") not in ("limit", "grace"):
        yield f'background_timeouts must be "limit" or "grace", not {document["background_timeouts"]!r:.60}'
    env = document.get("env", {})
    if not isinstance(env, dict):
        yield "env must be a table of variables, as in [env]"
        return
    for name, value in env.items():
        yield from (f"env.{name[:60]}: {said}" for said in _flaws_of_variable(name, value))
    yield from _flaws_of_providers(document.get("providers", {}))
    yield from _flaws_of_ready(document.get("ready", {}))


def _flaws_of_order(order: Any) -> Iterator[str]:
    by_event = order if isinstance(order, dict) else {"": order}
    for event, said in by_event.items():
        if said not in ORDERS:
            yield f'order{"." * bool(event)}{event[:60]} must be "steps" or "strict", not {said!r:.60}'


def _flaws_of_setup(setup: Any) -> Iterator[str]:
    by_event = setup if isinstance(setup, dict) else {"": setup}
    for event, said in by_event.items():
        if said is not False and (not isinstance(said, str) or EVENT_NAME.fullmatch(said) is None):
            where = f"setup{'.' * bool(event)}{event[:60]}"
            yield f"{where} must be the name of an event, in letters and digits, or false, not {said!r:.60}"


def _flaws_of_variable(name: str, value: Any) -> Iterator[str]:
    if not may_be_seen(name):
        yield (
            "no name for a variable of hooks: a letter or `_`, then letters, digits and `_`,"
            " and none of the engine's or a database driver's"
        )
        return
    try:
        check_payload(value)
        texts = list(_texts(value))
    except (ValueError, TypeError, RecursionError):
        yield "must be a text without NUL, a number, true or false, or a list or table of these"
        return
    for text in texts:
        yield from _flaws_of_template(text)


def _flaws_of_template(text: str) -> Iterator[str]:
    try:
        parts = list(Formatter().parse(text))
    except ValueError as wrong:
        yield f"{text!r:.80} is no template ({wrong}); a brace of its own is written twice"
        return
    for _, name, spec, conversion in parts:
        if name is not None and (name not in TEMPLATE_NAMES or spec or conversion):
            whole = f"{name}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}"
            yield f"nobody knows {{{whole:.60}}}; there are {', '.join(TEMPLATE_NAMES)}"


def _flaws_of_providers(given: Any) -> Iterator[str]:
    if not isinstance(given, dict):
        yield "providers must be a table, as in [providers]"
        return
    yield from _strangers(given, _PROVIDER_KEYS, "providers.")
    event = given.get("event", "Binary")
    if not isinstance(event, str) or EVENT_NAME.fullmatch(event) is None:
        yield "providers.event must be the name of an event, in letters and digits"
    names = given.get("names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        yield 'providers.names must be a list of names, as in ["env", "pip"]'
        return
    for name in names:
        if PROVIDER_NAME.fullmatch(name) is None:
            yield f"providers.names: {name!r:.60} is no provider: small letters, digits and `_`"
    if len(set(names)) != len(names) or ("names" in given and not names):
        yield "providers.names must name each provider once, and at least one"


def _flaws_of_ready(given: Any) -> Iterator[str]:
    if not isinstance(given, dict):
        yield "ready must be a table of plugins or hooks, as in [ready]"
        return
    for name, said in given.items():
        yield from (f"ready.{name[:120]}: {flaw}" for flaw in flaws_of_readiness(said))


def _strangers(given: Mapping[str, Any], known: Collection[str], prefix: str) -> Iterator[str]:
    for key in given:
        if key not in known:
            there = ", ".join(f"{prefix}{name}" for name in known)
            yield f"nobody knows {prefix}{key[:60]}; there are {there}"


def _texts(value: Any) -> Iterator[str]:
    """All templates in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def _fields(text: str) -> Iterator[str]:
    return (name for _, name, _, _ in Formatter().parse(text) if name is not None)


def _filled(value: Any, known: Mapping[str, Any]) -> Any:
    """A value with its templates filled in; a template that is one name alone keeps what that stands for."""
    if isinstance(value, str):
        alone = re.fullmatch(r"\{([A-Za-z_]+)\}", value)
        return known[alone[1]] if alone else value.format_map(known)
    if isinstance(value, dict):
        return {key: _filled(one, known) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, known) for one in value]
    return value
