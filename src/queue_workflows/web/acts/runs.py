"""Cancelling runs and running them again, by their names or by a filter; freeing them from host or errors."""

from __future__ import annotations

import shlex
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import psycopg

from queue_workflows.drawing.words import COUNTED
from queue_workflows.engine.operate.many_runs import (
    Refusal,
    cancel_matching,
    foretell_retry,
    pages_of,
    retry_each,
    unpoison_matching,
)
from queue_workflows.engine.runs.verbs import cancel_node, may_cancel_node
from queue_workflows.errors import FilterRefused, PayloadError, UnknownRun
from queue_workflows.repositories.jobs.hooks import ANY_HOST, HookJobRepository
from queue_workflows.repositories.runs.listing import RunFilter, RunLinesRepository
from queue_workflows.repositories.runs.operator_verbs import ENGINE_MODE
from queue_workflows.repositories.runs.outbox_counts import DispatchEventRepository
from queue_workflows.repositories.runs.runs import named_run
from queue_workflows.settings import Settings
from queue_workflows.states import RUN_TERMINAL, RunStatus
from queue_workflows.views.filters.runs import run_filter, text_of
from queue_workflows.views.runs import decisions as decided
from queue_workflows.views.runs.decisions import (
    OPEN,
    foretell_cancel,
    picked,
    said_of_retry,
    said_of_unpin,
    said_of_unpoison,
    setup_remark,
    statuses,
)
from queue_workflows.views.runs.listing import run_page
from queue_workflows.web.acts.act import SHOWN_FIRST, Act, Asked, By, Done, Field, Line, Preview
from queue_workflows.web.acts.counting import NOT_COUNTED, counted, first, say_count
from queue_workflows.web.acts.last_said import with_last
from queue_workflows.web.page import href, part

Connection = psycopg.Connection[Any]
_ALLOWED: Final = {"cancel": OPEN, "retry": tuple(sorted(RUN_TERMINAL)), "unpoison": tuple(RunStatus)}
# None is any.
_USUALLY: Final = {"cancel": OPEN, "retry": (RunStatus.FAILED.value,), "unpoison": None}
_DONE: Final = {"cancel": "cancelled", "retry": "retried", "unpoison": "unpoisoned"}
_FROM: Final = "from"
_UNPIN_NOTE: Final = (
    "For a host that is gone, with the files of its hooks: what is tried again begins in empty directories."
)
_UNPOISON_NOTE: Final = "Events that were given up are tried again; the page of a run has their errors."
_NODE: Final = "node"
_NODE_NOTE: Final = "What needs this node is cancelled too; the rest of the run goes on."


def run_target(name: str) -> str:
    """A run's whole id; a beginning may be of two runs by now."""
    found = named_run(name)
    if found is None:
        raise PayloadError(f"{name!r:.80} is no run", path="target", advice="write all of its id")
    return str(found)


def _ids(asked: Asked) -> list[uuid.UUID]:
    return [uuid.UUID(name) for name in asked.targets]


def _filter(verb: str) -> Callable[[str], str]:
    def canonical(text: str) -> str:
        said = run_filter(text)
        if said.is_empty and said.status is None:
            raise FilterRefused(
                "this filter is empty, which would be every run: say which are meant", word=""
            )
        for status in said.status or ():
            if status not in _ALLOWED[verb]:
                raise FilterRefused(f"no run that is {status} can be {_DONE[verb]}", word=f"status:{status}")
        return text_of(said)

    return canonical


def _meant(verb: str, asked: Asked) -> RunFilter:
    said = run_filter(asked.where or "")
    return replace(said, status=said.status or _USUALLY[verb], poisoned=verb == "unpoison" or said.poisoned)


def _command(verb: str, asked: Asked) -> str:
    words = list(asked.targets) if asked.where is None else ["--where", asked.where]
    words += [f"--{name}={asked.word(name)}" for name in (_FROM, _NODE) if asked.word(name)]
    return shlex.join(["qwf", "run", verb, *words])


def _back(asked: Asked) -> str:
    if asked.where is not None:
        return href("/runs", q=asked.where)
    return f"/runs/{asked.targets[0]}" if len(asked.targets) == 1 else "/runs"


def _line(run_id: uuid.UUID | str, said: str) -> Line:
    return Line(str(run_id), said, f"/runs/{run_id}")


