"""A durable function of ten steps, and processes that are killed while they run it, at a moment that is told.

Such a process is forked, as all that it takes is loaded, and works as a worker does; it is killed before the
statement that is told, while the server is at it, or with its answer in hand.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.waiting import WAIT_R

from queue_workflows import ingest_task
from queue_workflows.testing import drain
from queue_workflows.testing.databases import configured_database

STEPS: Final = tuple(f"step {number}" for number in range(10))
MOMENTS: Final = ("before", "at", "after")
RESULT: Final = list(range(10))


class Kill(NamedTuple):
    """When a process is killed: at which statement, and at which moment of that."""

    statement: int
    moment: str


def note(ledger: str, step: str) -> None:
    """Write down that a step was done, where no transaction takes it back."""
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{os.getpid()} {step}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def noted(ledger: Path) -> list[tuple[int, str]]:
    """Which process did which step, in order."""
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return [(int(pid), step) for pid, _, step in (line.partition(" ") for line in lines)]


@ingest_task("ten_steps", queue="fetch", durable=True, max_crashes=1000)
def ten_steps(reason: str | None, args: dict[str, Any], *, ctx: Any) -> list[int]:
    """Every third step writes to the database as well."""

    def do(number: int) -> int:
        note(args["ledger"], STEPS[number])
        if number % 3 == 2:
            ctx.connection().execute("INSERT INTO effects VALUES (%s, %s)", [ctx.id, number])
        return number

    return [ctx.step(STEPS[number], do, number) for number in range(10)]


@ingest_task("ten_steps_async", queue="fetch", durable=True, max_crashes=1000)
async def ten_steps_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> list[int]:
    """`ten_steps`, awaited."""

    async def do(number: int) -> int:
        note(args["ledger"], STEPS[number])
        if number % 3 == 2:
            connection = await ctx.connection()
            await connection.execute("INSERT INTO effects VALUES (%s, %s)", [ctx.id, number])
        return number

    return [await ctx.step(STEPS[number], do, number) for number in range(10)]


def ten_steps_node(inputs: dict[str, Any], *, ctx: Any) -> dict[str, Any]:
    """`ten_steps`, as a node of a workflow."""

    def do(number: int) -> int:
        note(inputs["ledger"], STEPS[number])
        if number % 3 == 2:
            ctx.connection().execute("INSERT INTO effects VALUES (%s, %s)", [ctx.id, number])
        return number

    return {"done": [ctx.step(STEPS[number], do, number) for number in range(10)]}


MODULES: Final = {"ten": SimpleNamespace(run=ten_steps_node, DURABLE=True)}
DOCUMENT: Final[dict[str, Any]] = {
    "name": "ten",
    "inputs": {"ledger": {}},
    "nodes": [
        {
            "id": "ten",
            "module": "ten",
            "queue": "cpu",
            "max_crashes": 1000,
            "inputs": {"ledger": {"$from": "inputs.ledger"}},
        }
    ],
    "outputs": {"done": {"$from": "ten.done"}},
}


class Processes:
    """Runs what is queued, each time in a process of its own."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._count: Synchronized[int] = multiprocessing.get_context("fork").Value("i", 0)

    def run(self, kill: Kill | None = None) -> int:
        """Work until nothing is left, or to that moment; how many statements it came to."""
        self._count.value = 0
        pid = os.fork()
        if pid == 0:
            try:
                _work(self._dsn, kill, self._count)
            finally:
                # Nothing of what the tests' process does at its end.
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL), status
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            # Nobody need wait until it lapses by itself.
            for table in ("ingest_jobs", "workflow_node_jobs"):
                connection.execute(
                    f"UPDATE {table} SET lease_expires_at = now() - interval '1 s' WHERE status = 'running'"
                )
        return int(self._count.value)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _until_sent(asking: Any) -> Any:
    """Ask, and die as soon as the statement is on its way."""
    with suppress(StopIteration):
        awaited = next(asking)
        while awaited != WAIT_R:
            awaited = asking.send((yield awaited))
    _die()


def _work(dsn: str, kill: Kill | None, count: Synchronized[int]) -> None:
    wait, wait_async = psycopg.Connection.wait, psycopg.AsyncConnection.wait

    def mortal(asking: Any) -> tuple[Any, bool]:
        """What to ask, and whether to die after it."""
        count.value += 1
        if kill is None or count.value != kill.statement:
            return asking, False
        if kill.moment == "before":
            _die()
        return (_until_sent(asking), False) if kill.moment == "at" else (asking, True)

    def waiting(self: Any, asking: Any, *args: Any, **options: Any) -> Any:
        asking, dies = mortal(asking)
        answer = wait(self, asking, *args, **options)
        if dies:
            _die()
        return answer

    async def waiting_async(self: Any, asking: Any, *args: Any, **options: Any) -> Any:
        asking, dies = mortal(asking)
        answer = await wait_async(self, asking, *args, **options)
        if dies:
            _die()
        return answer

    with configured_database(dsn), psycopg.connect(dsn, autocommit=True) as connection:
        psycopg.Connection.wait = waiting  # type: ignore[method-assign]
        psycopg.AsyncConnection.wait = waiting_async  # type: ignore[method-assign]
        drain(conn=connection, queues=["fetch", "cpu"], modules=MODULES)
    os._exit(0)
