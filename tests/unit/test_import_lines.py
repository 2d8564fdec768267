"""Lines of an import, read without a database."""

from __future__ import annotations

import json

import pytest

from queue_workflows.errors import PayloadError
from queue_workflows.jobs.importing import LineReader, our_rows
from queue_workflows.repositories.ingest_rows import BULK

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


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_is_refused_as_json_refuses_it(line: str):
    """With the column in the line as it stands in the file."""
    with pytest.raises(json.JSONDecodeError) as wrong:
        json.loads(line.rstrip())
    with pytest.raises(PayloadError, match=f"^no JSON: {wrong.value.msg} at column {wrong.value.colno}$"):
        reader().row(1, line.encode())