def _by_filter(connection: Connection, verb: str, label: str, asked: Asked) -> Preview:
    wanted = replace(_meant(verb, asked), mode=ENGINE_MODE)
    runs = RunLinesRepository(connection)
    count = counted(connection, lambda: runs.count(wanted, at_most=COUNTED))
    lines = first(connection, lambda: run_page(connection, wanted, limit=SHOWN_FIRST).lines)
    return Preview(
        headline=f"{label} {say_count('run', count)}",
        count=count,
        is_capped=count is not None and count >= COUNTED,
        lines=tuple(_line(line.id, f"{line.status} · {line.workflow}") for line in lines),
        notes=(NOT_COUNTED,) if count is None else (),
        command=_command(verb, asked),
        back=_back(asked),
    )


def _headline(label: str, asked: Asked, count: int) -> str:
    return f"{label} {say_count('run', count) if len(asked.targets) > 1 else f'run {asked.targets[0]}'}"


def _node_of(asked: Asked) -> str:
    """The node that alone is cancelled, of the one run that it is of; empty for a whole run."""
    node = asked.word(_NODE)
    if node and asked.is_bulk:
        raise PayloadError("a node is cancelled in one run at a time", path=_NODE)
    return node


def _preview_cancel(connection: Connection, asked: Asked, _settings: Settings) -> Preview:
    node = _node_of(asked)
    if asked.where is not None:
        return _by_filter(connection, "cancel", "Cancel", asked)
    if node:
        return _preview_cancel_node(connection, asked, node)
    told = foretell_cancel(connection, _ids(asked))
    lines = [_line(run_id, said) for run_id, said in told.answers.items()]
    said = with_last(connection, "run", lines[:SHOWN_FIRST])
    return Preview(
        headline=_headline("Cancel", asked, len(told.applied)),
        count=len(told.applied),
        lines=tuple(said[line.name] for line in lines[:SHOWN_FIRST]),
        command=_command("cancel", asked),
        back=_back(asked),
    )


def _preview_cancel_node(connection: Connection, asked: Asked, node: str) -> Preview:
    """One node alone; `UnknownNode` if the run's document has none of that name."""
    (run_id,) = _ids(asked)
    is_open = may_cancel_node(run_id, node, conn=connection)
    said = "would be asked to stop" if is_open else "not cancelled, it is over"
    return Preview(
        headline=f"Cancel node {node} of run {run_id}",
        count=int(is_open),
        lines=(Line(node, said, f"/runs/{run_id}/nodes/{part(node)}"),),
        notes=(_NODE_NOTE,) if is_open else (),
        command=_command("cancel", asked),
        back=_back(asked),
    )


def _cancel(connection: Connection, asked: Asked, by: By, _settings: Settings) -> Iterator[Done]:
    node = _node_of(asked)
    if asked.where is not None:
        for count in cancel_matching(connection, _meant("cancel", asked), actor=by.actor, reason=by.reason):
            yield Done(Counter({"asked to stop": count}))
    elif node:
        (run_id,) = _ids(asked)
        is_asked = cancel_node(run_id, node, conn=connection, actor=by.actor, reason=by.reason)
        answer = "asked to stop" if is_asked else "not cancelled, it is over"
        yield _told({run_id: answer}, left=0 if is_asked else 1)
    else:
        told = decided.cancel(connection, _ids(asked), actor=by.actor, reason=by.reason)
        lines = [_line(run_id, said) for run_id, said in told.answers.items()]
        left = [line for line in lines if uuid.UUID(line.name) not in told.applied]
        said = with_last(connection, "run", left)
        yield Done(
            Counter(line.said for line in lines),
            tuple(said.get(line.name, line) for line in lines),
            left=len(left),
        )


def _told(answers: dict[uuid.UUID, str], *, left: int) -> Done:
    lines = tuple(_line(run_id, said) for run_id, said in answers.items())
    return Done(Counter(answers.values()), lines, left)


def _preview_retry(connection: Connection, asked: Asked, _settings: Settings) -> Preview:
    if asked.where is not None:
        return _by_filter(connection, "retry", "Retry", asked)
    statuses(connection, _ids(asked))
    answers = foretell_retry(connection, _ids(asked), from_node=asked.word(_FROM) or None)
    lines = [_line(one.run_id, said_of_retry(one, dry_run=True)) for one in answers]
    refused = {str(one.run_id) for one in answers if isinstance(one, Refusal)}
    lines.sort(key=lambda line: line.name not in refused)
    said = with_last(connection, "run", [line for line in lines[:SHOWN_FIRST] if line.name in refused])
    remarks = {remark for one in answers if (remark := setup_remark(one)) is not None}
    start = Field(
        _FROM,
        "From this node",
        hint="It runs again whatever it came to, with all that follows from it.",
        value=asked.word(_FROM),
    )
    return Preview(
        headline=_headline("Retry", asked, len(answers) - len(refused)),
        count=len(answers) - len(refused),
        lines=tuple(said.get(line.name, line) for line in lines[:SHOWN_FIRST]),
        notes=tuple(sorted(remarks)[:SHOWN_FIRST]),
        command=_command("retry", asked),
        fields=(start,) if len(asked.targets) == 1 else (),
        back=_back(asked),
    )


