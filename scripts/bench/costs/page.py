"""docs/cost-of-a-job.md out of what was measured, once or twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

HEAD: Final = """# What a job costs

Where the time and the write-ahead log of one job of each kind go. `scripts/bench/cost.py` measures it and
writes this page (`--page BEFORE.json AFTER.json`); [Statements](reference/statements.md) has each statement
whole, and [decision 0073](decisions/0073-what-a-job-writes.md) why it writes what it does.

<!-- not run: needs a server of its own and some minutes -->
```console
$ .venv/bin/python scripts/bench/cost.py --json after.json
```

- Real workers and orchestrators with their default settings, on an embedded server with fsync on; its
  checkpoints and autovacuum are put off: WAL, records and buffers are exact and hardly differ between two
  runs. Images of full pages are not among them. What differs by the hour is time: compare ratios.
- *server* is the processor time of the server's processes, *client* that of ours without start and end;
  *waits* and *preempted* are context switches that our process asked for and that it suffered; *calls* are
  those of the kernel by all its threads, as `strace` counts them; *bytes* are those of its connections.
- For `enqueue` a job is inserted, for `ingest` it is claimed and ended, for the last two both, and its run is
  advanced.
"""
_TOTALS: Final = (
    *("a job", "WAL, bytes", "records", "index entries", "commits", "buffers", "server, µs", "client, µs"),
    *("waits", "preempted", "calls", "bytes"),
)
_STATEMENT: Final = (
    "statement; with a `>` within a trigger",
    "calls a job",
    "µs a job, by the clock",
    "buffers",
)
_STATEMENT_MORE: Final = ("dirtied", "WAL records", "WAL bytes")
_FUNCTION: Final = (
    "function of the client, by cProfile, which slows it down",
    "calls",
    "s, its own",
    "s, all",
)
_MOST: Final = 14


def page(runs: Sequence[Mapping[str, Any]]) -> str:
    """The page; of two runs the first is what was before."""
    kinds = [cost["kind"] for cost in runs[-1]["costs"]]
    lines = [HEAD, _measured(runs), "", *_totals(runs)]
    for kind in kinds:
        lines += ["", f"## {kind[0].upper()}{kind[1:]}", "", *_of_kind([_cost(run, kind) for run in runs])]
    return "\n".join(lines).rstrip() + "\n"


def _measured(runs: Sequence[Mapping[str, Any]]) -> str:
    words = ("before", "after") if len(runs) > 1 else ("measured",)
    return "\n".join(
        f"- {word}: {run['date']}, PostgreSQL {run['postgres']}, {run['cores']} cores, load {run['load']}"
        for word, run in zip(words, runs, strict=True)
    )


def _totals(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from _header(_TOTALS)
    for cost in runs[-1]["costs"]:
        both = [_total(_cost(run, cost["kind"])) for run in runs]
        cells = [" → ".join(dict.fromkeys(column)) for column in zip(*both, strict=True)]
        yield f"| {cost['kind']} | {' | '.join(cells)} |"


def _total(cost: Mapping[str, Any]) -> list[str]:
    jobs, wal, clients = cost["jobs"], cost["server"]["wal"], cost["clients"].values()
    entries = sum(one["count"] for one in wal if "INSERT_" in one["kind"] and one["kind"].startswith("Btree"))
    client = sum(one["user_s"] + one["system_s"] for one in clients)
    top = [one for one in cost["server"]["statements"] if not one["nested"]]
    cpu, calls = cost["server_cpu_s"], cost["kernel_calls"]
    return [
        f"{sum(one['bytes'] for one in wal) / jobs:,.0f}",
        _per(sum(one["count"] for one in wal), jobs),
        _per(entries, jobs),
        _per(sum(one["count"] for one in wal if one["kind"] == "Transaction COMMIT"), jobs),
        _per(sum(one["buffers"] for one in top), jobs),
        "-" if cpu is None else f"{cpu / jobs * 1e6:,.0f}",
        f"{client / jobs * 1e6:,.0f}",
        _per(sum(one["waits"] for one in clients), jobs),
        _per(sum(one["preempted"] for one in clients), jobs),
        "-" if calls is None else _per(calls, jobs),
        f"{(cost['wire']['sent'] + cost['wire']['received']) / jobs:,.0f}",
    ]


def _of_kind(costs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from _header(("WAL of", "record", "a job", "bytes"))
    seen = [{(one["relation"], one["kind"]): one for one in cost["server"]["wal"]} for cost in costs]
    keys = sorted({key for one in seen for key in one}, key=lambda key: -_most(seen, costs, key))
    for relation, kind in keys[:_MOST]:
        counts, sizes = [], []
        for cost, found in zip(costs, seen, strict=True):
            one = found.get((relation, kind), {"count": 0, "bytes": 0})
            counts.append(_per(one["count"], cost["jobs"]))
            sizes.append(f"{one['bytes'] / cost['jobs']:,.1f}")
        yield f"| {relation or '-'} | {kind} | {_both(counts)} | {_both(sizes)} |"
    last = costs[-1]
    yield ""
    yield from _header((*_STATEMENT, *_STATEMENT_MORE))
    for one in last["server"]["statements"][:_MOST]:
        words = one["query"].replace("|", "\\|").replace("`", "")
        cells = [_per(one[name], last["jobs"]) for name in ("buffers", "dirtied", "wal_records", "wal_bytes")]
        yield (
            f"| {'> ' * one['nested']}`{words[:80].strip()}` | {_per(one['calls'], last['jobs'])} "
            f"| {one['ms'] / last['jobs'] * 1e3:,.1f} | {' | '.join(cells)} |"
        )
    if last["functions"]:
        yield ""
        yield from _header(_FUNCTION)
        yield from (
            f"| `{name}` | {rest} |" for name, _, rest in (one.partition(" | ") for one in last["functions"])
        )


def _header(names: Sequence[str]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"


def _most(seen: Sequence[Mapping[Any, Any]], costs: Sequence[Mapping[str, Any]], key: Any) -> float:
    return max(
        one[key]["bytes"] / cost["jobs"] if key in one else 0 for one, cost in zip(seen, costs, strict=True)
    )


def _both(values: Sequence[str]) -> str:
    return " → ".join(dict.fromkeys(values))


def _per(amount: float, jobs: int) -> str:
    return f"{amount / jobs:,.2f}"


def _cost(run: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next(dict(cost) for cost in run["costs"] if cost["kind"] == kind)
