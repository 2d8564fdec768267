"""Which keys each command's `--json` has: its view's function is given made-up values of its types.

So docs/reference/json.md needs no database, and is stale as soon as a key comes or goes.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import types
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from queue_workflows import models
from queue_workflows.cli.main import cli
from queue_workflows.db.migrations.authoring import RevisionInfo
from queue_workflows.db.migrations.state import ChainState
from queue_workflows.demo import Outcome as Story
from queue_workflows.drawing.changes import Change
from queue_workflows.engine.runs.retry import RunRetry
from queue_workflows.errors.workflows import Problem
from queue_workflows.repositories.workers.code import CodeOfWorkers
from queue_workflows.roles.janitor.process import Outcome as Look
from queue_workflows.states import DesiredState
from queue_workflows.views.json_values import named
from queue_workflows.views.runs.show import run_json

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
CLI: Final = Path(__file__).resolve().parent.parent / "src" / "queue_workflows" / "cli"
# Commands, and the function of `views` that makes the answer of each.
VIEWS: Final = {
    "audit": "audit:json_of",
    "binaries list": "hooks.binaries:json_of",
    "deploy check": "deploy:json_of",
    "doctor": "doctor:json_of",
    "event list": "jobs.steps:json_of_events",
    "explain JOB": "jobs.explain:json_of",
    "explain RUN": "runs.explain:json_of",
    "hooks list": "hooks.scripts:json_of",
    "hooks records": "hooks.records:json_of",
    "hw": "hosts.hardware:json_of",
    "job failures": "jobs.failures:json_of",
    "job list": "jobs.listing:json_of",
    "job show": "jobs.job:json_of",
    "limits list": "limits.listing:json_of",
    "limits list --rates": "limits.rates:json_of",
    "limits set --dry-run": "limits.what_if:json_of",
    "limits show": "limits.listing:limit_json",
    "models": "models:json_of",
    "overview": "overview:json_of",
    "queue next": "queues.next_jobs:json_of",
    "queue stats": "queues.stats:json_of",
    "queue waits": "queues.waits:json_of",
    "run grid": "workflows:json_of",
    "run list": "runs.listing:json_of",
    "run nodes": "runs.elements:json_of",
    "run show": "runs.show:json_of",
    "run submit-input --show": "runs.question:json_of",
    "run timeline": "runs.timeline:json_of",
    "run workflows": "workflows:json_of_workflows",
    "schedule list": "schedules.listing:json_of",
    "schedule preview": "schedules.preview:json_of",
    "what-if": "forecast.drain:json_of",
    "workers drain": "workers.drain:json_of",
    "workers host": "hosts.host:json_of",
    "workers list": "workers.listing:json_of",
    "workers pause --dry-run": "workers.what_if:json_of",
    "workers show": "workers.worker:json_of",
}


class Free:
    """What may be any JSON: a value of the user's."""


PLAIN: Final[dict[Any, Any]] = {
    str: "text",
    int: 1,
    float: 1.5,
    bool: True,
    datetime: NOW,
    timedelta: timedelta(seconds=1),
    uuid.UUID: uuid.UUID(int=0),
    Path: Path("text"),
    Any: Free(),
    object: Free(),
}
_CODE: Final = {"text": CodeOfWorkers("text", "text", "text", ["text"], False, NOW, NOW)}
# Fields of which the type alone says too little.
FIELDS: Final[dict[str, Any]] = {
    "desired": DesiredState.PAUSE.value,
    "cached_models": ["text"],
    # A worker that tells what it knows: the digest leads to its content.
    "Standing.versions": dict.fromkeys(("queue_workflows", "python", "app", "code"), "text"),
    "WorkerList.code": _CODE,
    "HostView.code": _CODE,
    # What a page goes on reading with; no part of an answer.
    "reader": None,
    "HostReading.reading": {"machine": {}, "containers": None, "devices": [{"id": "text"}], "troubles": []},
}


MODELS: Final = {name: getattr(models, name) for name in models.__all__}


