"""Does what a history says, to real roles on a real server, and reports what was seen."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from chaos import wiring
from chaos.behaviours import BEHAVIOURS
from chaos.histories import History
from chaos.launcher import SCRIPTS, Launcher, children_of
from chaos.observing import LEFT, OPEN, SESSIONS, WATCH, Observation, observe, rows_of
from chaos.proxy import Proxy
from chaos.servers import ChaosServer
from chaos.steps import STEPS

assert wiring  # what is enqueued here is known by its name, and on its queue

_AGAIN_S: Final = 0.05
_STOPS_WITHIN_S: Final = 20.0
_ENDS_WITHIN_S: Final = 8.0
_LOOK_S: Final = 0.04
# A look at the tables is a query: often enough, and no load of its own beside a dozen other histories.
_LOOK_AT_TABLES_S: Final = 0.15
# What may want each processor at once before all that is waited for takes longer.
_AT_ONCE: Final = 3
# How much longer a lease is made there at most: with one that its owner gets no processor to renew, a worker
# that is well ends itself, and what it ran is rightly counted against.
_LONGEST_LEASE: Final = 4.0


@dataclass
class Role:
    """One process that is to be there, as a service manager keeps it."""

    name: str
    command: list[str]
    host: str
    via: str
    executes: bool
    # Only for scenarios: more of its environment, and a command that starts it.
    environ: dict[str, str] = field(default_factory=dict)
    prefix: list[str] = field(default_factory=list)
    pid: int = 0
    again_at: float = 0.0
    starts: int = 0


class Running:
    """One history under way: what its steps work on."""

    def __init__(
        self, history: History, server: ChaosServer, launcher: Launcher, proxy: Proxy, place: Path
    ) -> None:
        self.history, self.server, self.launcher, self.proxy, self.place = (
            history,
            server,
            launcher,
            proxy,
            place,
        )
        self.roles: dict[str, Role] = {}
        self.settings = settings_of(history, min(_LONGEST_LEASE, _crowding()))
        self.seen = Observation()
        self.dsn = server.database()
        self.threads: list[threading.Thread] = []
        self._admin: psycopg.Connection[Any] | None = None
        proxy.port("producer")

    # What the steps use.

    def admin(self) -> psycopg.Connection[Any]:
        """A connection of ours, which nothing befalls but the end of the server."""
        while self._admin is None or self._admin.closed or self._admin.broken:
            with suppress(psycopg.OperationalError):
                self._admin = psycopg.connect(self.dsn, autocommit=True, application_name="chaos")
                # A server that is told to time every statement out does not mean ours.
                self._admin.execute("SET statement_timeout = 0")
                break
            time.sleep(_LOOK_S)
        return self._admin

    def through(self, role: str) -> str:
        """The DSN through the proxy's port of this role."""
        plain = {"host": "127.0.0.1", "hostaddr": None, "sslmode": "disable", "gssencmode": "disable"}
        return make_conninfo("", **{**conninfo_to_dict(self.dsn), **plain, "port": self.proxy.port(role)})

    def start(self, role: Role) -> None:
        """Start it, or start it again."""
        through = self.through(role.name)
        around = {
            name: os.environ[name] for name in ("PATH", "HOME", "LANG", "VIRTUAL_ENV") if name in os.environ
        }
        environ = {
            **around,
            **self.settings,
            "QWF_DB_URL": through if role.via == "proxy" else self.dsn,
            "QWF_APP": "chaos.wiring",
            "QWF_HOST_LABEL": role.host,
            "QWF_LOCK_DIR": str(self.place / f"locks-{role.host}"),
            "QWF_DATA_DIR": str(self.place / "data"),
            "PYTHONPATH": str(SCRIPTS),
            "CHAOS_LEDGER": str(self.place / "ledger"),
            "CHAOS_DSN": self.dsn,
            "CHAOS_SCHEDULES": json.dumps(self.history.schedules),
            **({"QWF_HOOK_DIRS": str(self.place / "plugins")} if self.history.does("hooks") else {}),
            **role.environ,
        }
        log = self.place / f"{role.name}.log"
        role.pid = self.launcher.start(
            role.command,
            environ=environ,
            log=log,
            cwd=self.place,
            prefix=[*role.prefix, sys.executable, "-m", "queue_workflows"] if role.executes else [],
        )
        role.starts += 1
        self.seen.pids[role.pid] = role.name

    def signal(self, role: Role, number: int) -> None:
        """Send it a signal, if it lives."""
        if role.pid and self.launcher.status(role.pid) is None:
            with suppress(ProcessLookupError):
                os.kill(role.pid, number)

    def aside(self, run: Any, *args: Any) -> None:
        """Do something that takes its time beside all else."""
        thread = threading.Thread(target=run, args=args, daemon=True)
        self.threads.append(thread)
        thread.start()

    # The course of it.

    def run(self) -> Observation:
        """From the first step to the last process's end."""
        for host in ("h1", "h2"):
            (self.place / f"locks-{host}").mkdir(mode=0o700)
        # Roles look for hooks when they start, and the scripts are written when the run begins.
        (self.place / "plugins").mkdir()
        self.admin().execute(WATCH)
        began = time.monotonic()
        for step in self.history.steps:
            while (left := began + step["at"] - time.monotonic()) > 0:
                self._revive()
                time.sleep(min(left, _LOOK_S))
            self._revive()
            STEPS[step["do"]](self, step)
            self.seen.did[step["do"]] = self.seen.did.get(step["do"], 0) + 1
        self._heal()
        self.seen.bound_s = bound_of(self.history, self.settings)
        self._drain()
        self._stop()
        observe(self.admin(), self.seen, self.place)
        for name, count in self.proxy.did.items():
            self.seen.did[name] = count
        return self.seen

    def _revive(self) -> None:
        now = time.monotonic()
        for role in self.roles.values():
            status = self.launcher.status(role.pid) if role.pid else None
            if status is not None:
                self.seen.ends.append((role.name, " ".join(role.command[:3]), status))
                role.pid, role.again_at = 0, now + _AGAIN_S
            if not role.pid and now >= role.again_at:
                self.start(role)

    def _heal(self) -> None:
        """Nothing befalls anybody from here on; what was started is there, and what was stopped goes on."""
        self.proxy.heal()
        # What ticks is never drained.
        for name in [name for name, role in self.roles.items() if role.command[0] == "scheduler"]:
            role = self.roles.pop(name)
            self.signal(role, signal.SIGCONT)
            self.signal(role, signal.SIGTERM)
        for role in self.roles.values():
            self.signal(role, signal.SIGCONT)
        for thread in self.threads:
            thread.join(30)
        self.server.heal(self.dsn)
        for key in {step["key"] for step in self.history.steps if step["do"] == "limit"}:
            STEPS["limit"](self, {"key": key, "cap": max(_caps(self.history, key))})
        STEPS["control"](self, {"host": "*", "queue": "fetch", "desired": "on"})
        STEPS["control"](self, {"host": "h1", "queue": "fetch", "desired": "on"})
        for queue in self.queues():
            if not any(queue in role.command for role in self.roles.values()):
                # A shrunken history may have lost its only worker; what it says is then of no other defect.
                self.roles[f"spare-{queue}"] = Role(
                    f"spare-{queue}", ["worker", "--queue", queue], "h1", "socket", False
                )
        if self.history.does("run", "hooks") and not any(
            role.command[0] == "orchestrator" for role in self.roles.values()
        ):
            self.roles["spare-o"] = Role("spare-o", ["orchestrator"], "h1", "socket", False)

    def queues(self) -> list[str]:
        """The queues that something may be on."""
        return [
            "fetch",
            *(["cpu"] if self.history.runs() else []),
            *(["hooks"] if self.history.does("hooks") else []),
        ]

    def _drain(self) -> None:
        began = time.monotonic()
        while time.monotonic() < began + self.seen.bound_s * _crowding():
            self._revive()
            with suppress(psycopg.OperationalError):
                row = self.admin().execute(OPEN).fetchone()
                if row is not None and row[0] == 0:
                    self.seen.drained_s = time.monotonic() - began
                    return
            time.sleep(_LOOK_AT_TABLES_S)
        for kind, query in LEFT.items():
            self.seen.undrained += [
                f"{kind} {' '.join(map(str, row.values()))}" for row in rows_of(self.admin(), query)
            ]

    def _stop(self) -> None:
        for role in self.roles.values():
            self.signal(role, signal.SIGTERM)
        until = time.monotonic() + _STOPS_WITHIN_S * _crowding()
        for role in self.roles.values():
            while role.pid and (status := self.launcher.status(role.pid)) is None:
                if time.monotonic() > until:
                    self.seen.unstopped.append(
                        f"{role.name} {role.command} pid {role.pid} {_state_of(role.pid)}"
                    )
                    self.signal(role, signal.SIGKILL)
                    until += 5
                time.sleep(0.01)
            if role.pid:
                self.seen.ends.append((role.name, " ".join(role.command[:3]), status or 0))
        until = time.monotonic() + _ENDS_WITHIN_S * _crowding()
        while (left := children_of(self.launcher.pid)) and time.monotonic() < until:
            time.sleep(0.02)
        self.seen.left_processes = [f"{pid} {_state_of(pid)}" for pid in left]
        while (rows := rows_of(self.admin(), SESSIONS)) and time.monotonic() < until:
            time.sleep(0.02)
        self.seen.sessions = rows

    def close(self) -> None:
        """Leave nothing of it: no process, no connection, no database."""
        for _ in range(200):
            left = children_of(self.launcher.pid)
            if not left:
                break
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.proxy.forget()
        if self._admin is not None:
            self._admin.close()
        self.server.drop(self.dsn)