def _retry(connection: Connection, asked: Asked, by: By, _settings: Settings) -> Iterator[Done]:
    pages = [_ids(asked)] if asked.where is None else pages_of(connection, _meant("retry", asked))
    for page in pages:
        for one in retry_each(
            connection,
            list(page),
            from_node=asked.word(_FROM) or None,
            dry_run=False,
            actor=by.actor,
            reason=by.reason,
            several=asked.where is not None,
        ):
            is_left = isinstance(one, Refusal)
            line = _line(one.run_id, said_of_retry(one, dry_run=False))
            yield Done(Counter({"not retried" if is_left else "runs again": 1}), (line,), int(is_left))


def _preview_unpin(connection: Connection, asked: Asked, _settings: Settings) -> Preview:
    pins = {run_id: run.pinned_host for run_id, run in picked(connection, _ids(asked)).items()}
    hosts = {run_id: host and host.removeprefix(ANY_HOST) for run_id, host in pins.items()}
    return Preview(
        headline=_headline("Unpin", asked, len(hosts)),
        count=sum(bool(host) for host in hosts.values()),
        lines=tuple(
            _line(run_id, f"belongs to {host}" if host else "is no host's")
            for run_id, host in list(hosts.items())[:SHOWN_FIRST]
        ),
        notes=(_UNPIN_NOTE,),
        command=_command("unpin", asked),
        back=_back(asked),
    )


def _unpin(connection: Connection, asked: Asked, by: By, _settings: Settings) -> Iterator[Done]:
    jobs = HookJobRepository(connection)
    for run_id in _ids(asked):
        freed = jobs.unpin(run_id, actor=by.actor, reason=by.reason)
        if freed is None:
            raise UnknownRun(run_id)
        yield _told({run_id: said_of_unpin(freed[0])}, left=0 if freed[0] else 1)


def _preview_unpoison(connection: Connection, asked: Asked, _settings: Settings) -> Preview:
    if asked.where is not None:
        return replace(_by_filter(connection, "unpoison", "Unpoison", asked), notes=(_UNPOISON_NOTE,))
    was = statuses(connection, _ids(asked))
    poisoned = RunLinesRepository(connection).poisoned_among(was)
    return Preview(
        headline=_headline("Unpoison", asked, len(poisoned)),
        count=len(poisoned),
        lines=tuple(
            _line(run_id, status if run_id in poisoned else f"{status}; {said_of_unpoison(0)}")
            for run_id, status in list(was.items())[:SHOWN_FIRST]
        ),
        notes=(_UNPOISON_NOTE,),
        command=_command("unpoison", asked),
        back=_back(asked),
    )


def _unpoison(connection: Connection, asked: Asked, by: By, _settings: Settings) -> Iterator[Done]:
    if asked.where is not None:
        for page in unpoison_matching(
            connection, _meant("unpoison", asked), actor=by.actor, reason=by.reason
        ):
            yield Done(Counter({"tried again": len(page)}))
        return
    runs = _ids(asked)
    statuses(connection, runs)
    freed = DispatchEventRepository(connection).unpoison(runs, actor=by.actor, reason=by.reason)
    answers = {run_id: said_of_unpoison(freed.get(run_id, 0)) for run_id in runs}
    yield _told(answers, left=len(runs) - len(freed))


RUN_ACTS: Final = (
    Act(
        "run.cancel",
        "Cancel",
        target=run_target,
        preview=_preview_cancel,
        perform=_cancel,
        filter=_filter("cancel"),
        is_grave=True,
    ),
    Act(
        "run.retry",
        "Retry",
        target=run_target,
        preview=_preview_retry,
        perform=_retry,
        filter=_filter("retry"),
    ),
    Act("run.unpin", "Unpin", target=run_target, preview=_preview_unpin, perform=_unpin),
    Act(
        "run.unpoison",
        "Unpoison",
        target=run_target,
        preview=_preview_unpoison,
        perform=_unpoison,
        filter=_filter("unpoison"),
    ),
)
