"""How a record of the log is written: as text or as JSON, with the job that wrote it and without secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from support.rows.claimed_jobs import context, ingest_job, node_job

from queue_workflows import JobLogFilter
from queue_workflows.cli.log import logs
from queue_workflows.cli.log.log_lines import JsonLines, TextLines, head_of, painted
from queue_workflows.drawing.terminal import Terminal
from queue_workflows.engine.execution.guards import Budget, HeldJob
from queue_workflows.engine.execution.log_fields import at_hand, bind_child_threads, bound_fields
from queue_workflows.engine.execution.redaction import Redactor

TRACE = "0af7651916cd43dd8448eb211c80319c"


def record(name: str = "shop.pages", words: str = "read %s", *values: Any, **extra: Any) -> logging.LogRecord:
    made = logging.getLogger(name).makeRecord(
        name, logging.INFO, "f", 1, words, values or (("it",) if "%" in words else ()), None, None, extra
    )
    made.created, made.process = 1_780_000_000.25, 4711
    return made


def at(job: Any) -> HeldJob:
    return HeldJob(job, context(job), Budget(60, 60), 0.0, 30.0)


@pytest.fixture
def in_a_job() -> Any:
    """Call something in the context of a job, as its worker does."""

    def call(job: Any, what: Any) -> Any:
        def within() -> Any:
            at_hand.set(at(job))
            return what()

        return copy_context().run(within)

    return call


def test_a_line_names_the_job_that_wrote_it(in_a_job):
    """Behind the words; a line of no job has nothing there."""
    text, bound = TextLines(Redactor()), JobLogFilter()

    def line() -> str:
        made = record()
        bound.filter(made)
        return text.format(made)

    begun = "2026-05-28T20:26:40Z INFO 4711 shop.pages: read it"
    assert line() == begun
    assert in_a_job(ingest_job(), line) == f"{begun} [job 7 attempt 2]"
    traced = node_job(traceparent=f"00-{TRACE}-b7ad6b7169203331-01")
    run = "00000000-0000-0000-0000-000000000001"
    assert in_a_job(traced, line) == f"{begun} [job 7 attempt 2 run {run} trace {TRACE}]"


def test_json_has_each_fact_by_its_name(in_a_job):
    """Also what the app gave as `extra`, whatever that is; what a record says itself is not replaced."""
    made = record(
        shop=3, part={"password": "hunter2", "pages": [1, 2.5, None]}, place=Path("/srv"), odd=float("nan")
    )
    in_a_job(ingest_job(), lambda: JobLogFilter().filter(made))
    assert json.loads(JsonLines(Redactor()).format(made)) == {
        "time": "2026-05-28T20:26:40.250Z",
        "level": "INFO",
        "logger": "shop.pages",
        "pid": 4711,
        "message": "read it",
        "shop": 3,
        "part": {"password": "***", "pages": [1, 2.5, None]},
        "place": "/srv",
        "odd": "nan",
        "job_id": 7,
        "attempt": 2,
        "queue": "fetch",
        "family": "ingest",
        "worker_id": "host:fetch:1",
        "task_name": "task",
    }


def test_what_json_has_under_the_name_of_a_secret_is_masked_whole():
    """Also words behind a space, and numbers, where text cannot tell the end of it."""
    secrets = {
        "passphrase": "correct horse battery",
        "api_key": [1234, "a, b"],
        "Authorization": "Basic eHg=",
    }
    made = record(password=4711, request=secrets, tokens=512)
    told = json.loads(JsonLines(Redactor()).format(made))
    assert (told["password"], told["tokens"]) == ("***", 512)
    assert told["request"] == {"passphrase": "***", "api_key": ["***", "***"], "Authorization": "***"}


@pytest.mark.parametrize("lines", [TextLines, JsonLines])
def test_what_reads_the_log_of_a_child_knows_its_levels_and_loggers(lines):
    """In either format; what a job prints is no line of the log."""
    assert head_of(lines(Redactor()).format(record("queue_workflows.jobs"))) == (
        "INFO",
        "queue_workflows.jobs",
    )
    assert head_of("INFO: read it") is None


@pytest.mark.parametrize("lines", [TextLines, JsonLines])
def test_secrets_are_masked_in_words_and_tracebacks(lines):
    """Those that the process knows, and what looks like one."""
    made = record("shop", "at %s", "postgresql://u:s3cret@h/d")
    try:
        raise ValueError("with the pass-word w0rd and token=abc12345678")
    except ValueError as raised:
        made.exc_info = (type(raised), raised, raised.__traceback__)
    line = lines(Redactor(["w0rd"])).format(made)
    assert "ValueError" in line
    assert not [
        secret for secret in ("s3cret", "w0rd", "abc12345678") if secret in line.replace("pass-word", "")
    ]


def test_a_jobs_error_does_not_steer_the_terminal():
    """In our own lines; an app's may be coloured by the app."""
    text = TextLines(Redactor())
    assert text.format(record("queue_workflows.jobs", "\x1b[31m %s")).endswith(": ?[31m it")
    assert text.format(record("shop", "\x1b[31m %s")).endswith(": \x1b[31m it")


