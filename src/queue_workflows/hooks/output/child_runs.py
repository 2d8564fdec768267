"""A record of a discovered subject starts a run of its own: a crawl is a tree of runs.

    crawl (depth 0) ──Run records──> runs at depth 1 ──> runs at depth 2 … up to the crawl's `max_depth`

The run that a crawl began with says how far it goes, by its inputs: `max_depth` (0 if absent: nowhere),
`url_allow` and `url_deny` (regular expressions; an URL has to match one of the first, if there are any, and
none of the second). Each URL is started once in a crawl, however many pages name it and however often a hook
is tried.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urldefrag, urljoin, urlsplit, urlunsplit

from queue_workflows.errors import QwfError
from queue_workflows.hooks.output.record_types import RecordContext
from queue_workflows.repositories.jobs.enqueue import current_limits
from queue_workflows.repositories.runs.labels import CRAWL, CRAWL_DEPTH, labels_below, labels_of_tree
from queue_workflows.repositories.runs.runs import RunRepository
from queue_workflows.repositories.runs.tree import RunTreeRepository
from queue_workflows.workflow.document.load import Document, compiled
from queue_workflows.workflow.providing import find_document

if TYPE_CHECKING:
    from queue_workflows.models import WorkflowRun

DEEPEST: Final = 64
_SCHEMES: Final = frozenset({"http", "https"})
_LONGEST: Final = 4_096
# What a context knows of runs that are yet to be started.
_FOUND: Final = "found"


class FoundRun(NamedTuple):
    """A run that is to be started for a record: its line, its type, its document, its key and its inputs."""

    line_no: int
    kind: str
    document: Document
    key: str
    inputs_json: str


def discover(record: dict[str, Any], ctx: RecordContext) -> None:
    """Note the run of a record for `start_discovered`, unless the crawl does not go there."""
    parent = run_of(ctx)
    if parent.set_up_by == parent.id:
        raise ValueError("a hook that sets up a tree begins no run: its first run does, and those below that")
    if _depth_of(parent) >= _max_depth(parent) or parent.cancel_requested_at is not None:
        return
    url = normal_url(record.get("url"), base=parent.inputs.get("url"))
    if url is None or not _is_wanted(url, parent.inputs):
        return
    root = _root(parent)
    document = _document(record, parent)
    inputs = document.checked_inputs({**parent.inputs, **_given(record), "url": url})
    if document.name == parent.workflow_name and url == _root_url(root, parent, ctx):
        return
    key = f"{CRAWL}:{root}:{hashlib.sha256(url.encode()).hexdigest()[:40]}"
    text = current_limits().json_object("inputs", inputs)
    found = FoundRun(ctx.line_no, str(record.get("type", "")), document, key, text)
    ctx.known.setdefault(_FOUND, []).append(found)


def take_found(ctx: RecordContext) -> list[FoundRun]:
    """The runs that were noted since this was asked last."""
    found: list[FoundRun] = ctx.known.pop(_FOUND, [])
    return found


def start_discovered(found: Iterable[FoundRun], ctx: RecordContext) -> None:
    """Start these runs, each page's once in the crawl, in one statement for those of a workflow."""
    documents: dict[str, Document] = {}
    inputs: dict[str, dict[str, str]] = {}
    for one in found:
        documents[one.document.name] = one.document
        inputs.setdefault(one.document.name, {}).setdefault(one.key, one.inputs_json)
    parent = run_of(ctx)
    crawl = labels_of_tree(_root(parent), _depth_of(parent) + 1)
    tree = RunTreeRepository(ctx.conn)
    cap = tree.cap_of(parent.id)
    for name in sorted(inputs):
        document = documents[name]
        RunRepository(ctx.conn, payload_limits=current_limits()).insert_found(
            name,
            spec=document.snapshot(),
            spec_hash=document.hash,
            priority=parent.priority,
            labels={**document.labels, **labels_below(parent.labels), **crawl},
            parcel_id=parent.parcel_id,
            traceparent=parent.traceparent,
            parent_run_id=parent.id,
            depth=parent.depth + 1,
            inputs=inputs[name],
            capped_by=cap,
            set_up_by=parent.set_up_by,
        )
    if cap is not None and inputs:
        tree.ask_to_admit(cap)


