"""What a host app injects, and the one place that sees it together with the settings.

`configure()` keeps the process's one configuration. Everything below takes what it needs as parameters;
only the public face asks for `current_config()` or `effective_settings()`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, overload

from queue_workflows.errors import ConfigurationError
from queue_workflows.settings import (
    Layer,
    Settings,
    check_overrides,
    check_queue_name,
    check_setting_name,
    load_settings,
)

if TYPE_CHECKING:
    from sqlalchemy import MetaData

ENGINE_VERSION_TABLE: Final = "queue_schema_version"
GPU_QUEUE: Final = "gpu"
HOOKS_QUEUE: Final = "hooks"
RESERVED_QUEUES: Final = frozenset({"cpu", GPU_QUEUE, HOOKS_QUEUE})
DEFAULT_INGEST_QUEUES: Final = frozenset({"fetch", "load"})
EMBEDDED: Final = "embedded server"
_PACKAGE: Final = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"

# From a node module's name to a module or its `run`; None for what it does not know.
NodeResolver: TypeAlias = Callable[[str], Any]
# From a workflow's name to its document: a dict, a text, a Path; None for what it does not know.
LoadWorkflow: TypeAlias = Callable[[str], Any]
# From a pipeline's name to its list of nodes; None for what it does not know.
PipelineSchema: TypeAlias = Callable[[str], Any]
# The ModelSpecs that workers of the queue `gpu` may load.
ModelRegistrar: TypeAlias = Callable[[], Any]
# From the path behind `host.` and the run to a value; LookupError for what it does not know.
RefResolver: TypeAlias = Callable[[str, Mapping[str, Any]], Any]
# From a whole path, the run, and a function that gives what the engine finds there, to a value.
EveryRefResolver: TypeAlias = Callable[[str, Mapping[str, Any], Callable[[], Any]], Any]
# From a job and its run (None for an ingest job) to a context manager around the job.
InvokeContext: TypeAlias = Callable[[Any, Any], AbstractContextManager[Any]]
# What is told of a run's end, as a `FinishedRun`.
RunFinishedHook: TypeAlias = Callable[[Any], object]
_Hook = TypeVar("_Hook", bound=RunFinishedHook)


class Unset(Enum):
    """Not given, which is something else than None."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True)
class EveryRef:
    """A resolver that is asked for every reference, and not for `host.…` alone."""

    answer: EveryRefResolver


@dataclass(frozen=True)
class HostMigrations:
    """A host app's own Alembic chain, run beside the engine's by the same `env.py`.

    `versions` is a directory, or `package:directory` for one that ships inside a package; afterwards it is
    the absolute path. `include_name` is Alembic's filter, for a host app that shares its schema with others.
    """

    versions: Path | str
    version_table: str
    metadata: MetaData
    include_name: Callable[..., bool] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", _versions_directory(self.versions))
        _check_version_table(self.version_table)
        _check_metadata(self.metadata)
        if self.include_name is not None and not callable(self.include_name):
            raise ConfigurationError("HostMigrations(include_name=…) must be a function or None")

    @property
    def directory(self) -> Path:
        """The directory of the revisions, absolute."""
        return Path(self.versions)


@dataclass(frozen=True)
class EngineConfig:
    """What the host app gave; `overrides` are the settings among it, which beat environment and file."""

    db_url_env: str | None = None
    ingest_queues: frozenset[str] = DEFAULT_INGEST_QUEUES
    host_migrations: HostMigrations | None = None
    node_resolver: NodeResolver | None = None
    node_module_package: str | None = None
    load_workflow: LoadWorkflow | None = None
    pipeline_schema: PipelineSchema | None = None
    workflow_dir: Path | None = None
    model_registrar: ModelRegistrar | None = None
    ref_resolver: RefResolver | EveryRef | None = None
    invoke_context: InvokeContext | None = None
    run_finished_hooks: tuple[RunFinishedHook, ...] = ()
    # As `set_ingest_schedule` checked it; None where the host app has not said whether it has any.
    ingest_schedule: Any = None
    # The ResourceKinds that `register_resource_kind` has checked, by their names.
    resource_kinds: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    overrides: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)


@dataclass(frozen=True)
class DsnChoice:
    """The DSN to use and where it came from; no DSN means the embedded server."""

    dsn: str | None = field(repr=False)
    source: str
    direct_dsn: str | None = field(default=None, repr=False)
    direct_source: str = ""


_lock = threading.Lock()
_current = EngineConfig()
# Where settings are looked for; where this process is at that moment, if it is not kept.
_directory: Path | None = None


