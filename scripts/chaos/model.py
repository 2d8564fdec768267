"""What must be true of a history, judged from what was seen; nothing here asks the engine."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final

from chaos.behaviours import BEHAVIOURS
from chaos.histories import History
from chaos.observing import Observation

OVER: Final = frozenset({"completed", "failed", "cancelled", "skipped"})
# What a role may end with: done, unreachable, its guards, a stop, or a signal.
STATUSES: Final = frozenset({0, 69, 75, 76, 80, 130, 143})


def judge(history: History, seen: Observation) -> list[str]:
    """Every violation, as `kind: what`; none is what is hoped for."""
    found: list[str] = []
    for rule in _RULES:
        found += rule(history, seen)
    return found


def _drained(history: History, seen: Observation) -> Iterator[str]:
    if seen.drained_s is None:
        yield f"not drained: within {seen.bound_s:.0f} s, left: {'; '.join(seen.undrained[:8])}"


def _nothing_lost(history: History, seen: Observation) -> Iterator[str]:
    ids = {row["id"] for row in seen.jobs}
    for name, job in seen.committed.items():
        if job is not None and job not in ids:
            yield f"lost: job {name} was committed as {job} and is not there"
    known = {job for job in seen.committed.values() if job is not None}
    unknown = sum(job is None for job in seen.committed.values())
    strange = [
        row for row in seen.jobs
        if row["id"] not in known and row["schedule_name"] is None and not (row["dedupe_key"] or "").startswith("from-")
    ]
    if len(strange) > unknown:
        yield f"from nowhere: {len(strange)} rows that nobody enqueued, {[row['task_name'] for row in strange]}"
    for row in seen.jobs:
        if row["args"].get("never"):
            yield f"rolled back: job {row['id']} is there"
    keys = Counter((row["task_name"], row["dedupe_key"]) for row in seen.jobs if row["dedupe_key"])
    for key, count in keys.items():
        if count > 1:
            yield f"twice: {count} rows of the key {key}"


def _moves(history: History, seen: Observation) -> Iterator[str]:
    """One end a generation, by the attempt that holds the row."""
    ends: Counter[tuple[str, int, int]] = Counter()
    for move in seen.moves:
        key = (move["family"], move["job_id"], move["generation"])
        if move["now"] in OVER:
            ends[key] += 1
            if move["attempt"] != move["was_attempt"] and move["was"] == "running":
                yield f"fence: {key} was ended by attempt {move['attempt']}, not by {move['was_attempt']}"
            if move["now"] == "completed" and move["was"] not in ("running", "awaiting_input"):
                yield f"completed from {move['was']}: {key}"
        if move["was"] in OVER and move["now"] in OVER:
            yield f"ended twice: {key} was {move['was']} and became {move['now']}"
        if move["was"] in OVER and move["now"] == "running":
            yield f"ran after its end: {key}"
    for key, count in ends.items():
        if count > 1:
            yield f"ended {count} times in one generation: {key}"


def _results(history: History, seen: Observation) -> Iterator[str]:
    """A result is of the attempt that the row names, and that attempt wrote down that it ran, and that it ended."""
    began = {(line.family, line.job, line.attempt) for line in seen.lines if line.what == "B"}
    rows = [("ingest", row, row["result"]) for row in seen.jobs] + [("node", row, row["context_delta"]) for row in seen.nodes]
    for family, row, result in rows:
        if row["status"] != "completed" or row.get("node_module", "") is None:
            continue
        if (family, row["id"], row["attempt"]) not in began and not _lost_lines(history):
            yield f"unseen: {family} {row['id']} completed as attempt {row['attempt']}, which never began"
        said = result.get("attempt") if isinstance(result, dict) else None
        if said is not None and said != row["attempt"]:
            yield f"stale result: {family} {row['id']} has that of attempt {said}, and is at {row['attempt']}"
    twice = Counter((line.family, line.job, line.attempt) for line in seen.lines if line.what == "B" and line.family != "window")
    for key, count in twice.items():
        if count > 1 and not history.does("server"):
            # A server that lost a claim's commit may hand the same number out again.
            yield f"one attempt ran {count} times: {key}"


def _lost_lines(history: History) -> bool:
    """Whether a task took away from its whole process what the ledger is written with."""
    names = {job["task"] for job in history.jobs().values()} | {
        node["module"] for run in history.runs().values() for node in run["document"]["nodes"]
    }
    return bool(names & {"limits_resources", "opens_descriptors", "closes_descriptors", "changes_umask", "fills_memory", "lowers_recursion", "traces_everything", "replaces_time"})


def _outcomes(history: History, seen: Observation) -> Iterator[str]:
    """Each job came to what its task may come to; what is good was blamed for nothing."""
    meddled = history.does("cancel", "retry", "cancel_run", "retry_run")
    most = int(history.settings["QWF_MAX_CRASHES"])
    cut = Counter(
        (line.family, line.job) for line in seen.lines
        if line.what == "B" and not _has_end(seen, line)
    )
    for family, rows in (("ingest", seen.jobs), ("node", seen.nodes)):
        for row in rows:
            name = row["task_name"] if family == "ingest" else row["node_module"]
            if row["status"] not in OVER or name not in BEHAVIOURS:
                continue
            if row["status"] in BEHAVIOURS[name].ends or (meddled and row["status"] == "cancelled"):
                continue
            if family == "node" and row["status"] in ("cancelled", "skipped"):
                continue
            if row["status"] == "failed" and _may_be_blamed(history, row, most, cut[family, row["id"]]):
                continue
            error = (row["errors"] or [{}])[-1]
            yield f"outcome: {family} {row['id']} {name} {row['status']}, failures {row['failures']}, crashes {row['crash_count']}: {str(error)[:300]}"


def _has_end(seen: Observation, begin: Any) -> bool:
    ended = seen.__dict__.setdefault("_ended", {(line.family, line.job, line.attempt) for line in seen.lines if line.what == "E"})
    return (begin.family, begin.job, begin.attempt) in ended


def _may_be_blamed(history: History, row: dict[str, Any], most: int, cut: int) -> bool:
    """Whether its attempts were cut short as often as it takes, by a kill of ours or by a neighbour."""
    return row["crash_count"] >= most and cut >= most


def _counts(history: History, seen: Observation) -> Iterator[str]:
    """No job runs for ever: what kills is given up after so many, and no budget is overdrawn."""
    most, crashes = 2, int(history.settings["QWF_MAX_CRASHES"])
    troubles = sum(step["do"] in ("signal", "fault", "terminate", "server", "statement_timeout", "control") for step in history.steps)
    others = sum(BEHAVIOURS[job["task"]].kills or BEHAVIOURS[job["task"]].hangs or BEHAVIOURS[job["task"]].harms for job in history.jobs().values())
    for family, rows in (("ingest", seen.jobs), ("node", seen.nodes)):
        for row in rows:
            name = row["task_name"] if family == "ingest" else row["node_module"]
            if row["failures"] > most * row["generation"]:
                yield f"overdrawn: {family} {row['id']} {name} failed {row['failures']} times of {most}"
            begins = sum(line.what == "B" and line.family == family and line.job == row["id"] for line in seen.lines)
            allowed = row["generation"] * (most + 2 * crashes + 4) + 3 * troubles + 2 * others * crashes
            if begins > allowed:
                yield f"runs for ever: {family} {row['id']} {name} began {begins} times (at most {allowed}), crashes {row['crash_count']}, failures {row['failures']}"


def _events(history: History, seen: Observation) -> Iterator[str]:
    """A node that ends and its one event are one."""
    said = Counter((event["node_job_id"], event["generation"]) for event in seen.events if event["node_job_id"])
    for move in seen.moves:
        key = (move["job_id"], move["generation"])
        if move["family"] == "node" and move["now"] in ("completed", "failed") and move["was"] == "running" and said[key] != 1:
            yield f"events: node job {key} became {move['now']} with {said[key]} events"


def _overlaps(history: History, seen: Observation) -> Iterator[str]:
    """Limits, locks and what is exclusive, by what the tasks wrote down; an attempt lasts at least to its last line."""
    rows = {("ingest", row["id"]): row for row in seen.jobs} | {("node", row["id"]): row for row in seen.nodes}
    caps: dict[str, int] = {}
    for step in history.steps:
        if step["do"] == "limit":
            caps[step["key"]] = max(caps.get(step["key"], 0), step["cap"])
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for (family, job, _attempt, extra), (begin, end) in _spans(seen).items():
        row = rows.get((family, job))
        if family == "window":
            spans[extra].append((begin, end))
        elif row is not None:
            if row["limit_key"]:
                spans[row["limit_key"]].append((begin, end))
            spans[f"attempts of {family} {job}"].append((begin, end))
    for line in seen.lines:
        row = rows.get((line.family, line.job))
        if line.what == "B" and row is not None and row["host_lock"]:
            name = f"lock {row['host_lock'].removeprefix('elsewhere:')} {_host(history, seen, line.pid)}"
            spans[name].append(_spans(seen)[line.family, line.job, line.attempt, ""])
    for key, held in spans.items():
        cap = 1 if key.startswith(("exclusive:", "attempts of", "lock ")) else caps.get(key)
        if key.startswith("window:"):
            cap = {"window:w1": 1, "window:w2": 2}[key]
        if cap is not None and (at_once := _most_at_once(held)) > cap:
            yield f"exceeded: {at_once} at once of {key}, which has {cap}"


def _host(history: History, seen: Observation, pid: int) -> str:
    role = seen.pids.get(pid, "")
    return next((step["host"] for step in history.steps if step["do"] == "start" and step["role"] == role), role)


def _spans(seen: Observation) -> dict[tuple[str, int, int, str], tuple[int, int]]:
    if "_spans" not in seen.__dict__:
        found: dict[tuple[str, int, int, str], tuple[int, int]] = {}
        for line in seen.lines:
            key = (line.family, line.job, line.attempt, line.extra if line.family == "window" else "")
            begin, end = found.get(key, (line.at_ns, line.at_ns))
            found[key] = (min(begin, line.at_ns), max(end, line.at_ns))
        seen.__dict__["_spans"] = found
    return dict(seen.__dict__["_spans"])


def _most_at_once(spans: list[tuple[int, int]]) -> int:
    most = now = 0
    for _, change in sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans]):
        now += change
        most = max(most, now)
    return most


def _ticks(history: History, seen: Observation) -> Iterator[str]:
    """Each once, and none left out between the first and the last."""
    ticks = sorted(row["tick_at"] for row in seen.jobs if row["schedule_name"])
    for tick, count in Counter(ticks).items():
        if count > 1:
            yield f"ticked {count} times: {tick}"


def _left(history: History, seen: Observation) -> Iterator[str]:
    # What a killed worker's jobs left running is its supervisor's to end; a worker alone has none.
    fine = (0, 75, 76, 80, 130, 143)
    alone = any(os.waitstatus_to_exitcode(status) not in fine and what.startswith("worker") for _, what, status in seen.ends)
    if seen.left_processes and not alone:
        yield f"left running: {'; '.join(seen.left_processes[:4])}"
    for one in seen.unstopped:
        yield f"does not stop: {one}"
    if seen.sessions:
        yield f"left sessions: {seen.sessions[:3]}"
    if seen.slots and seen.drained_s is not None:
        yield f"left slots: {seen.slots[:4]}"


def _roles(history: History, seen: Observation) -> Iterator[str]:
    """Each role ended in a way that it may end in, and said nothing that is for its makers alone."""
    ordered = {job["args"].get("status") for job in history.jobs().values()} | {
        node["inputs"].get("status", {}).get("$value") for run in history.runs().values() for node in run["document"]["nodes"]
    }
    harmed = any(BEHAVIOURS[job["task"]].harms for job in history.jobs().values()) or any(
        BEHAVIOURS[node["module"]].harms for run in history.runs().values() for node in run["document"]["nodes"]
    )
    for role, what, status in seen.ends:
        code = os.waitstatus_to_exitcode(status)
        if code < 0 or code in STATUSES or code in ordered or harmed:
            continue
        yield f"status: {role} ({what}) ended with {code}"
    if not harmed:
        for one in dict.fromkeys(seen.tracebacks):
            yield f"traceback: {one}"


def _runs(history: History, seen: Observation) -> Iterator[str]:
    """A run whose nodes are all sure to do well is completed, if nobody meddled and no death was charged to it."""
    if history.does("cancel_run", "retry_run"):
        return
    status = {row["id"]: row["status"] for row in seen.runs}
    for name, run in history.runs().items():
        started = seen.started_runs.get(name)
        if started is None:
            continue
        if started not in status:
            yield f"lost: run {name}"
            continue
        sure = all(BEHAVIOURS[node["module"]].ends == ("completed",) for node in run["document"]["nodes"])
        failed = [row for row in seen.nodes if row["run_id"] == started and row["status"] == "failed"]
        if sure and not failed and status[started] in OVER and status[started] != "completed":
            yield f"run: {name} of good nodes is {status[started]}"


_RULES: Final = (
    *(_drained, _nothing_lost, _moves, _results, _outcomes, _counts, _events, _overlaps, _ticks, _left, _roles, _runs),
)