def _crowding() -> float:
    """How many times as many as we are meant for want this machine's processors, at least 1."""
    return max(1.0, os.getloadavg()[0] / (_AT_ONCE * (os.cpu_count() or 1)))


def _state_of(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        status = Path(f"/proc/{pid}/status").read_text()
        state = next(line for line in status.splitlines() if line.startswith("State"))
        return f"{state} {words[:200]}"
    return "gone"


def _caps(history: History, key: str) -> list[int]:
    return [step["cap"] for step in history.steps if step["do"] == "limit" and step["key"] == key]


def settings_of(history: History, crowding: float) -> dict[str, str]:
    """Its settings, with a lease for a machine that is so crowded."""
    return {**history.settings, "QWF_LEASE_S": f"{float(history.settings['QWF_LEASE_S']) * crowding:.2f}"}


def bound_of(history: History, settings: Mapping[str, str]) -> float:
    """How long all may take from the moment on when nothing happens any more, on a machine that is busy."""
    lease, crashes = float(settings["QWF_LEASE_S"]), int(settings["QWF_MAX_CRASHES"])
    attempts = int(settings["QWF_MAX_ATTEMPTS"])
    tasks = [job["task"] for job in history.jobs().values()]
    for run in history.runs().values():
        for node in run["document"]["nodes"]:
            tasks += [node["module"]] * max(1, len(node.get("for_each", {}).get("$value", [0])))
    kills = sum(BEHAVIOURS[task].kills or BEHAVIOURS[task].harms for task in tasks)
    hangs = sum(BEHAVIOURS[task].hangs for task in tasks)
    # A worker that dies is missed for its lease, and a job that kills may share one death first.
    # An interpreter that starts takes seconds on a busy machine, and a worker that is recycled starts many.
    recycles = any("--recycle-" in word for step in history.steps for word in step.get("command", []))
    kills += 2 * len(tasks) * recycles
    scripted = sum(step.get("takes_s", 0) for step in history.steps)
    return 30 + scripted + (kills * (crashes + 1) + hangs * attempts) * (lease + 3)


def run_history(
    history: History, server: ChaosServer, launcher: Launcher, proxy: Proxy, place: Path
) -> Observation:
    """One history from its start to its end, in a directory of its own, which is removed."""
    place.mkdir(mode=0o755, parents=True)
    running = Running(history, server, launcher, proxy, place)
    try:
        return running.run()
    finally:
        running.seen.logs = {
            log.name: log.read_text("utf-8", errors="replace")[-20_000:]
            for log in place.iterdir()
            if log.is_file()
        }
        running.close()
        if not os.environ.get("CHAOS_KEEP"):
            shutil.rmtree(place, ignore_errors=True)
