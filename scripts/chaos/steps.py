"""What a step of a history does, by its name."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from chaos.launcher import children_of
from queue_workflows import (
    IngestJobRepository,
    LimitRepository,
    NewIngestJob,
    QwfError,
    WorkerControlRepository,
    cancel_run,
    compile_hooks,
    enqueue_ingest_job,
    enqueue_many,
    retry_run,
    start_run,
)

if TYPE_CHECKING:
    from chaos.running import Running

Step = dict[str, Any]
_TERMINATE: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'qwf:%%' ORDER BY backend_start DESC LIMIT %s
"""
_CANCEL: Final = _TERMINATE.replace("pg_terminate_backend", "pg_cancel_backend")
_LISTENERS: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'qwf:%' AND query ILIKE '%listen%'
"""
_TRIES: Final = 5
_HOGS: Final = 70


def start(running: Running, step: Step) -> None:
    """A role that is to be there from now on."""
    from chaos.running import Role

    role = Role(step["role"], step["command"], step["host"], step["via"], step["executes"])
    role.environ, role.prefix = step.get("environ", {}), step.get("prefix", [])
    running.proxy.port(role.name)
    running.roles[role.name] = role
    running.start(role)


def enqueue(running: Running, step: Step) -> None:
    """Each job in a transaction of its own; where the answer to a commit is lost, nobody knows."""
    dsn = running.through("producer") if step["via"] == "proxy" else running.dsn

    def produce() -> None:
        for job in step["jobs"]:
            running.seen.committed[job["name"]] = _enqueued(dsn, job)

    running.aside(produce)


def _enqueued(dsn: str, job: dict[str, Any]) -> int | None:
    options = {key: value for key, value in job.items() if key not in ("name", "task", "args")}
    for _ in range(_TRIES if "dedupe_key" in job else 1):
        with suppress(psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.QueryCanceled):
            with psycopg.connect(dsn, connect_timeout=2, application_name="producer") as connection:
                made = enqueue_ingest_job(
                    job["task"],
                    queue="fetch",
                    args=job["args"],
                    reason=job["name"],
                    conn=connection,
                    **options,
                )
            return made.id
        time.sleep(0.1)
    return None


def raw(running: Running, step: Step) -> None:
    """Rows that a producer writes past the repository: what the server takes must come to an end."""
    for row in step["rows"]:
        text = (
            f"INSERT INTO ingest_jobs (task_name, queue, {row['column']})"
            f" VALUES ('quick', 'fetch', {row['value']}) RETURNING id"
        )
        with _patient():
            taken = running.admin().execute(text.encode()).fetchone()
            running.seen.raw.update(taken or ())


def signal(running: Running, step: Step) -> None:
    """To one role; of a supervisor to one of its workers, where that is said."""
    role = running.roles.get(step["role"])
    if role is None:
        return
    below = children_of(role.pid) if step.get("below") and role.command[0] == "supervisor" else []
    if below:
        with suppress(ProcessLookupError):
            os.kill(below[0], step["signal"])
    else:
        running.signal(role, step["signal"])


def limit(running: Running, step: Step) -> None:
    """A cap, as an operator sets it."""
    with _patient():
        LimitRepository(running.admin()).set(step["key"], step["cap"], actor="chaos")


def control(running: Running, step: Step) -> None:
    """Pause, off, on."""
    with _patient():
        control = WorkerControlRepository(running.admin())
        if step["desired"] == "on":
            control.clear(step["host"], step["queue"], actor="chaos")
        else:
            control.set(step["host"], step["queue"], step["desired"], actor="chaos")


def cancel(running: Running, step: Step) -> None:
    """One job."""
    job = running.seen.committed.get(step["job"])
    if job is not None:
        with _patient():
            IngestJobRepository(running.admin()).cancel(job, actor="chaos")


def retry(running: Running, step: Step) -> None:
    """One job, if it is over."""
    job = running.seen.committed.get(step["job"])
    if job is not None:
        with _patient():
            IngestJobRepository(running.admin()).retry_many([job], actor="chaos")


def run(running: Running, step: Step) -> None:
    """Start a run of a document."""
    with _patient():
        running.seen.started_runs[step["name"]] = str(start_run(step["document"], conn=running.admin()).id)


def cancel_a_run(running: Running, step: Step) -> None:
    """One run."""
    if step["run"] in running.seen.started_runs:
        with _patient():
            cancel_run(running.seen.started_runs[step["run"]], conn=running.admin(), actor="chaos")


def retry_a_run(running: Running, step: Step) -> None:
    """One run, if it is over."""
    if step["run"] in running.seen.started_runs:
        with _patient():
            retry_run(running.seen.started_runs[step["run"]], conn=running.admin(), actor="chaos")


def fault(running: Running, step: Step) -> None:
    """What befalls connections from now on."""
    running.proxy.fault(step["role"], **step["what"])


def terminate(running: Running, step: Step) -> None:
    """Sessions of roles, or what they are at."""
    with _patient():
        running.admin().execute(_TERMINATE if step["backend"] else _CANCEL, [step["how_many"]])


def server(running: Running, step: Step) -> None:
    """The server itself."""
    if step["how"] == "immediate":
        running.server.kill()
    else:
        running.server.crash(running.dsn)


def promote(running: Running, _step: Step) -> None:
    """The standby takes over."""
    running.server.promote()


def fill(running: Running, _step: Step) -> None:
    """The volume of the WAL is full."""
    running.server.fill()


def free(running: Running, _step: Step) -> None:
    """There is room on it again."""
    running.server.free()


def clock(running: Running, step: Step) -> None:
    """The wall clock of the roles that read it from this file jumps."""
    new = running.place / "clock.new"
    new.write_text(step["off"] + "\n")
    new.replace(running.place / "clock")


def statement_timeout(running: Running, step: Step) -> None:
    """For every session that begins from now on, and an end to those that are there."""
    name = sql.Identifier(psycopg.conninfo.conninfo_to_dict(running.dsn)["dbname"])
    with _patient():
        admin = running.admin()
        admin.execute(sql.SQL("ALTER DATABASE {} SET statement_timeout = {}").format(name, step["ms"]))
        admin.execute(_TERMINATE, [100])


def lock_table(running: Running, step: Step) -> None:
    """As an ALTER TABLE does."""

    def hold() -> None:
        with suppress(psycopg.Error), psycopg.connect(running.dsn) as connection:
            connection.execute(
                sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(step["table"]))
            )
            time.sleep(step["for_s"])
            connection.rollback()

    running.aside(hold)


def pin(running: Running, step: Step) -> None:
    """A transaction with a snapshot stays open: nothing dead is forgotten meanwhile."""

    def hold() -> None:
        with suppress(psycopg.Error), psycopg.connect(running.dsn) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT count(*) FROM ingest_jobs")
            time.sleep(step["for_s"])
            connection.rollback()

    running.aside(hold)


def hog(running: Running, step: Step) -> None:
    """Somebody takes every connection that there is."""

    def hold() -> None:
        taken = []
        with suppress(psycopg.Error):
            for _ in range(_HOGS):
                taken.append(psycopg.connect(running.dsn, connect_timeout=2))
        time.sleep(step["for_s"])
        for one in taken:
            one.close()

    running.aside(hold)


def many(running: Running, step: Step) -> None:
    """A load of short jobs, in one transaction."""
    jobs = [
        NewIngestJob(task_name=step["task"], queue="fetch", args=step.get("args", {}))
        for _ in range(step["count"])
    ]

    def produce() -> None:
        with psycopg.connect(running.dsn, autocommit=True, application_name="producer") as connection:
            for number, made in enumerate(enqueue_many(jobs, conn=connection)):
                running.seen.committed[f"m{step['at']}-{number}"] = made.id

    running.aside(produce)


def listeners(running: Running, step: Step) -> None:
    """End sessions between LISTEN and what they do next, again and again for a while."""

    def end() -> None:
        until = time.monotonic() + step["for_s"]
        while time.monotonic() < until:
            with suppress(psycopg.Error), psycopg.connect(running.dsn, autocommit=True) as connection:
                connection.execute(_LISTENERS)
            time.sleep(step["every_s"])

    running.aside(end)


def hooks(running: Running, step: Step) -> None:
    """A run of hook scripts, which are written for it."""
    place = running.place / "plugins" / "chaos"
    place.mkdir(parents=True)
    for name, text in step["scripts"].items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    with _patient():
        document = compile_hooks("Page", [str(running.place / "plugins")])
        running.seen.started_runs[step["name"]] = str(start_run(document, {}, conn=running.admin()).id)


class _patient(suppress):
    """What an operator asks for is refused, or not heard, without an end to the history."""

    def __init__(self) -> None:
        super().__init__(psycopg.Error, QwfError)


STEPS: Final = {
    "start": start,
    "enqueue": enqueue,
    "raw": raw,
    "signal": signal,
    "limit": limit,
    "control": control,
    "cancel": cancel,
    "retry": retry,
    "run": run,
    "cancel_run": cancel_a_run,
    "retry_run": retry_a_run,
    "fault": fault,
    "terminate": terminate,
    "server": server,
    "clock": clock,
    "statement_timeout": statement_timeout,
    "lock_table": lock_table,
    "pin": pin,
    "hog": hog,
    "many": many,
    "listeners": listeners,
    "hooks": hooks,
    "promote": promote,
    "fill": fill,
    "free": free,
}
