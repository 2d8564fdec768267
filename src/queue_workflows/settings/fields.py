"""The settings: one field each, with its default, its range and its reason.

This is the one table of the engine's defaults; docs/reference/configuration.md has a table made of it.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, get_args

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from queue_workflows.errors import ConfigurationError

PREFIX: Final = "QWF_"
SECRET: Final = frozenset({"db_url", "direct_db_url"})
QUEUE_NAME: Final = r"[A-Za-z][A-Za-z0-9_.-]{0,62}"
HOST_LABEL: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
DAY_S: Final = 86_400.0
LEASE_S_BY_QUEUE: Final[Mapping[str, float]] = {"gpu": 300.0}
LONGEST_RENEWAL_S: Final = 10.0
WHAT_CAN_BE_SET: Final = "see docs/reference/configuration.md for what can be set"


class Layer(IntEnum):
    """Where a value can come from; a smaller layer beats a larger one."""

    ARGUMENT = 0
    CONFIGURE = 1
    ENVIRONMENT = 2
    OLDER_ENVIRONMENT = 3
    FILE = 4
    DEFAULT = 5


@dataclass(frozen=True)
class Source:
    """One place that has a value: its layer, and its name as the user wrote it (a variable, a file)."""

    layer: Layer
    name: str


DEFAULT_SOURCE: Final = Source(Layer.DEFAULT, "default")


def check_queue_name(name: object) -> str:
    """Queue names travel in NOTIFY payloads and worker ids, so `:`, `*` and blanks are not for them."""
    if not isinstance(name, str) or not re.fullmatch(QUEUE_NAME, name):
        raise ConfigurationError(
            f"{name!r} is no queue name",
            advice="a letter, then up to 62 letters, digits and any of `_ . -`",
        )
    return name


def _host_name() -> str:
    """The machine's name with what a worker id cannot carry replaced."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()).strip("-_.")[:128] or "localhost"


def _seconds(default: float, at_least: float, at_most: float, why: str) -> Any:
    return Field(default, ge=at_least, le=at_most, allow_inf_nan=False, description=why)


def _share(default: float, why: str) -> Any:
    return Field(default, ge=0, le=1, allow_inf_nan=False, description=why)


def _whole(default: int, at_least: int, at_most: int, why: str) -> Any:
    return Field(default, ge=at_least, le=at_most, description=why)


def _text(default: str | None, allowed: str, pattern: str | None, why: str) -> Any:
    return Field(
        default,
        min_length=1,
        pattern=pattern and f"^(?:{pattern})$",
        description=why,
        json_schema_extra={"allowed": allowed},
    )