def normal_url(given: object, *, base: object = None) -> str | None:
    """An URL as a crawl tells it from others, without its fragment; None for what is no page's."""
    if not isinstance(given, str) or not given.strip():
        raise ValueError(f"a discovered run has a `url`, not {given!r:.80}")
    if len(given) > _LONGEST:
        raise ValueError(f"the url has {len(given):,} characters, more than {_LONGEST:,}")
    joined = urljoin(base, given.strip()) if isinstance(base, str) else given.strip()
    parts = urlsplit(urldefrag(joined).url)
    if parts.scheme.lower() not in _SCHEMES or not parts.hostname:
        return None
    user, at, host = parts.netloc.rpartition("@")
    host = host.lower()
    for scheme, port in (("http", ":80"), ("https", ":443")):
        if parts.scheme.lower() == scheme:
            host = host.removesuffix(port)
    return urlunsplit((parts.scheme.lower(), user + at + host, parts.path or "/", parts.query, ""))


def _is_wanted(url: str, inputs: dict[str, Any]) -> bool:
    allowed, denied = _patterns(inputs, "url_allow"), _patterns(inputs, "url_deny")
    if allowed and not any(pattern.search(url) for pattern in allowed):
        return False
    return not any(pattern.search(url) for pattern in denied)


def _patterns(inputs: dict[str, Any], name: str) -> list[re.Pattern[str]]:
    given = inputs.get(name) or []
    try:
        return [re.compile(each) for each in ([given] if isinstance(given, str) else given)]
    except (re.error, TypeError) as wrong:
        raise ValueError(f"{name} of the crawl is no list of regular expressions: {wrong}") from None


def run_of(ctx: RecordContext) -> WorkflowRun:
    """The run of the hook that said it, looked up once."""
    run: WorkflowRun | None = ctx.known.get("run")
    if run is None:
        run = RunRepository(ctx.conn).fetch(ctx.run_id)
        if run is None:
            raise QwfError(f"run {ctx.run_id} is gone")
        ctx.known["run"] = run
    return run


def _root(parent: WorkflowRun) -> uuid.UUID:
    """The run that the crawl began with."""
    return uuid.UUID(str(parent.labels.get(CRAWL, parent.id)))


def _depth_of(run: WorkflowRun) -> int:
    depth = run.labels.get(CRAWL_DEPTH, 0)
    return depth if isinstance(depth, int) else 0


def _max_depth(run: WorkflowRun) -> int:
    given = run.inputs.get("max_depth", 0)
    if isinstance(given, bool) or not isinstance(given, int):
        raise ValueError(f"max_depth of the crawl is no whole number: {given!r:.80}")
    return min(given, DEEPEST)


def _root_url(root: uuid.UUID, parent: WorkflowRun, ctx: RecordContext) -> str | None:
    """The page that the crawl began with, which was started before anything had its key."""
    if "root_url" not in ctx.known:
        begun = parent if root == parent.id else RunRepository(ctx.conn).fetch(root)
        url = begun.inputs.get("url") if begun is not None else None
        ctx.known["root_url"] = normal_url(url) if isinstance(url, str) and url else None
    found: str | None = ctx.known["root_url"]
    return found


def _document(record: dict[str, Any], parent: WorkflowRun) -> Document:
    name = record.get("workflow", parent.workflow_name)
    if name == parent.workflow_name:
        return compiled(parent.spec, parent.spec_hash)
    if not isinstance(name, str):
        raise ValueError(f"`workflow` is a name, not {name!r:.80}")
    # What a run with which a tree begins would set up is not set up within a tree.
    found = find_document(name)
    return found.tree or found


def _given(record: dict[str, Any]) -> dict[str, Any]:
    """What else the record says of the new run; how far a crawl goes is not for a page to say."""
    inputs = record.get("inputs", {})
    if not isinstance(inputs, dict):
        raise ValueError(f"`inputs` is an object, not {inputs!r:.80}")
    return {key: value for key, value in inputs.items() if key not in {"max_depth", "url_allow", "url_deny"}}
