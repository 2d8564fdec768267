"""What must be true of a history, judged from what was seen; nothing here asks the engine."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from chaos.behaviours import BEHAVIOURS, Behaviour
from chaos.histories import History
from chaos.ledger import Line
from chaos.observing import Observation

Span = tuple[int, int]
OVER: Final = frozenset({"completed", "failed", "cancelled", "skipped"})
# What a role may end with: done, unreachable, its guards, a stop, or a signal.
STATUSES: Final = frozenset({0, 69, 75, 76, 80, 130, 143})
# How a worker ends that has ended what its jobs left behind before.
IN_ORDER: Final = frozenset({0, 75, 76, 80, 130, 143})
# What they do to their process keeps it from writing into the ledger.
BLIND: Final = frozenset(
    {
        *("limits_resources", "opens_descriptors", "closes_descriptors", "changes_umask", "fills_memory"),
        *("lowers_recursion", "traces_everything", "replaces_time"),
    }
)
MOST_ATTEMPTS: Final = 2
_WINDOWS: Final = {"window:w1": 1, "window:w2": 2}
# How far apart the ticks of a schedule of a history are.
_SECONDS: Final = {"* * * * * *": 1, "*/2 * * * * *": 2}
# How long an attempt may go on that a server handed out once more, as it had forgotten the claim.
_LEARNS_NS: Final = 8 * 10**9
_INTERRUPT: Final = 2
_TROUBLES: Final = ("signal", "fault", "terminate", "server", "statement_timeout", "control")


def judge(history: History, seen: Observation) -> list[str]:
    """Every violation, as `kind: what`; none is what is hoped for."""
    return list(_Judgement(history, seen).all())


class _Judgement:
    """The promises one by one, over one history."""

    def __init__(self, history: History, seen: Observation) -> None:
        self.history, self.seen = history, seen
        self.most_crashes = int(history.settings["QWF_MAX_CRASHES"])

    def all(self) -> Iterator[str]:
        """What broke any of them."""
        for promise in (
            *(self.drained, self.nothing_lost, self.one_end, self.results, self.outcomes, self.counts),
            *(
                self.events,
                self.overlaps,
                self.ticks,
                self.nothing_left,
                self.ends_of_roles,
                self.runs,
                self.hooks,
            ),
        ):
            yield from promise()

    # What was seen, as it is looked for.

    @cached_property
    def rows(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Jobs by family and id."""
        found = {("ingest", row["id"]): {**row, "name": row["task_name"]} for row in self.seen.jobs}
        return found | {("node", row["id"]): {**row, "name": row["node_module"]} for row in self.seen.nodes}

    @cached_property
    def behaviours(self) -> list[Behaviour]:
        """Of all jobs and nodes that the history asks for."""
        names = [job["task"] for job in self.history.jobs().values()]
        names += [node["module"] for run in self.history.runs().values() for node in run["document"]["nodes"]]
        return [BEHAVIOURS[name] for name in names]

    @cached_property
    def begins(self) -> list[Line]:
        """Of jobs, not of windows in them."""
        return [line for line in self.seen.lines if line.what == "B" and line.family != "window"]

    @cached_property
    def begins_of(self) -> dict[tuple[str, int, int], list[Line]]:
        """The first lines of each attempt, of which there is one unless its number was handed out again."""
        found: dict[tuple[str, int, int], list[Line]] = defaultdict(list)
        for line in self.begins:
            found[line.family, line.job, line.attempt].append(line)
        return found

    @cached_property
    def spans(self) -> dict[Line, Span]:
        """How long each attempt ran at least, by its first line; its number may be handed out again."""
        found: dict[Line, Span] = {}
        latest: dict[tuple[str, int, int, int, str], Line] = {}
        for line in self.seen.lines:
            window = line.extra if line.family == "window" else ""
            attempt = (line.family, line.job, line.attempt, line.pid, window)
            first = latest.setdefault(attempt, line)
            if line.what == "B":
                first = latest[attempt] = line
            begin, end = found.get(first, (line.at_ns, line.at_ns))
            found[first] = (min(begin, line.at_ns), max(end, line.at_ns))
        return found

    def history_has(self, name: str) -> bool:
        """Whether it asks for such a task."""
        return any(one.name == name for one in self.behaviours)

    # The promises.

    def drained(self) -> Iterator[str]:
        """All is over within the bound."""
        if self.seen.drained_s is None:
            left = "; ".join(self.seen.undrained[:8])
            yield f"not drained: within {self.seen.bound_s:.0f} s, left: {left}"

    def nothing_lost(self) -> Iterator[str]:
        """What was committed is there, what was rolled back is not, and a key is there once."""
        jobs, committed = self.seen.jobs, self.seen.committed
        ids = {row["id"] for row in jobs}
        for name, job in committed.items():
            if job is not None and job not in ids:
                yield f"lost: job {name} was committed as {job} and is not there"
        known = {job for job in committed.values() if job is not None} | self.seen.raw
        strange = [row["task_name"] for row in jobs if row["id"] not in known and not _is_from_within(row)]
        if len(strange) > sum(job is None for job in committed.values()):
            yield f"from nowhere: {strange}"
        for row in jobs:
            if row["args"].get("never"):
                yield f"rolled back: job {row['id']} is there"
        keys = Counter((row["task_name"], row["dedupe_key"]) for row in jobs if row["dedupe_key"])
        yield from (f"twice: {count} rows of the key {key}" for key, count in keys.items() if count > 1)

    def one_end(self) -> Iterator[str]:
        """One end a generation, by the attempt that holds the row."""
        ends: Counter[tuple[str, int, int]] = Counter()
        for move in self.seen.moves:
            key, was, now = (move["family"], move["job_id"], move["generation"]), move["was"], move["now"]
            ends[key] += now in OVER
            if now in OVER and was == "running" and move["attempt"] != move["was_attempt"]:
                yield f"fence: {key} was ended by attempt {move['attempt']}, not by {move['was_attempt']}"
            if now == "completed" and was not in ("running", "awaiting_input"):
                yield f"completed from nowhere: {key} was {was}"
            if was in OVER and now == "running":
                yield f"ran after its end: {key}"
        yield from (f"ended twice: {key}, {count} times" for key, count in ends.items() if count > 1)

    def results(self) -> Iterator[str]:
        """A result is of the attempt that the row names, and that attempt wrote down that it ran."""
        began = Counter((line.family, line.job, line.attempt) for line in self.begins)
        is_blind = any(one.name in BLIND for one in self.behaviours)
        for (family, job), row in self.rows.items():
            if row["status"] != "completed" or row["name"] not in BEHAVIOURS:
                continue
            if not is_blind and not began[family, job, row["attempt"]]:
                yield f"unseen: {family} {job} completed as attempt {row['attempt']}, which never began"
            result = row.get("result") or row.get("context_delta")
            said = result.get("attempt") if isinstance(result, dict) else None
            if said not in (None, row["attempt"]):
                yield f"stale result: {family} {job} has that of attempt {said}, and is at {row['attempt']}"
        # A server that lost a claim's commit may hand the same number out again.
        if not self.history.does("server", "promote", "free"):
            yield from (f"one attempt ran twice: {key}, {n} times" for key, n in began.items() if n > 1)

    def outcomes(self) -> Iterator[str]:
        """Each job came to what its task may come to; what is good was blamed for nothing."""
        meddled = self.history.does("cancel", "retry", "cancel_run", "retry_run")
        ended = {(line.family, line.job, line.attempt) for line in self.seen.lines if line.what == "E"}
        cut = Counter(
            (line.family, line.job)
            for line in self.begins
            if (line.family, line.job, line.attempt) not in ended
        )
        for key, row in self.rows.items():
            status, name = row["status"], row["name"]
            if status not in OVER or name not in BEHAVIOURS or status in BEHAVIOURS[name].ends:
                continue
            # What no application writes is refused, or fails.
            if key[0] == "ingest" and key[1] in self.seen.raw:
                continue
            if status == "cancelled" and (meddled or key[0] == "node"):
                continue
            if status == "skipped" and key[0] == "node":
                continue
            # Its attempts were cut short as often as it takes, by a kill of ours or by a neighbour, some of
            # them before their first line.
            crashes = row["crash_count"]
            unseen = row["attempt"] - sum(began[:2] == key for began in self.begins_of)
            if status == "failed" and min(crashes, cut[key] + unseen) >= self.most_crashes:
                continue
            # What it met was not its own process any more: a neighbour had changed clocks, streams, limits.
            charged = row["failures"] + crashes if status == "failed" else 1
            if self._beside_harm(key, row["attempt"]) >= charged:
                continue
            error = str((row["errors"] or [{}])[-1])[:300]
            yield f"outcome: {key} {name} {status}, failures {row['failures']}, crashes {crashes}: {error}"

    def _beside_harm(self, key: tuple[str, int], attempts: int) -> int:
        """In how many of its attempts another job had harmed its process before its end, or may have."""
        is_blind = any(one.name in BLIND for one in self.behaviours)
        seen = {line.attempt: line for line in self.begins if (line.family, line.job) == key}
        harmed = sum(
            any(
                other.pid == line.pid
                and (other.family, other.job) != key
                and BEHAVIOURS[other.extra].harms
                and other.at_ns <= self.spans[line][1]
                for other in self.begins
            )
            for line in seen.values()
        )
        return harmed + (attempts - len(seen) if is_blind else 0)

    def counts(self) -> Iterator[str]:
        """No job runs for ever: what kills is given up after so many, and no budget is overdrawn."""
        troubles = sum(step["do"] in _TROUBLES for step in self.history.steps)
        others = sum(one.kills or one.hangs or one.harms for one in self.behaviours)
        began = Counter((line.family, line.job) for line in self.begins)
        for key, row in self.rows.items():
            generation, crashes = row["generation"], self.most_crashes
            if row["failures"] > MOST_ATTEMPTS * generation:
                yield f"overdrawn: {key} {row['name']} failed {row['failures']} times of {MOST_ATTEMPTS}"
            allowed = generation * (MOST_ATTEMPTS + 2 * crashes + 4) + 3 * troubles + 2 * others * crashes
            if began[key] > allowed:
                counted = f"crashes {row['crash_count']}, failures {row['failures']}"
                times = f"{began[key]} times (at most {allowed})"
                yield f"runs for ever: {key} {row['name']} began {times}, {counted}"

    def events(self) -> Iterator[str]:
        """A node that ends and its one event are one."""
        said = Counter((event["node_job_id"], event["generation"]) for event in self.seen.events)
        for move in self.seen.moves:
            key = (move["job_id"], move["generation"])
            is_end = move["now"] in ("completed", "failed") and move["was"] == "running"
            if move["family"] != "node" or not is_end:
                continue
            # A hook's first attempt says so too, as its step waits for no more than that.
            is_hook = self.rows[move["family"], move["job_id"]]["name"] not in BEHAVIOURS
            if said[key] < 1 or (said[key] > 1 and not is_hook):
                yield f"events: node job {key} became {move['now']} with {said[key]} events"

    def overlaps(self) -> Iterator[str]:
        """Limits, locks and what is exclusive, by what the tasks wrote down."""
        caps: dict[str, int] = dict(_WINDOWS)
        for step in self.history.steps:
            if step["do"] == "limit":
                caps[step["key"]] = max(caps.get(step["key"], 0), step["cap"])
        for key, held in self._held().items():
            cap = 1 if key.startswith(("exclusive:", "attempts of", "lock ")) else caps.get(key)
            if cap is not None and (at_once := _most_at_once(held)) > cap:
                yield f"exceeded: {at_once} at once of {key}, which has {cap}"

    def _span(self, line: Line) -> Span:
        """How long an attempt had what it has: until another worker began it too, if it ends soon after.

        A claim need not be on disk, so that a server that crashes may hand the same number out again.
        """
        begin, end = self.spans[line]
        if self.history.does("server", "promote", "free"):
            for other in self.begins_of[line.family, line.job, line.attempt]:
                if other.pid != line.pid and begin < other.at_ns < end <= other.at_ns + _LEARNS_NS:
                    end = other.at_ns - 1
        return begin, end

    def _held(self) -> dict[str, list[Span]]:
        """When somebody had what is scarce, by its name."""
        held: dict[str, list[Span]] = defaultdict(list)
        for line in self.spans:
            span = self._span(line)
            family, job = line.family, line.job
            if family == "window":
                held[line.extra].append(span)
            elif row := self.rows.get((family, job)):
                held[f"attempts of {family} {job}"].append(span)
                if row["limit_key"]:
                    held[row["limit_key"]].append(span)
        for line in self.begins:
            lock = (self.rows.get((line.family, line.job)) or {}).get("host_lock")
            if lock:
                name = f"lock {lock.removeprefix('elsewhere:')} {self._host(line.pid)}"
                held[name].append(self.spans[line])
        return held

    def _host(self, pid: int) -> str:
        role = self.seen.pids.get(pid, "")
        starts = [step for step in self.history.steps if step["do"] == "start" and step["role"] == role]
        return str(starts[0]["host"]) if starts else role

    def ticks(self) -> Iterator[str]:
        """Each once, and none between two others left out: these schedules catch up on all."""
        ticks = Counter(row["tick_at"] for row in self.seen.jobs if row["schedule_name"])
        yield from (f"ticked twice: {tick}, {count} times" for tick, count in ticks.items() if count > 1)
        periods = [_SECONDS[schedule["cron"]] for schedule in self.history.schedules]
        if len(periods) == 1:
            seen = sorted(datetime.fromisoformat(tick) for tick in ticks)
            for one, following in pairwise(seen):
                if (following - one).total_seconds() > periods[0]:
                    yield f"tick left out: nothing between {one} and {following}"

    def nothing_left(self) -> Iterator[str]:
        """No process, no session, no slot."""
        seen = self.seen
        # What a killed worker's jobs left running is its supervisor's to end; a worker alone has none.
        was_killed = any(
            what.startswith("worker") and os.waitstatus_to_exitcode(status) not in IN_ORDER
            for _, what, status in seen.ends
        )
        is_excused = was_killed or self.history_has("exits_as_ordered") or self._hides_a_daemon()
        if seen.left_processes and not is_excused:
            yield f"left running: {'; '.join(seen.left_processes[:4])}"
        yield from (f"does not stop: {one}" for one in seen.unstopped)
        if seen.sessions:
            yield f"left sessions: {str(seen.sessions[:3])[:300]}"
        if seen.slots and seen.drained_s is not None:
            yield f"left slots: {seen.slots[:4]}"

    def _hides_a_daemon(self) -> bool:
        """Whether a daemon was begun while a neighbour emptied the environment, where its mark stands."""
        wiped, left = (
            [(line.pid, *self.spans[line]) for line in self.begins if line.extra == name]
            for name in ("changes_environment", "leaves_a_daemon")
        )
        return any(
            pid == other and begin <= until and since <= end
            for pid, begin, end in wiped
            for other, since, until in left
        )

    def ends_of_roles(self) -> Iterator[str]:
        """Each ended in a way that it may end in, and said nothing that is for its makers alone."""
        if any(one.harms for one in self.behaviours):
            return
        texts = [str(step) for step in self.history.steps]
        for role, what, status in self.seen.ends:
            code = os.waitstatus_to_exitcode(status)
            ordered = any(f"'status': {code}}}" in text or f"{{'$value': {code}}}" in text for text in texts)
            if code >= 0 and code not in STATUSES and not ordered and not self._met_no_handler(role, code):
                yield f"status: {role} ({what}) ended with {code}"
        yield from (f"traceback: {one}" for one in dict.fromkeys(self.seen.tracebacks))

    def _met_no_handler(self, role: str, code: int) -> bool:
        """Whether Ctrl-C may have met an interpreter that had not yet come to our first line."""
        steps = [step for step in self.history.steps if step.get("role") == role]
        starts = any(step["do"] == "start" and step["executes"] for step in steps)
        return code == 1 and starts and any(step.get("signal") == _INTERRUPT for step in steps)

    def runs(self) -> Iterator[str]:
        """A run whose nodes are all sure to do well is completed, where none was charged with a death."""
        if self.history.does("cancel_run", "retry_run"):
            return
        status = {row["id"]: row["status"] for row in self.seen.runs}
        failed = {row["run_id"] for row in self.seen.nodes if row["status"] == "failed"}
        for name, run in self.history.runs().items():
            started = self.seen.started_runs.get(name)
            if started is None:
                continue
            if started not in status:
                yield f"lost: run {name}"
                continue
            is_sure = all(
                BEHAVIOURS[node["module"]].ends == ("completed",) for node in run["document"]["nodes"]
            )
            if is_sure and started not in failed and status[started] in OVER - {"completed"}:
                yield f"run: {name} of good nodes is {status[started]}"

    def hooks(self) -> Iterator[str]:
        """A run of hooks that all end well is completed, where nothing befell anybody."""
        status = {row["id"]: row["status"] for row in self.seen.runs}
        for step in self.history.steps:
            started = self.seen.started_runs.get(step.get("name", "")) if step["do"] == "hooks" else None
            if started is None:
                continue
            if started not in status:
                yield f"lost: run {step['name']} of hooks"
            elif (
                step.get("ends_well") and status[started] != "completed" and not self.history.does(*_TROUBLES)
            ):
                yield f"run: {step['name']} of good hooks is {status[started]}"


def _is_from_within(row: dict[str, Any]) -> bool:
    """Whether a schedule or another job made it."""
    return row["schedule_name"] is not None or (row["dedupe_key"] or "").startswith("from-")


def _most_at_once(spans: list[Span]) -> int:
    most = now = 0
    for _, change in sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans]):
        now += change
        most = max(most, now)
    return most
