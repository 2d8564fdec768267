"""Lines of an import, read without a database."""

from __future__ import annotations

import json

import pytest

from queue_workflows.engine.operate.import_file import JobRows, LineReader, our_rows
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.errors import PayloadError
from queue_workflows.repositories.jobs.enqueue import current_rows
from queue_workflows.repositories.jobs.ingest_rows import BULK

SOUND = (
    '{"queue": "fetch", "task_name": "page", "args": {"n": 1}}\n',
    '\t {"queue": "fetch", "task_name": "page"} \r\n',
    '{"queue": "load", "task_name": "page"}',
    '{"queue": "load", "task_name": "päge", "priority": null, "dedupe_key": "\\u00fc"}\n',
)
BROKEN = (
    '{"queue": "fetch"} {"queue": "load"}\n',
    '{"queue": "fetch"},\n',
    '{"queue": \n',
    "  nothing\n",
    '{"queue": "fetch", "queue"}\n',
)


def reader() -> LineReader:
    return LineReader(our_rows(), longest=100_000)


def test_a_line_is_what_json_makes_of_it():
    """Blanks around it are nothing, and what the line before said vouches for no other."""
    read = reader()
    for line in (*SOUND, *SOUND):
        said = {name: value for name, value in json.loads(line).items() if value is not None}
        row = dict(zip(BULK.names, read.row(1, line.encode()), strict=True))
        assert row["args"] == json.dumps(said.get("args", {}), separators=(",", ":"))
        assert (row["task_name"], row["queue"]) == (said["task_name"], said["queue"])
        assert row["dedupe_key"] == said.get("dedupe_key")
    for wrong in ({"task_name": ["page"]}, {"task_name": ""}, {"queue": True}):
        with pytest.raises(PayloadError):
            read.row(1, json.dumps({"queue": "fetch", "task_name": "page"} | wrong).encode())


def test_what_lines_share_is_taken_from_no_other_line():
    """Each line's row is what a reader makes of it that has seen no other; True is not 1."""
    least = {"task_name": "page", "queue": "fetch"}
    said = [
        *(least, least | {"args": {"n": 1}, "dedupe_key": "k"}, least | {"args": {"n": 2}}, least),
        *(least | {"reason": "new", "dedupe_key": "l"}, least | {"reason": "new"}, least | {"priority": 1}),
        *(
            least | {"priority": 1, "args": {"n": 3}},
            least | {"task_name": "other"},
            least | {"queue": "load"},
        ),
        *(least | {"run_at": "2030-01-31T12:00:00Z"}, least | {"delay": 60}, least | {"delay": 60.0}),
    ]
    read = reader()
    for each in (*said, *reversed(said)):
        line = json.dumps(each).encode()
        assert read.row(1, line) == reader().row(1, line)
    read.row(1, json.dumps(least | {"priority": 1}).encode())
    for wrong in ({"args": [1]}, {"dedupe_key": ""}, {"dedupe_key": 7}, {"priority": True}):
        with pytest.raises(PayloadError):
            read.row(1, json.dumps(least | {"priority": 1} | wrong).encode())


def test_a_key_that_is_made_of_args_is_made_for_each_line():
    """What a task reckons from the args of one line stands in no other."""
    tasks = TaskRegistry()
    tasks.register(
        "page", lambda reason, args: None, queue="fetch", limit_key=lambda args: f"host:{args['n']}"
    )
    read = LineReader(JobRows(current_rows(), tasks, queues=frozenset({"fetch"})), longest=100_000)
    for number in (1, 2, 1):
        line = json.dumps({"task_name": "page", "args": {"n": number}}).encode()
        row = dict(zip(BULK.names, read.row(1, line), strict=True))
        assert row["limit_key"] == f"host:{number}"


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_is_refused_as_json_refuses_it(line: str):
    """With the column in the line as it stands in the file."""
    with pytest.raises(json.JSONDecodeError) as wrong:
        json.loads(line.rstrip())
    with pytest.raises(PayloadError, match=f"^no JSON: {wrong.value.msg} at column {wrong.value.colno}$"):
        reader().row(1, line.encode())