def configure(
    *,
    db_url_env: str | Unset | None = UNSET,
    ingest_queues: Collection[str] | Unset | None = UNSET,
    host_migrations: HostMigrations | Unset | None = UNSET,
    **settings: Any,
) -> EngineConfig:
    """Give the engine what this host app brings; when called again, what is given wins and the rest stays.

    Any setting may be given by its name (`lease_s=60`, `db_url=…`). None takes an earlier value back.
    `db_url` may also be a function without arguments, which is asked whenever the database is looked up: for
    an app of which the tests put another database in its place. Where it returns None, nothing was given.
    """
    for name in settings:
        check_setting_name(name, others=("db_url_env", "ingest_queues", "host_migrations"))
    check_overrides(
        {name: value for name, value in settings.items() if name != "db_url" or not callable(value)}
    )
    changes: dict[str, Any] = {}
    if db_url_env is not UNSET:
        changes["db_url_env"] = _checked_variable(db_url_env)
    if ingest_queues is not UNSET:
        changes["ingest_queues"] = _checked_queues(ingest_queues)
    if host_migrations is not UNSET:
        changes["host_migrations"] = _checked_host_migrations(host_migrations)
    return _change(settings, changes)


def set_node_resolver(resolver: NodeResolver | None) -> None:
    """Find node modules by `resolver(name)`: a module with `run`, or a function, or None if it knows neither.

    It is asked before the package of `set_node_module_package`; `{"plan": plan_film}.get` is one.
    """
    _check_callable("set_node_resolver", resolver, "a function of the module's name")
    _change({}, {"node_resolver": resolver})


def set_node_module_package(package: str | None) -> None:
    """Allow the modules below a package as node modules, named as in `plan` or `film.cut`, and no others."""
    if package is not None:
        if not isinstance(package, str) or not re.fullmatch(_PACKAGE, package):
            raise ConfigurationError(
                f"set_node_module_package({package!r}): that is no package's name",
                advice="give its dotted name, as in 'shop.nodes'",
            )
        _package_roots(package, f"set_node_module_package({package!r})")
    _change({}, {"node_module_package": package})


def set_workflow_provider(
    *,
    load_workflow: LoadWorkflow | Unset | None = UNSET,
    pipeline_schema: PipelineSchema | Unset | None = UNSET,
) -> None:
    """Find workflows by `load_workflow(name)`: a document as dict, text or Path, or None if it knows none.

    It is asked before the directory of `set_workflow_dir`. `pipeline_schema(name)` gives the list of nodes of
    documents that name a `pipeline`. What is not given stays as it was; None takes it back.
    """
    changes: dict[str, Any] = {}
    if load_workflow is not UNSET:
        _check_callable("set_workflow_provider(load_workflow=…)", load_workflow, "a function of a name")
        changes["load_workflow"] = load_workflow
    if pipeline_schema is not UNSET:
        _check_callable("set_workflow_provider(pipeline_schema=…)", pipeline_schema, "a function of a name")
        changes["pipeline_schema"] = pipeline_schema
    _change({}, changes)


def set_workflow_dir(directory: Path | str | None) -> None:
    """Find the workflow NAME in `NAME.yaml`, `NAME.yml` or `NAME.json` of a directory."""
    if directory is not None:
        directory = Path(os.path.abspath(os.path.expanduser(directory)))
        if not directory.is_dir():
            raise ConfigurationError(f"set_workflow_dir('{directory}'): that is no directory")
    _change({}, {"workflow_dir": directory})


def set_model_registrar(registrar: ModelRegistrar | None) -> None:
    """Have workers of the queue `gpu` know the models of `registrar()`, a list of `ModelSpec`.

    It is called when such a worker starts, and again when a job wants a model while it has given none.
    """
    _check_callable("set_model_registrar", registrar, "a function that returns a list of ModelSpec")
    _change({}, {"model_registrar": registrar})


@overload
def set_ref_resolver(resolver: RefResolver | None, *, every: Literal[False] = False) -> None: ...
@overload
def set_ref_resolver(resolver: EveryRefResolver | None, *, every: Literal[True]) -> None: ...
def set_ref_resolver(resolver: Callable[..., Any] | None, *, every: bool = False) -> None:
    """Answer references such as `host.bucket` by `resolver("bucket", run)`, in workers and orchestrators.

    With `every`, all references are its to answer, as `resolver("plan.scenes", run, found)`: `found()` is
    what the engine finds there, or raises RefError. `run` has the run's id, workflow, labels, parcel_id and
    created_at. A LookupError says that it knows no such path, which fails the node; any other exception is
    the resolver's own, and the node is tried again.
    """
    asked = "a function of a path, a run and what is found" if every else "a function of a path and a run"
    _check_callable("set_ref_resolver", resolver, asked)
    _change({}, {"ref_resolver": EveryRef(resolver) if every and resolver is not None else resolver})