def made_up(hint: Any) -> Any:
    """A value of a type."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return made_up(next(one for one in arguments if one is not type(None)))
    return _of_class(hint) if origin is None else _made_up_of(origin, arguments)


def _of_class(hint: Any) -> Any:
    if issubclass(hint, enum.Enum):
        return next(iter(hint))
    if issubclass(hint, models.Base):
        return _row(hint)
    hints = typing.get_type_hints(hint, vars(importlib.import_module(hint.__module__)) | MODELS)
    is_tuple = not dataclasses.is_dataclass(hint)
    names = hint._fields if is_tuple else [one.name for one in dataclasses.fields(hint)]
    return hint(**{name: _field(hint, name, hints[name]) for name in names})


def _field(owner: Any, name: str, hint: Any) -> Any:
    whole = f"{owner.__name__}.{name}"
    if whole == "StoredJob.columns":
        return vars(_row(models.IngestJob)) | vars(_row(models.WorkflowNodeJob))
    known = whole if whole in FIELDS else name
    return FIELDS[known] if known in FIELDS else made_up(hint)


def _made_up_of(origin: Any, arguments: tuple[Any, ...]) -> Any:
    if origin is typing.Literal:
        return arguments[0]
    if issubclass(origin, Mapping):
        return {}
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(made_up(one) for one in arguments)
    return (origin if origin in (list, tuple, set, frozenset) else list)([made_up(arguments[0])])


def _row(model: Any) -> types.SimpleNamespace:
    values = {}
    for name, column in model.__mapper__.columns.items():
        try:
            values[name] = FIELDS[name] if name in FIELDS else made_up(column.type.python_type)
        except (NotImplementedError, TypeError):
            values[name] = Free()
    return types.SimpleNamespace(**values)


def keys(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Each key's place in an answer, and what stands there."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            here = f"{at}.{name}" if at else name
            yield here, _kind(below)
            yield from keys(below, here)
    elif isinstance(value, list | tuple | set | frozenset):
        for below in list(value)[:1]:
            yield from keys(below, f"{at}[]")


def _kind(value: Any) -> str:
    kinds: list[tuple[Any, str]] = [
        (bool, "true or false"),
        (enum.Enum, "word"),
        (int | float, "number"),
        (datetime, "time"),
        (Mapping, "object"),
        (list | tuple | set | frozenset, "array"),
        (Free, "any JSON"),
        (type(None), "null"),
    ]
    return next((word for kind, word in kinds if isinstance(value, kind)), "text")


def answer_of(target: str) -> Any:
    """What a view's function makes of made-up values."""
    module_name, _, name = target.partition(":")
    module = importlib.import_module(f"queue_workflows.views.{module_name}")
    function: Callable[[Any], Any] = getattr(module, name)
    hints = typing.get_type_hints(function, vars(module) | MODELS)
    (parameter,) = (one for one in hints if one != "return")
    return function(made_up(hints[parameter]))


# What is no view's: made of the type that the command prints, or of the keys that it writes itself.
def _story() -> dict[str, Any]:
    story = made_up(Story)
    return dataclasses.asdict(story) | {"run": run_json(story.run)}


def _retries() -> list[dict[str, Any]]:
    kept = [{"node": "text", "kept": 1}]
    retried = named(dataclasses.asdict(made_up(RunRetry))) | {"elements_kept": kept, "dry_run": True}
    return [retried | {"refused": "text"}]


