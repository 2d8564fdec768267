"""The page's bounds: pages and filters by the clock, a large run, many tabs, and what a first load weighs."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Final

import httpx
import psycopg

from bench.harness.figures import Figure
from bench.harness.measuring import Bench
from bench.harness.servers import Server
from bench.operator_page.history import LIMIT, RARE, SCHEDULE, WORKER, WORKFLOW, History, put_history
from bench.operator_page.looks import Seen, figures_of, looked_at, open_page
from bench.operator_page.tabs import watch
from queue_workflows.views.runs.graph import MOST_BOXES, run_graph
from queue_workflows.web.pages.all import ADDRESSES

# The options that the script has beside those of the others: full, and in a quick look.
AMOUNTS: Final = {
    "rows": (1_000_000, 2_000, "jobs that are over, half of each family"),
    "waiting": (100_000, 200, "jobs that wait"),
    "nodes": (5_000, 200, "nodes of the large run"),
    "elements": (100_000, 300, "elements of the large node"),
    "looks": (30, 3, "looks at each page"),
    "tabs": (100, 10, "open tabs"),
    "seconds": (20, 3, "for how long the tabs are held open"),
}
# One listens, three read; two more may come and go, as the doctor's do.
MOST_CONNECTIONS: Final = 6
MOST_KB: Final = 60.0
FILTERS: Final = {
    "all": "",
    "waiting": "status:queued",
    "failed": "status:failed",
    "a queue": "queue:fetch",
    "a queue's failed": "queue:fetch status:failed",
    "a rare task": f"task:{RARE}",
    "an absent worker": "worker:nobody",
    "a frequent error": 'error:"timed out"',
    "an error that never was": 'error:"no such words"',
    "an alike error": 'error:"timed out after # s"',
    "a node": "node:n3",
    "old and completed": "status:completed older:20d",
    "young and cancelled": "status:cancelled newer:1h",
    "one family": "family:node",
}


def pages(bench: Bench) -> Sequence[Figure]:
    """Every address that there is, each at something usual of its kind."""
    history = _history(bench)
    places = {address.path: _place(address.path, history) for address in ADDRESSES}
    # By itself: what it shows is made anew beside the looks that come next.
    alone = {address.path: places.pop(address.path) for address in ADDRESSES if address.is_alone}
    looks = bench.amounts["looks"]
    seen, bare = looked_at(history.dsn, places, looks)
    of_itself, _ = looked_at(history.dsn, alone, looks)
    return figures_of("pages", {**seen, **of_itself}, bare)


def filters(bench: Bench) -> Sequence[Figure]:
    """The list of jobs, by what many match, few, or none; and that of runs."""
    history = _history(bench)
    places = {f"jobs, {name}": str(httpx.URL("/jobs", params={"q": q})) for name, q in FILTERS.items()}
    places["jobs, a run"] = f"/jobs?q=run:{history.ended_run}"
    for name, q in {"failed": "status:failed", "an absent workflow": "workflow:nothing"}.items():
        places[f"runs, {name}"] = str(httpx.URL("/runs", params={"q": q}))
    return figures_of("filters", *looked_at(history.dsn, places, bench.amounts["looks"]))


def large_runs(bench: Bench) -> Sequence[Figure]:
    """A run of many nodes, and a node of many elements beside a node of one."""
    history = _history(bench)
    large, each = f"/runs/{history.large_run}", f"/runs/{history.elements_run}"
    nodes, elements = f"{bench.amounts['nodes']:,} nodes", f"{bench.amounts['elements']:,} elements"
    one, one_open = "a node of one job", "a node of one job, which waits"
    places = {
        **{f"{nodes}: {view}": f"{large}?view={view}" for view in ("graph", "timeline", "nodes")},
        f"the run of {elements}": each,
        f"its timeline, {elements}": f"{each}?view=timeline",
        f"a node of {elements}": f"{each}/nodes/each",
        f"its failed ones of {elements}": f"{each}/nodes/each?state=failed",
        one: f"/runs/{history.ended_run}/nodes/n3",
        one_open: f"{large}/nodes/{history.open_node}",
    }
    seen, bare = looked_at(history.dsn, places, bench.amounts["looks"])
    with psycopg.connect(history.dsn) as connection:
        boxes = len(run_graph(connection, history.large_run).boxes)
    node = f"a node of {elements}"
    many = median(seen[node].ms)
    return [
        *figures_of("large-runs", seen, bare),
        Figure(
            *("large-runs", f"{nodes}: boxes of the graph", boxes, "boxes", "the bound", MOST_BOXES),
            *(boxes / MOST_BOXES, 1.0, True),
        ),
        Figure("large-runs", f"{nodes}: the page", seen[f"{nodes}: graph"].size / 1000, "kB"),
        *(
            Figure(
                *("large-runs", f"{node}, the median", many, "ms", beside, single), many / single, 2.0, True
            )
            for beside in (one, one_open)
            for single in (median(seen[beside].ms),)
        ),
        *_by_work(seen, node, (one, one_open)),
    ]


def _by_work(seen: Mapping[str, Seen], node: str, others: Sequence[str]) -> Iterator[Figure]:
    """A node beside others by what a look at it takes of a processor, which a busy machine leaves alone."""
    many = fmean(seen[node].worked_s) * 1000
    for beside in others:
        single = fmean(seen[beside].worked_s) * 1000
        if single:
            yield Figure(
                *("large-runs", f"{node}, work", many, "ms of a processor", beside, single),
                *(many / single, 2.0, True),
            )


def tabs(bench: Bench) -> Sequence[Figure]:
    """Many tabs on five views."""
    history, count, seconds = _history(bench), bench.amounts["tabs"], bench.amounts["seconds"]
    views = ("/", "/queues", "/jobs?q=status:queued", "/workers", f"/runs/{history.elements_run}")
    found = watch(history.dsn, views, count, seconds)
    rate = found.reads / found.seconds / len(views)
    said = f"{count:,} tabs on {len(views)} views"
    if found.silent:
        said += f", {found.silent} of which were sent nothing new"
    most = MOST_CONNECTIONS
    return [
        Figure(
            *("tabs", f"{said}: connections, the most", found.connections, "connections", "the bound", most),
            *(found.connections / most, 1.0, True),
        ),
        Figure(
            *("tabs", f"{said}: reads of each view", rate, "reads/s", "the bound", 1.0, rate, 1.0, True),
        ),
        Figure("tabs", f"{said}: sent, all together", found.size / found.seconds / 1000, "kB/s"),
    ]


def first_load(bench: Bench) -> Sequence[Figure]:
    """The overview with all that a browser loads with it, each gzipped."""
    history = _history(bench)
    with open_page(history.dsn) as app:
        sizes = asyncio.run(_sizes(httpx.ASGITransport(app)))
    whole = sum(sizes.values())
    return [
        Figure(
            *("first-load", "all of it, gzipped", whole, "kB", "the bound", MOST_KB),
            *(whole / MOST_KB, 1.0, True),
        ),
        *(Figure("first-load", name, size, "kB") for name, size in sizes.items()),
    ]


async def _sizes(transport: httpx.ASGITransport) -> dict[str, float]:
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        first = await client.get("/")
        sizes = {"overview": _gzipped(first.content)}
        for place in re.findall(r'(?:src|href)="(/static/[^"]+)"', first.text):
            sizes[place.rpartition("/")[2]] = _gzipped((await client.get(place)).content)
    return sizes


def _gzipped(content: bytes) -> float:
    return len(gzip.compress(content, 6)) / 1000


def _place(address: str, history: History) -> str:
    """The address of something usual of its kind."""
    answers, nodes = "/answer/" in address, "/nodes/" in address
    named = {
        "job": history.job,
        "queue": "fetch",
        "worker": WORKER,
        "host": "host1",
        "key": LIMIT,
        "workflow": WORKFLOW,
        "schedule": SCHEDULE,
        "node": "approve" if answers else "n3",
        "run": str(history.asking_run if answers or not nodes else history.ended_run),
    }
    if address == "/runs/{run}":
        named["run"] = str(history.ended_run)
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda part: named[part[1]], address)


def _history(bench: Bench) -> History:
    """One for all measures, as it takes longer to fill than to look at."""
    if bench.server not in _FILLED:
        names = {"ended": "rows", "waiting": "waiting", "nodes": "nodes", "elements": "elements"}
        much = {name: bench.amounts[amount] for name, amount in names.items()}
        _FILLED[bench.server] = put_history(bench.server.database(), **much, say=bench.say)
    return _FILLED[bench.server]


_FILLED: Final[dict[Server, History]] = {}