def set_invoke_context(factory: InvokeContext | None) -> None:
    """Put `factory(job, run)` around every job: a context manager that yields `finalize(result) -> result`.

    `finalize` is applied only on success, before the context is left. What else it yields is left alone, so
    `lambda job, run: app.app_context()` will do. The context is left on every path, with the exception if
    there is one, and cannot swallow it.
    """
    _check_callable("set_invoke_context", factory, "a function of the job and its run")
    _change({}, {"invoke_context": factory})


def declare_ingest_schedule(declared: Any) -> None:
    """Keep what `set_ingest_schedule` has checked."""
    _change({}, {"ingest_schedule": declared})


def keep_resource_kind(name: str, kind: Any) -> None:
    """Keep what `register_resource_kind` has checked."""
    global _current  # noqa: PLW0603 - see `_change`
    with _lock:
        kinds = MappingProxyType({**_current.resource_kinds, name: kind})
        _current = replace(_current, resource_kinds=kinds)


def on_run_finished(hook: _Hook) -> _Hook:
    """Have `hook(run)` called, in an orchestrator, when a run is over, whatever became of it; a decorator.

    It is called at least once, and again later if it raises, so it has to bear that: `run.id` tells one end
    from another. Registered a second time, as by a reload, a function takes the place of its older self.
    """
    global _current  # noqa: PLW0603 - see `_change`
    if not callable(hook):
        raise ConfigurationError(f"on_run_finished({hook!r:.80}) must be a function of the finished run")
    with _lock:
        others = tuple(one for one in _current.run_finished_hooks if not _is_same_function(one, hook))
        _current = replace(_current, run_finished_hooks=(*others, hook))
    return hook


def current_config() -> EngineConfig:
    """What `configure()` was given so far."""
    return _current


def reset_config() -> None:
    """Forget what `configure()` was given; for tests."""
    global _current, _directory
    with _lock:
        _current, _directory = EngineConfig(), None


def effective_settings(arguments: Mapping[str, Any] | None = None) -> Settings:
    """The settings in force now; `arguments` (a command line's, a call's) beat all else, None is unset."""
    config = _current
    return load_settings(
        arguments=arguments,
        overrides=_answered(config.overrides, arguments),
        db_url_env=config.db_url_env,
        start_dir=_directory,
    )


def keep_directory() -> None:
    """Let the settings of this process be those of where it is now, wherever its jobs go from here."""
    global _directory  # noqa: PLW0603
    with suppress(OSError):
        _directory = Path.cwd()


def resolve_dsn(argument: str | None = None) -> DsnChoice:
    """Which database, and which source named it.

    The direct DSN only counts if it comes from the same layer as the DSN or a stronger one: else it was
    written for another database than the one that is used.
    """
    settings = effective_settings({"db_url": argument})
    direct_layer = settings.layer_of("direct_db_url") if settings.direct_db_url else Layer.DEFAULT
    if settings.db_url is None:
        if settings.direct_db_url is not None:
            raise ConfigurationError(
                f"a direct database URL is set ({settings.source_of('direct_db_url')}) but no database URL",
                advice="set QWF_DB_URL as well; behind no proxy it is all that is needed",
            )
        return DsnChoice(None, EMBEDDED)
    direct = settings.direct_db_url if direct_layer <= settings.layer_of("db_url") else None
    return DsnChoice(
        settings.db_url, settings.source_of("db_url"), direct, settings.source_of("direct_db_url")
    )


def is_known_queue(queue: str) -> bool:
    """Whether anybody may enqueue to it; `*`, any queue, is known."""
    return queue == "*" or queue in RESERVED_QUEUES | _current.ingest_queues


def check_known_queue(queue: str) -> str:
    """Refuse a queue that nobody may enqueue to: a worker would wait on it for ever."""
    if not is_known_queue(check_queue_name(queue)):
        known = RESERVED_QUEUES | _current.ingest_queues
        raise ConfigurationError(
            f"there is no queue {queue!r}; known are {', '.join(sorted(known))}",
            advice="name it in configure(ingest_queues=…), in the module that --app or QWF_APP names",
        )
    return queue