class Settings(BaseSettings):
    """The settings in force, each with its source; made by `load_settings`, never changed afterwards."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True
    )

    db_url: str | None = Field(
        None,
        min_length=1,
        repr=False,
        description="The database. Unset: the embedded server in `data_dir`.",
        json_schema_extra={"allowed": "a postgresql:// URL or a libpq connection string"},
    )
    direct_db_url: str | None = Field(
        None,
        min_length=1,
        repr=False,
        description="The same database past a transaction-pooling proxy, for LISTEN and migrations.",
        json_schema_extra={"allowed": "a postgresql:// URL or a libpq connection string"},
    )
    connect_timeout_s: int = _whole(10, 1, 600, "How long one attempt to connect may take.")
    lock_timeout_s: float = _seconds(
        10, 0, DAY_S, "Longest wait for a lock in our own statements; 0: no limit."
    )
    idle_in_transaction_session_timeout_s: float = _seconds(
        60, 0, DAY_S, "The server ends a session of ours that idles in a transaction this long; 0: never."
    )
    client_connection_check_interval_s: float = _seconds(
        10,
        0,
        DAY_S,
        "How often the server looks whether the client of a running statement is still there; 0: never.",
    )
    migration_lock_timeout_s: float = _seconds(
        5,
        0.1,
        DAY_S,
        "Longest wait of a migration for a lock on a table, so that it never queues everybody behind it.",
    )
    migration_wait_s: float = _seconds(120, 0, DAY_S, "Longest wait for another migration that is under way.")
    listen: bool = Field(
        True, description="LISTEN for work where that can be; off uses nothing of a session and polls only."
    )

    data_dir: Path = Field(Path(".qwf"), description="Where the embedded server and our own files live.")
    hook_dirs: Annotated[tuple[Path, ...], NoDecode] = Field(
        (),
        description="Directories of hook plugins; of two plugins of one name, that of the first counts.",
        json_schema_extra={"allowed": "paths, with `:` between them", "default": "none"},
    )
    pg_bindir: Path | None = Field(
        None, description="The Postgres programs that the embedded server runs. Unset: those of the wheel."
    )
    embedded_user: str | None = _text(
        None,
        "a user name",
        r"[A-Za-z_][A-Za-z0-9_.-]*\$?",
        "The system user that runs the embedded server when we are root, which Postgres refuses.",
    )
    embedded_linger_s: float = _seconds(
        60,
        0,
        DAY_S,
        "How long the embedded server waits for another user after its last one; 0: it stops at once.",
    )

    app: str | None = _text(
        None,
        "a dotted module name",
        r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*",
        "The host app's wiring module, imported before anything else (`qwf --app`).",
    )
    app_version: str | None = _text(
        None,
        "letters, digits and any of `_ . + : -`, at most 128",
        r"[A-Za-z0-9][A-Za-z0-9_.+:-]{0,127}",
        "The host app's version, which its workers publish beside what they know, for `qwf workers list`.",
    )
    host_label: str = Field(
        default_factory=_host_name,
        pattern=f"^(?:{HOST_LABEL})$",
        description="This machine's name in worker ids and in operators' commands.",
        json_schema_extra={
            "allowed": "letters, digits and any of `_ . -`, at most 128",
            "default": "the host name",
        },
    )
    container_prefix: str = _text(
        "ai_leads-",
        "letters, digits and any of `_ . -`",
        r"[A-Za-z0-9][A-Za-z0-9_.-]*",
        "Containers with names that begin so count as ours in the hardware figures.",
    )
    log_level: str = _text(
        "info",
        "`debug`, `info`, `warning`, `error` or `critical`",
        "(?i:debug|info|warning|error|critical)",
        "What roles write of themselves and their jobs, and what the host app's loggers do there.",
    )
    log_format: str = _text(
        "text", "`text` or `json`", "text|json", "Lines to read, or an object of JSON on each."
    )
    lock_dir: Path | None = Field(
        None, description="Where host locks live. Unset: `/run/lock/qwf`, else the user's runtime directory."
    )

    lease_s: float = _seconds(30, 0.5, DAY_S, "How long a claim holds unless renewed.")
    lease_s_by_queue: Annotated[Mapping[str, float], NoDecode] = Field(
        LEASE_S_BY_QUEUE,
        description="Leases of single queues; a queue that is not named here keeps its own default.",
        json_schema_extra={
            "allowed": "`queue=seconds` pairs, each from 0.5 to 86,400, as in `gpu=300,fetch=60`"
        },
    )
    renew_s: float | None = Field(
        None,
        ge=0.1,
        le=DAY_S / 2,
        allow_inf_nan=False,
        description="How often a claim is renewed. Unset: a third of the lease, at most 10 s.",
    )
    poll_s: float = _seconds(1, 0.01, 3600, "The poll behind NOTIFY, jittered.")
    claim_ahead: int = _whole(
        2000,
        0,
        9000,
        "How many jobs a worker of several claims ahead at most, and has in memory with their payloads, "
        "however far away its server is; 0: none.",
    )
    rest_s: float = _seconds(
        30, 0, DAY_S, "After how long without a claim a worker leaves its connections to its host's agent."
    )
    grace_s: float = _seconds(
        30, 0, DAY_S, "How long a stopping worker lets its job finish before releasing it."
    )
    deadman: bool = Field(
        True, description="The kernel timer that kills a worker before its lease can lapse."
    )
    stale_heartbeat_s: float = _seconds(
        30, 1, DAY_S, "A worker that was not heard of for this long is flagged dead."
    )
    first_heartbeat_s: float = _seconds(
        300, 1, DAY_S, "How long a supervisor waits for the first heartbeat of a worker that it started."
    )

    max_attempts: int = _whole(3, 1, 1000, "Counted failures that end a job.")
    backoff_s: float = _seconds(60, 0, 30 * DAY_S, "The first delay before a retry; doubled each time.")
    backoff_jitter: float = _share(0.2, "At most this share of each delay, at random, is added to it.")
    max_crashes: int = _whole(3, 1, 1000, "Workers that a job may kill before it ends as failed.")
    single_job_processes: int = _whole(
        16, 1, 1000, "How many processes of one job each a supervisor may have in place of crashed workers."
    )
    ingest_default_budget_s: float = _seconds(
        3600, 0.1, 30 * DAY_S, "Wall-clock limit of an ingest job without its own."
    )
    node_default_budget_s: float = _seconds(
        3600, 0.1, 30 * DAY_S, "Wall-clock limit of a node job without its own."
    )
    budget_s_by_queue: Annotated[Mapping[str, float], NoDecode] = Field(
        {},
        description="Wall-clock limits of single queues, for jobs without their own.",
        json_schema_extra={
            "allowed": "`queue=seconds` pairs, each from 0.1 to 2,592,000, as in `fetch=120`",
            "default": "none",
        },
    )
    cancel_grace_s: float = _seconds(
        10, 0, DAY_S, "How long a cancelled job may take to stop by itself before its process is ended."
    )
    stall_timeout_s: float = _seconds(
        120, 0.1, DAY_S, "Longest silence of a job after its first progress beat."
    )
    affinity_max_wait_s: float = _seconds(
        60,
        0,
        DAY_S,
        "Longest that a `gpu` worker lets jobs with a warm model pass older ones; 0: none, strictly by age.",
    )
    affinity_yield_s: float = _seconds(
        0.5, 0, 60, "How long a `gpu` worker leaves a new job to an idle worker that has its model loaded."
    )
    host_priority_first: str = _text(
        "high",
        "`high` or `low`",
        "high|low",
        "Which `host_priority` this host's `gpu` workers take first, within a priority.",
    )
    model_vram_mb: float | None = Field(
        None,
        ge=1,
        le=10_000_000,
        allow_inf_nan=False,
        description="What the loaded models of a `gpu` worker may take together. Unset: one model at a time.",
    )
    model_memory_learned: bool = Field(
        True,
        description="Whether `gpu` workers go by the memory that models took, where a driver tells it; "
        "else by what their ModelSpecs say.",
    )
    wait_causes: bool = Field(
        True,
        description="Whether metrics from the database say what jobs waited for, which takes a look at some "
        "hundred jobs that ended lately.",
    )
    model_keep_s: float = _seconds(
        900, 0, 30 * DAY_S, "How long a model stays loaded without a job, unless its ModelSpec says."
    )
    model_load_timeout_s: float = _seconds(
        1800, 0.1, DAY_S, "How long loading a model may take; then the worker ends, and the job counts it."
    )

    hw_sample_s: float = _seconds(
        5, 0.1, 3600, "How often a supervisor looks at its machine's processors, memory and GPUs."
    )
    hw_tool_timeout_s: float = _seconds(
        10, 0.1, 600, "How long `nvidia-smi`, `amd-smi` or `rocm-smi` may take for an answer."
    )
    gpu_release_s: float = _seconds(
        30, 0, DAY_S, "How long a GPU may take to be free after its worker; then it is quarantined."
    )
    gpu_release_tolerance_mb: int = _whole(
        256,
        0,
        10_000_000,
        "How much more of a GPU's memory than before its worker may be in use then, in MB.",
    )

    limits: Annotated[Mapping[str, Any], NoDecode] = Field(
        {},
        description="Caps and rates of keys that this host app declares; a file has a table `[limits]`.",
        json_schema_extra={
            "allowed": "`key=cap` and `key=rate` pairs, as in `host:*=4,unpaywall=10/s`",
            "default": "none",
        },
    )

    payload_max_bytes: int = _whole(
        16_777_216, 1024, 134_217_728, "Largest JSON payload of one row, in UTF-8 bytes."
    )
    payload_max_depth: int = _whole(100, 1, 500, "Deepest nesting of a JSON payload.")
    dispatch_max_tries: int = _whole(
        8, 1, 1000, "How often an orchestrator tries an event of a run before it puts it aside."
    )
    dispatch_backoff_s: float = _seconds(
        1, 0.01, 300, "The first delay before such an event is tried again; doubled each time, up to 300 s."
    )
    retention_days: float = _seconds(
        30, 0, 36_500, "How long the rows of finished jobs and runs are kept, in days."
    )
    history_after_days: float = _seconds(
        1, 1, 36_500, "After how many days a finished job moves, where history is by partitions."
    )
    run_files_days: float | None = Field(
        None,
        ge=0,
        le=36_500,
        allow_inf_nan=False,
        description="After how many days what a run of hooks wrote is deleted; never if absent.",
    )
    dedupe_ttl_days: float = _seconds(
        7, 0, 36_500, "How long a dedupe key stays taken beyond `retention_days`, in days."
    )

    _sources: dict[str, Source] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is the library's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """`load_settings` lays the layers: an error must name the variable or file, a value its source."""
        return (init_settings,)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_what_would_pass(cls, value: Any, info: ValidationInfo) -> Any:
        """Else `lease_s = true` would be a lease of one second, and an empty path the working directory."""
        if value == "" or (
            isinstance(value, bool) and bool not in field_types(cls.model_fields[info.field_name or ""])
        ):
            raise ValueError("of another type")
        return value

    @field_validator("lease_s_by_queue", "budget_s_by_queue", mode="before")
    @classmethod
    def _split_pairs(cls, value: Any) -> Any:
        """A variable says `gpu=300,fetch=60`; a file has a table."""
        if isinstance(value, str):
            pairs = (pair.partition("=") for pair in value.split(",") if pair.strip())
            return {queue.strip(): lease.strip() for queue, _, lease in pairs}
        if isinstance(value, Mapping) and any(isinstance(lease, bool) for lease in value.values()):
            raise ValueError("a truth value")
        return value

    @field_validator("limits", mode="before")
    @classmethod
    def _read_limits(cls, value: Any) -> Any:
        """Imported here, as most processes declare none; what is wrong with a key is told by its name."""
        if isinstance(value, str | Mapping) and value:
            from queue_workflows.settings.declared_limits import declared_limits, limits_in

            return declared_limits(limits_in(value) if isinstance(value, str) else value)
        return value

    @field_validator("hook_dirs", mode="before")
    @classmethod
    def _split_paths(cls, value: Any) -> Any:
        """A variable says `plugins:/srv/plugins`; a file has a list."""
        if isinstance(value, str):
            return tuple(path for path in value.split(os.pathsep) if path)
        return (value,) if isinstance(value, Path) else value

    @field_validator("lease_s_by_queue")
    @classmethod
    def _check_leases(cls, value: Mapping[str, float]) -> Mapping[str, float]:
        for queue, lease in value.items():
            if not re.fullmatch(QUEUE_NAME, queue) or not 0.5 <= lease <= DAY_S:
                raise ValueError(queue)
        return {**LEASE_S_BY_QUEUE, **value}

    @field_validator("budget_s_by_queue")
    @classmethod
    def _check_budgets(cls, value: Mapping[str, float]) -> Mapping[str, float]:
        for queue, budget in value.items():
            if not re.fullmatch(QUEUE_NAME, queue) or not 0.1 <= budget <= 30 * DAY_S:
                raise ValueError(queue)
        return value

    def lease_for(self, queue: str) -> float:
        """The lease of a queue in seconds."""
        return self.lease_s_by_queue.get(queue, self.lease_s)

    @property
    def beat_s(self) -> float:
        """How often a worker says that it lives: three of these are over before its lease is."""
        shortest = min((self.lease_s, *self.lease_s_by_queue.values()))
        return min(5.0, self.stale_heartbeat_s / 6, shortest / 5)

    def renew_for(self, queue: str) -> float:
        """How often a claim on a queue is renewed, in seconds."""
        return self.renew_s if self.renew_s is not None else min(self.lease_for(queue) / 3, LONGEST_RENEWAL_S)

    def source_of(self, name: str) -> str:
        """Where a setting's value came from, in the user's words: `QWF_LEASE_S`, a file's path, `default`."""
        return self._source(name).name

    def layer_of(self, name: str) -> Layer:
        """The layer that a setting's value came from."""
        return self._source(name).layer

    def _source(self, name: str) -> Source:
        check_setting_name(name)
        return self._sources.get(name, DEFAULT_SOURCE)


