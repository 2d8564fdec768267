"""One job of each kind, done by the shipped processes while the server is watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import psycopg

from bench.costs import client_side
from bench.costs.client_side import ClientSide, Wire
from bench.costs.server_side import ServerSide, Watch
from bench.harness.measuring import Bench
from bench.harness.servers import cpu_s, said
from bench.harness.workers import ONE_AT_A_TIME
from bench.worker.rates import fill
from queue_workflows import enqueue_ingest_job, enqueue_many, start_run
from queue_workflows.repositories import NewIngestJob
from queue_workflows.workflow.document.load import load_document

DRAIN: Final = ("worker", "--queue", "fetch", "--drain")
OPEN: Final = "SELECT count(*) FROM workflow_runs WHERE finished_at IS NULL"
_PATIENCE_S: Final = 300.0


@dataclass(frozen=True)
class Cost:
    """What so many jobs of a kind took."""

    kind: str
    jobs: int
    server: ServerSide
    server_cpu_s: float | None
    # By process: of a worker, and of an orchestrator or a producer.
    clients: Mapping[str, ClientSide]
    wire: Mapping[str, int]
    kernel_calls: int | None
    functions: Sequence[str]

    @property
    def as_json(self) -> dict[str, Any]:
        """As it is kept in a file."""
        return asdict(self)


@dataclass(frozen=True)
class _Database:
    """A watched database."""

    dsn: str
    connection: psycopg.Connection[Any]
    watch: Watch

    def watched(self, act: Callable[[], Any]) -> tuple[Any, ServerSide, float | None]:
        """What something brings, and what the server did for it."""
        before = cpu_s(self.connection)
        self.watch.begin()
        brought = act()
        server = self.watch.end()
        after = cpu_s(self.connection)
        return brought, server, None if before is None or after is None else after - before


def enqueue_single(bench: Bench) -> Cost:
    """A job in a transaction of its own."""
    jobs = bench.much(2_000, 100)

    def enqueue(dsn: str, count: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for number in range(count):
                enqueue_ingest_job("noop", queue="fetch", args={"n": number}, conn=connection)

    return _produced(bench, "enqueue, one a transaction", jobs, enqueue)


def enqueue_bulk(bench: Bench) -> Cost:
    """Many jobs in one transaction."""
    jobs = bench.much(20_000, 500)

    def enqueue(dsn: str, count: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            new = [NewIngestJob(task_name="noop", queue="fetch", args={"n": n}) for n in range(count)]
            enqueue_many(new, conn=connection)

    return _produced(bench, "enqueue, many at once", jobs, enqueue)


def ingest_single(bench: Bench) -> Cost:
    """From the claim to the end, one job at a time."""
    return _drained(bench, "ingest, one at a time", bench.much(1_500, 100), ONE_AT_A_TIME)


def ingest_batches(bench: Bench) -> Cost:
    """From the claim to the end, in the batches of a worker of eight."""
    return _drained(bench, "ingest, in batches", bench.much(10_000, 500), ())


def node(bench: Bench) -> Cost:
    """A node of a run, with its share of the run and of the orchestrator."""
    jobs = bench.much(600, 30)
    nodes = [{"id": f"n{number}", "module": "noop"} for number in range(jobs)]
    return _ran(bench, "node job", jobs, {"name": "nodes", "nodes": nodes})


def element(bench: Bench) -> Cost:
    """An element of a `for_each`, with its share of the run and of the orchestrator."""
    jobs = bench.much(1_000, 30)
    each = {"id": "each", "module": "noop", "for_each": {"$value": list(range(jobs))}}
    return _ran(bench, "for_each element", jobs, {"name": "elements", "nodes": [each]})


KINDS: Final[Mapping[str, Callable[[Bench], Cost]]] = {
    "enqueue-single": enqueue_single,
    "enqueue-bulk": enqueue_bulk,
    "ingest-single": ingest_single,
    "ingest-batches": ingest_batches,
    "node": node,
    "element": element,
}


def _produced(bench: Bench, kind: str, jobs: int, enqueue: Callable[[str, int], None]) -> Cost:
    with ExitStack() as stack:
        database = _database(bench, stack)
        # What is made once, such as plans and pages, is there.
        enqueue(database.dsn, jobs // 10)
        client, server, cpu = database.watched(
            lambda: client_side.in_here(partial(enqueue, database.dsn, jobs))
        )
        through, wire = stack.enter_context(client_side.counted(database.dsn))
        enqueue(through, jobs)
        functions = client_side.profile_here(partial(enqueue, database.dsn, jobs))
        return Cost(kind, jobs, server, cpu, {"producer": client}, _bytes(wire), None, functions)


def _drained(bench: Bench, kind: str, jobs: int, options: Sequence[str]) -> Cost:
    command = (*DRAIN, *options)
    with ExitStack() as stack:
        database = _database(bench, stack)
        fill(database.connection, jobs // 10)
        client_side.ran(database.dsn, *command)
        base = client_side.ran(database.dsn, *command)
        idle_calls = client_side.kernel_calls(database.dsn, *command)
        fill(database.connection, jobs)
        client, server, cpu = database.watched(lambda: client_side.ran(database.dsn, *command))
        through, wire = stack.enter_context(client_side.counted(database.dsn))
        fill(database.connection, jobs)
        client_side.ran(through, *command)
        calls = None
        if idle_calls is not None:
            fill(database.connection, jobs)
            calls = (client_side.kernel_calls(database.dsn, *command) or 0) - idle_calls
        fill(database.connection, jobs)
        functions = client_side.profile(database.dsn, *command)
        return Cost(kind, jobs, server, cpu, {"worker": client.less(base)}, _bytes(wire), calls, functions)


def _ran(bench: Bench, kind: str, jobs: int, spec: Mapping[str, Any]) -> Cost:
    document = load_document(spec)
    with ExitStack() as stack:
        database = _database(bench, stack)
        through, wire = stack.enter_context(client_side.counted(database.dsn))

        def run(dsn: str, *, begin: bool = True) -> dict[str, ClientSide]:
            worker = stack.enter_context(client_side.running(dsn, "worker", "--queue", "cpu"))
            orchestrator = stack.enter_context(client_side.running(dsn, "orchestrator"))
            if begin:
                start_run(document, conn=database.connection)
            _until_none_is_open(database.connection)
            for process in (worker, orchestrator):
                process.terminate()
            return {
                "worker": client_side.ended(worker),
                "orchestrator": client_side.ended(orchestrator),
            }

        # Plans and pages are there afterwards, and what it costs to be there is known.
        run(database.dsn)
        base = run(database.dsn, begin=False)
        clients, server, cpu = database.watched(lambda: run(database.dsn))
        run(through)
        less = {name: client.less(base[name]) for name, client in clients.items()}
        return Cost(kind, jobs, server, cpu, less, _bytes(wire), None, [])


def _until_none_is_open(connection: psycopg.Connection[Any]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while said(connection, OPEN):
        if time.monotonic() > deadline:
            raise SystemExit(f"a run was still open after {_PATIENCE_S:.0f} s")
        time.sleep(0.5)


def _database(bench: Bench, stack: ExitStack) -> _Database:
    dsn, connection = stack.enter_context(bench.database())
    return _Database(dsn, connection, Watch(connection))


def _bytes(wire: Wire) -> dict[str, int]:
    return {"sent": wire.sent, "received": wire.received}