def _change(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> EngineConfig:
    """Put checked changes into force; two calls at once both count."""
    global _current  # noqa: PLW0603 - the public face has one configuration per process
    with _lock:
        merged = {
            name: value for name, value in {**_current.overrides, **settings}.items() if value is not None
        }
        _current = replace(_current, overrides=MappingProxyType(merged), **changes)
        return _current


def _answered(overrides: Mapping[str, Any], arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What was given, with the function that names the database asked, unless an argument names it anyway."""
    given = overrides.get("db_url")
    if not callable(given):
        return overrides
    return {**overrides, "db_url": None if arguments and arguments.get("db_url") else given()}


def _is_same_function(one: object, other: object) -> bool:
    """Whether both are one function, or two readings of one definition; closures differ in what they hold."""
    if one is other:
        return True
    if not isinstance(one, FunctionType) or not isinstance(other, FunctionType):
        return False
    same_place = (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)
    return same_place and one.__closure__ is None and other.__closure__ is None


def _check_callable(setter: str, given: object, what: str) -> None:
    if given is not None and not callable(given):
        raise ConfigurationError(f"{setter}: {given!r:.80} must be {what}, or None")


def _checked_variable(name: str | None) -> str | None:
    if name is not None and not (isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)):
        raise ConfigurationError(
            "configure(db_url_env=…) must be the name of an environment variable",
            advice="give the name, as in db_url_env='FILM_DB_URL'; the URL itself goes into db_url=…",
        )
    return name


def _checked_queues(queues: Collection[str] | None) -> frozenset[str]:
    if queues is None:
        return DEFAULT_INGEST_QUEUES
    if isinstance(queues, str) or not isinstance(queues, Collection):
        raise ConfigurationError(
            f"configure(ingest_queues={queues!r}) must be a collection of names",
            advice="as in ingest_queues={'fetch', 'load'}",
        )
    names = frozenset(check_queue_name(name) for name in queues)
    taken = sorted(name for name in names if name.lower() in RESERVED_QUEUES)
    if taken:
        raise ConfigurationError(
            f"configure(ingest_queues=…): {', '.join(taken)} is reserved for node jobs",
            advice="choose other names than cpu, gpu and hooks",
        )
    return names


def _checked_host_migrations(given: HostMigrations | None) -> HostMigrations | None:
    if given is not None and not isinstance(given, HostMigrations):
        raise ConfigurationError(
            "configure(host_migrations=…) must be a HostMigrations",
            advice="HostMigrations(versions=…, version_table=…, metadata=…)",
        )
    return given


def _versions_directory(versions: Path | str) -> Path:
    if not isinstance(versions, str | Path) or not str(versions).strip():
        raise ConfigurationError("HostMigrations(versions=…) must be a path, or 'package:directory'")
    package, colon, inside = str(versions).partition(":")
    if colon and re.fullmatch(_PACKAGE, package):
        roots = _package_roots(package, f"HostMigrations(versions='{package}:…')")
        directories = [Path(root, inside) for root in roots]
    else:
        directories = [Path(os.path.abspath(os.path.expanduser(versions)))]
    for directory in directories:
        if directory.is_dir():
            return directory
    raise ConfigurationError(
        f"HostMigrations(versions={str(versions)!r}): {directories[0]} is no directory",
        advice="create it; the host app's revisions go there",
    )


def _package_roots(package: str, asked_by: str) -> list[str]:
    """Where a package's files are; found without importing the package itself."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(f"{asked_by}: there is no package {package}")
    return list(spec.submodule_search_locations)


def _check_version_table(name: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", name):
        raise ConfigurationError(
            f"HostMigrations(version_table={name!r}) is no table name",
            advice="a letter or `_`, then up to 62 letters, digits and `_`, as in 'film_schema_version'",
        )
    if name.lower() == ENGINE_VERSION_TABLE:
        raise ConfigurationError(
            f"HostMigrations(version_table={name!r}): that is the engine's own version table",
            advice="each chain keeps its own, as in 'film_schema_version'",
        )


def _check_metadata(metadata: object) -> None:
    """Imported here, because `configure` alone must not cost the import of SQLAlchemy."""
    from sqlalchemy import MetaData

    if not isinstance(metadata, MetaData):
        raise ConfigurationError(
            f"HostMigrations(metadata=…) must be a sqlalchemy.MetaData, not {type(metadata).__name__}",
            advice="give Base.metadata" if hasattr(metadata, "metadata") else None,
        )