def test_the_level_is_coloured_on_a_terminal_alone():
    """And nothing else of the line is changed."""
    line = "2026-05-28T20:26:40Z ERROR 4711 shop: it failed"
    assert painted(line, Terminal(colour=False)) == line
    coloured = painted(line, Terminal(colour=True))
    assert "\x1b[31m" in coloured
    assert coloured.endswith(" 4711 shop: it failed")
    assert painted("no line of ours", Terminal(colour=True)) == "no line of ours"


def test_threads_and_tasks_of_a_job_are_known_as_its(in_a_job, monkeypatch):
    """Its child threads and theirs, its tasks, `to_thread`, and what it submits to pools that outlive it."""
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", ThreadPoolExecutor.submit)
    bind_child_threads()
    shared = ThreadPoolExecutor(1)
    seen: dict[str, Any] = {}

    def note(name: str) -> None:
        seen[name] = bound_fields().get("job_id")

    def child() -> None:
        note("child")
        grandchild = threading.Thread(target=note, args=["grandchild"])
        grandchild.start()
        grandchild.join()

    async def coroutine() -> None:
        async def task() -> None:
            note("task")

        await asyncio.create_task(task())
        await asyncio.to_thread(note, "to_thread")

    def job() -> None:
        note("job")
        thread = threading.Thread(target=child)
        thread.start()
        thread.join()
        asyncio.run(coroutine())
        with ThreadPoolExecutor(1) as pool:
            pool.submit(note, "its pool").result()
        shared.submit(note, "pool of all").result()

    in_a_job(ingest_job(), job)
    note("outside")
    with shared:
        shared.submit(note, "pool afterwards").result()
    assert seen == {
        "job": 7,
        "child": 7,
        "grandchild": 7,
        "task": 7,
        "to_thread": 7,
        "its pool": 7,
        "pool of all": 7,
        "pool afterwards": None,
        "outside": None,
    }


def test_a_log_that_nobody_reads_holds_nobody_up(monkeypatch):
    """A full pipe costs one short wait; what was left out is counted where somebody reads again."""
    readable, writable = os.pipe()
    with open(writable, "w", encoding="utf-8") as stream, open(readable, "rb", buffering=0) as reader:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(logs, "_PATIENCE_MS", 10)
        handler = logs.StderrHandler()
        for number in range(2_000):
            handler.emit(record("shop", "line %d " + "x" * 100, number))
        said = reader.read(1 << 20).decode().splitlines()
        assert 0 < len(said) < 2_000
        handler.emit(record("shop", "again"))
        told, again = reader.read(1 << 20).decode().splitlines()[-2:]
    assert told == f"WARNING: {2_000 - len(said)} lines were left out here, as nobody read them"
    assert again == "again"


def test_a_long_line_goes_into_a_pipe_at_once(monkeypatch):
    """As long as there is room, so that what other processes write into it comes before or behind it."""
    readable, writable = os.pipe()
    with open(writable, "w", encoding="utf-8") as stream, open(readable, "rb", buffering=0) as reader:
        monkeypatch.setattr(sys, "stderr", stream)
        handler, written, write = logs.StderrHandler(), [], os.write

        def noted(fd: int, data: bytes) -> int:
            written.append(bytes(data))
            return write(fd, data)

        monkeypatch.setattr(os, "write", noted)
        handler.emit(record("shop", "x" * 20_000))
        assert written == [reader.read(1 << 20)]
        assert len(written[0]) > 20_000
