"""Tasks that use what they are given of the engine, rightly and wrongly."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import psycopg

from chaos.behaviours import BAD, GOOD, behaviour
from chaos.ledger import dsn, monotonic, sleep, work, write
from queue_workflows import HostLock, IngestJobRepository, LeaseLost, enqueue_ingest_job

# Longer than any step of a history keeps the database from answering, shorter than a job may take.
_ASKS_FOR_S: Final = 5.0


def _well(ctx: Any) -> dict[str, Any]:
    return {"attempt": ctx.attempt}


def _ask(ctx: Any, ask: Callable[[psycopg.Connection[Any]], object]) -> None:
    """Ask on a connection of the task's own, as often as it takes: an outage is not what it is tried for."""
    until = monotonic() + _ASKS_FOR_S
    while True:
        try:
            with psycopg.connect(dsn(), autocommit=True) as connection:
                ask(connection)
                return
        except psycopg.OperationalError:
            if monotonic() > until:
                raise
        ctx.sleep(0.05)


@behaviour(*GOOD)
def floods_progress(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Says how far it is some thousand times."""
    for number in range(3000):
        ctx.progress(number / 3000, "on", number=number)
    return _well(ctx)


@behaviour(*BAD, *GOOD)
def misuses_progress(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """What cannot be stored is refused where it is said."""
    for wrong in ({"fraction": 2}, {"fraction": "x"}, {"message": 3}, {"message": "a\0"}, {"data": object()}):
        try:
            ctx.progress(**wrong)
        except Exception:
            continue
        raise AssertionError(f"{wrong} was taken")
    return _well(ctx)


@behaviour(*GOOD)
def in_a_window(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Holds a slot of a key for a moment."""
    with ctx.limit(args["key"], max=args["max"], max_wait_s=30):
        write("B", _Window(ctx), f"window:{args['key']}")
        work(ctx, 0.02)
        write("E", _Window(ctx), f"window:{args['key']}")
    return _well(ctx)


class _Window:
    """A window of a job, as a line of the ledger has it."""

    def __init__(self, ctx: Any) -> None:
        self.family, self.id, self.attempt, self.generation = "window", ctx.id, ctx.attempt, ctx.generation


@behaviour(*BAD)
def nests_windows_wrongly(args: dict[str, Any], ctx: Any) -> None:
    """A window that sorts before the one that is held."""
    with ctx.limit("z-key", max=1, max_wait_s=30), ctx.limit("a-key", max=1, max_wait_s=30):
        pass


@behaviour(*GOOD, *BAD)
def takes_a_window_twice(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """The same key inside itself."""
    with ctx.limit("twice", max=1, max_wait_s=5), ctx.limit("twice", max=1, max_wait_s=5):
        return _well(ctx)


@behaviour(*GOOD, *BAD)
def dies_in_a_window(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Its slot must come back; the second attempt does well."""
    if ctx.attempt > 1:
        return _well(ctx)
    with ctx.limit(args["key"], max=args["max"], max_wait_s=30):
        os.kill(os.getpid(), 9)
    return _well(ctx)


@behaviour(*GOOD)
def takes_a_host_lock(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """For a part of its work."""
    with ctx.host_lock(args["lock"], max_wait_s=30):
        work(ctx, 0.02)
    return _well(ctx)


@behaviour(*GOOD, *BAD)
def takes_a_lock_of_its_own(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A `HostLock` beside the engine's, twice."""
    with HostLock(f"own-{args['lock']}"):
        work(ctx, 0.01)
    return _well(ctx)


@behaviour(*GOOD, *BAD)
def uses_its_fence(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """From several threads at once, and again after its end."""
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(ctx.fence)
        except LeaseLost:
            found.append(None)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threading.Timer(0.1, ask).start()
    assert len(set(found)) == 1, found
    return _well(ctx)


@behaviour(*GOOD)
def enqueues(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A job from within a job, once for each of it."""
    key = f"from-{ctx.family}-{ctx.id}"
    _ask(ctx, lambda mine: enqueue_ingest_job("quick", queue="fetch", args={}, dedupe_key=key, conn=mine))
    return _well(ctx)


@behaviour(*GOOD)
def enqueues_and_rolls_back(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """What is rolled back was never there."""

    def enqueue(connection: psycopg.Connection[Any]) -> None:
        with connection.transaction(force_rollback=True):
            enqueue_ingest_job("quick", queue="fetch", args={"never": True}, conn=connection)

    _ask(ctx, enqueue)
    return _well(ctx)


@behaviour("cancelled", *GOOD, node=False)
def cancels_itself(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """By the operator's verb, and then waits for it."""
    _ask(ctx, lambda mine: IngestJobRepository(mine).cancel(ctx.id))
    for _ in range(100):
        ctx.sleep(0.05)
    return _well(ctx)


@behaviour("cancelled", *BAD, node=False, hangs=True)
def cancels_itself_deaf(args: dict[str, Any], ctx: Any) -> None:
    """By the operator's verb, and does not hear of it."""
    _ask(ctx, lambda mine: IngestJobRepository(mine).cancel(ctx.id))
    sleep(60)


@behaviour(*GOOD, *BAD)
def takes_a_rate(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A token of a bucket that all share."""
    ctx.rate("bucket", per_s=200, burst=20)
    return _well(ctx)


@behaviour(*BAD)
def asks_for_an_unknown_rate(args: dict[str, Any], ctx: Any) -> None:
    """Nobody ruled it."""
    ctx.rate("never ruled")


@behaviour(*GOOD, *BAD)
def changes_its_context(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Tampers with what the worker knows of it."""
    attempt = ctx.attempt
    for name in ("job", "family", "model", "_stop"):
        try:
            setattr(ctx, name, None)
        except Exception:
            continue
    return {"attempt": attempt}


@behaviour(*GOOD, *BAD)
def closes_its_context(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Calls what is the worker's to call."""
    ctx.close()
    return _well(ctx)


@behaviour(*GOOD, *BAD)
def renames_in_place(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Changes the arguments that it was given, which a second attempt must not see."""
    assert "changed" not in args, "another attempt's change is seen"
    args["changed"] = True
    if ctx.attempt == 1:
        raise ValueError("again")
    return _well(ctx)


@behaviour(*GOOD, *BAD)
def works_in_its_directory(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """And takes the directory away from below itself."""
    import shutil

    place = ctx.workspace()
    shutil.rmtree(str(place.path), ignore_errors=True)
    return _well(ctx)


@behaviour(*GOOD)
def deletes_nothing_of_others(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Keeps a transaction open on its own row's table for a moment; its own connection it sees to itself."""
    with suppress(psycopg.OperationalError), psycopg.connect(dsn()) as connection:
        connection.execute("SELECT id FROM ingest_jobs WHERE id = %s FOR KEY SHARE", [ctx.id])
        sleep(0.05)
        connection.rollback()
    return _well(ctx)