def check_setting_name(name: str, others: Iterable[str] = ()) -> None:
    """Refuse a name that is no setting; `others` are names that the caller takes besides."""
    if name not in Settings.model_fields:
        raise ConfigurationError(
            f"{name!r} is no setting", advice=suggest(name, [*Settings.model_fields, *others])
        )


@dataclass(frozen=True)
class Row:
    """One line of the table of settings."""

    name: str
    variable: str
    default: str
    allowed: str
    description: str


def settings_table() -> list[Row]:
    """What can be set, as the documentation shows it."""
    return [
        Row(name, PREFIX + name.upper(), _default_text(field), allowed(name), field.description or "")
        for name, field in Settings.model_fields.items()
    ]


def allowed(name: str) -> str:
    """What a setting may be, in words."""
    field = Settings.model_fields[name]
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "allowed" in extra:
        return str(extra["allowed"])
    types = field_types(field)
    if bool in types:
        return "on or off"
    if Path in types:
        return "a path"
    low, high = (next(getattr(m, side) for m in field.metadata if hasattr(m, side)) for side in ("ge", "le"))
    kind = "a whole number" if int in types else "a number"
    return f"{kind} from {_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    return f"{int(value) if value == int(value) else value:,}"


def _default_text(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "default" in extra:
        return str(extra["default"])
    value = field.default
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return "`" + ",".join(f"{key}={number:g}" for key, number in value.items()) + "`"
    return f"`{value}`"


def field_types(field: FieldInfo) -> set[Any]:
    """The types of a field without None."""
    members = get_args(field.annotation) if NoneType in get_args(field.annotation) else (field.annotation,)
    return {member for member in members if member is not NoneType}


def suggest(name: str, known: Iterable[str]) -> str:
    plain = name.lower().replace("-", "_").removeprefix("qwf_").removeprefix("ai_leads_")
    names = list(known)
    nearest = [plain] if plain in names else difflib.get_close_matches(plain, names, n=1, cutoff=0.5)
    return f"did you mean {nearest[0]!r}?" if nearest else WHAT_CAN_BE_SET
