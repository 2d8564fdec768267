"""Reasons for which things wait quote people and workers: a host app's `redact` sees these words as well."""

from __future__ import annotations

import html
from typing import Any

import psycopg
import pytest
from support.rows.every_state import EveryState
from support.servers.web_page import served_page

from queue_workflows.repositories.workers.control import WorkerControlRepository
from queue_workflows.repositories.workers.quarantine import QuarantineRepository

QUOTES = {
    "queue_pause": "the auditors visit",
    "no_free_worker": "out of the patient's memory",
    "device_quarantined": "scratched by Bob",
    "run_cancelled": "the customer left",
    "cancelling": "the customer left",
    "retry_after": "Ann asked for Monday",
}


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("queue_pause", "/"),
        ("queue_pause", "/jobs/{queued}/explain"),
        ("no_free_worker", "/"),
        ("no_free_worker", "/jobs/{queued}/explain"),
        ("device_quarantined", "/jobs/{queued}/explain"),
        ("run_cancelled", "/jobs/{node}/explain"),
        ("cancelling", "/runs/{run}/explain"),
        ("retry_after", "/jobs/{scheduled}/explain"),
    ],
)
def test_the_host_app_redacts_what_a_reason_quotes(
    code: str, place: str, qwf_dsn: str, full: EveryState, eyes: psycopg.Connection
) -> None:
    """Of operators, of workers and of tasks: in its sentence, on the first page too, and in its facts."""
    word, run = QUOTES[code], full.runs["at_work"]
    _put_quoted(code, word, run, full, eyes)
    (node,) = eyes.execute(
        "SELECT id FROM workflow_node_jobs WHERE run_id = %s AND status = 'running' LIMIT 1", [run]
    ).fetchone()  # type: ignore[misc]
    path = place.format(run=run, node=f"node:{node}", **full.jobs)
    for suffix in ("", ".json"):
        asked = f"{path if path != '/' or not suffix else '/overview'}{suffix}"
        with served_page(qwf_dsn) as page:
            assert word in html.unescape(page.get(asked).text), asked
        with served_page(qwf_dsn, redact=_gone) as page:
            answer = page.get(asked)
        assert answer.status_code == 200
        assert word not in html.unescape(answer.text), asked


def _gone(kind: str, value: Any) -> Any:
    return "gone" if kind in ("note", "error") else value


def _put_quoted(code: str, word: str, run: Any, full: EveryState, eyes: psycopg.Connection) -> None:
    """Have a reason of this code quote the word."""
    wishes = WorkerControlRepository(eyes)
    if code == "queue_pause":
        wishes.clear("h2", "*", actor="ada")
        wishes.set("*", "fetch", "pause", actor="ada", reason=word)
        eyes.execute("UPDATE worker_heartbeats SET last_seen = '2020-01-01' WHERE queue = 'fetch'")
    elif code == "no_free_worker":
        wishes.clear("*", "fetch", actor="ada")
        state = "UPDATE worker_heartbeats SET state = 'parked', state_reason = %s, last_seen = now()"
        eyes.execute(state, [word])
    elif code == "device_quarantined":
        QuarantineRepository(eyes).put("h1", "fetch", "gpu0", reason=word, pid=7, told={})
    elif code == "retry_after":
        entry = f'[{{"kind": "retry_after", "message": "{word}", "attempt": 1}}]'
        asked = "UPDATE ingest_jobs SET attempt = 1, errors = %s WHERE id = %s"
        eyes.execute(asked, [entry, full.jobs["scheduled"].removeprefix("ingest:")])
    else:
        asked = "UPDATE workflow_runs SET cancel_requested_at = now(), cancel_reason = %s WHERE id = %s"
        eyes.execute(asked, [word, run])


def test_the_host_app_redacts_what_a_warning_of_a_hook_quotes(
    qwf_dsn: str, full: EveryState, eyes: psycopg.Connection
) -> None:
    """The line that was no record, in which secrets are masked as well."""
    eyes.execute(
        "INSERT INTO hook_records (run_id, node_job_id, attempt, plugin, hook, line_no, type, warning)"
        " SELECT run_id, node_job_id, attempt, plugin, hook, 7, 'warning', %s FROM hook_records",
        ["not JSON: Ann Smith has password=hunter2"],
    )
    place = f"/runs/{full.runs['running']}?view=records"
    with served_page(qwf_dsn) as page:
        text = page.get(place).text
    assert "Ann Smith" in text
    assert "hunter2" not in text
    with served_page(qwf_dsn, redact=lambda kind, value: "gone" if kind == "payload" else value) as page:
        assert "Ann Smith" not in page.get(place).text