TYPES: Final[dict[str, Callable[[], Any]]] = {
    "db current": lambda: [dataclasses.asdict(made_up(ChainState))],
    "db history": lambda: [dataclasses.asdict(made_up(RevisionInfo))],
    "demo": _story,
    "janitor --once": lambda: dataclasses.asdict(made_up(Look)),
    "run check": lambda: [made_up(Problem)._asdict()],
    "run retry": _retries,
    "run watch": lambda: made_up(Change)._asdict(),
}
# The module below `cli` in which a dictionary with just these keys is written, and what stands at them.
_COUNT, _TEXT, _YES = 1, "text", True
_CAP: Final = {"key": _TEXT, "max_slots": _COUNT, "was": _COUNT, "let_out": _COUNT}
WRITTEN: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "db history --partitioned": (
        "database/job_history",
        {"partitioned": _YES, "changed": _YES, "months": [{"month": _TEXT, "jobs": _COUNT}]},
    ),
    "event emit": ("jobs/event", {"id": _COUNT, "event": _TEXT}),
    "job fork": ("jobs/job", {"job": _TEXT}),
    "hooks run": ("hooks/hooks", {"run": _TEXT, "created": _YES, "hooks": _COUNT}),
    "job cancel --dry-run": ("jobs/job", {"matched": _COUNT, "dry_run": _YES, "left_alone": _COUNT}),
    "limits clear": ("operations/limits", _CAP),
    "limits clear --rate": ("operations/rates", {"key": _TEXT, "was_rate": _COUNT}),
    "limits set": ("operations/limits", _CAP),
    "queue enqueue": (
        "queues/enqueue",
        {"first": _TEXT, "last": _TEXT, "count": _COUNT, "created": _YES},
    ),
    "run cancel --dry-run": ("runs/decide", {"matched": _COUNT, "dry_run": _YES}),
    "run cancel --node": ("runs/decide", {"run": _TEXT, "node": _TEXT, "asked": _COUNT}),
    "run start": ("runs/start", {"run": _TEXT, "created": _YES, "workflow": _TEXT}),
    "run unpin": ("runs/decide", {"run": _TEXT, "host_label": _TEXT}),
    "run unpoison": ("runs/decide", {"run": _TEXT, "events": _COUNT}),
    "schedule trigger": ("operations/schedule", {"schedule": _TEXT, "job": _TEXT}),
}
# Those that answer with an array of what is written.
ARRAYS: Final = ("run unpin", "run unpoison")
# Written from parts, or by what several commands share.
_JOBS: Final = [{"job": _TEXT, "answer": _TEXT}]
PARTS: Final[dict[str, Any]] = {
    "job cancel": _JOBS,
    "job retry": _JOBS,
    "queue import": {
        "lines": _COUNT,
        "skipped": _COUNT,
        "dry_run": _YES,
        "good": _COUNT,
        "created": _COUNT,
        "present": _COUNT,
    },
    "queue run": {"queue": _TEXT, "ended": {}, "put_off": {}, "queued": _COUNT, "running": _COUNT},
    "run cancel": [{"run": _TEXT, "answer": _TEXT}],
    "run submit-input": {"submission": _COUNT, "run": _TEXT, "node": _TEXT},
}
# Commands that answer as others do.
ALIKE: Final = {
    "db history --plain": "db history --partitioned",
    "binaries ensure": "binaries list",
    "job retry --dry-run": "job cancel --dry-run",
    "queue pause --dry-run": "workers pause --dry-run",
    "queue retry-failed --dry-run": "job cancel --dry-run",
    "workers off --dry-run": "workers pause --dry-run",
}
HEAD: Final = """\
# What `--json` prints

Each command with `--json`, and each page of the operator's page with `.json` behind its address, answers by
one [rule](../decisions/0060-one-name-in-json.md): a run is `run`, a job `job` (as `ingest:7`), a node `node`,
a worker `worker_id`, a machine `host_label`. What lists one kind of thing is an array of objects, what has
more to say an object. Times are in ISO 8601 with their zone; what is not known is `null`. `a.b` is the key
`b` in the object at `a`; `a[].b` is that of each object in an array.

This page is written by `scripts/docs.py` from the code.
"""


def page() -> str:
    """docs/reference/json.md; every command that has `--json` is in it."""
    answers = {name: answer_of(target) for name, target in VIEWS.items()}
    answers |= {name: make() for name, make in TYPES.items()} | PARTS
    for name, (module, written) in WRITTEN.items():
        if set(written) not in _dictionaries(CLI / f"{module}.py"):
            raise SystemExit(f"json_reference: cli/{module}.py writes no {sorted(written)} for `qwf {name}`")
        answers[name] = [written] if name in ARRAYS else written
    described = {*answers, *ALIKE}
    for command in _with_json(cli, [], click.Context(cli)):
        if not any(f"{name} ".startswith(f"{command} ") for name in described):
            raise SystemExit(f"json_reference: it says nothing of `qwf {command} --json`")
    return "\n".join([HEAD, *(_section(name, answers) for name in sorted(described))])


def _section(name: str, answers: Mapping[str, Any]) -> str:
    title = f"## `qwf {name}`\n"
    if name in ALIKE:
        return f"{title}\nAs `qwf {ALIKE[name]}`.\n"
    answer = answers[name]
    shape = "An array, of each:" if isinstance(answer, list) else "An object:"
    each = answer[0] if isinstance(answer, list) else answer
    rows = [f"| `{key}` | {kind} |" for key, kind in keys(each)]
    return "\n".join([title, shape, "", "| key | what |", "|---|---|", *rows, ""])


def _dictionaries(file: Path) -> list[set[str]]:
    """The keys of each dictionary that is written out in a module."""
    found = (
        node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Dict)
    )
    return [{str(key.value) for key in one.keys if isinstance(key, ast.Constant)} for one in found]


def _with_json(command: click.Command, path: list[str], context: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) is not None:
                inner = click.Context(below, parent=context, info_name=name)
                yield from _with_json(below, [*path, name], inner)
    elif any("--json" in one.opts for one in command.params):
        yield " ".join(path)
