"""Runs that are cancelled, run again, freed and answered from the page."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import psycopg
import pytest
from support.rows.runs import dispatcher, run_through, settle, start
from support.servers.web_page import OperatorsPage, audited, everything, text_of

from queue_workflows.repositories import RunRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob

FILM: dict[str, Any] = {
    "nodes": [
        {"id": "plan", "module": "plan"},
        {"id": "draw", "module": "draw", "depends_on": ["plan"]},
    ]
}
SCHEMA: dict[str, Any] = {
    "ok": {"type": "boolean", "description": "Whether it may go on"},
    "shots": {"type": "integer", "minimum": 1},
    "share": {"type": "number", "default": 0.5},
    "note": {"type": "string"},
    "mood": {"type": "string", "enum": ["calm", "wild"]},
    "cast": {"type": "array", "items": {"type": "string"}, "default": []},
}
ASKING: dict[str, Any] = {
    "nodes": [{"id": "approve", "type": "input", "prompt": "May <b>it</b> go on?", "schema": SCHEMA}]
}
TYPED = {"answer.ok": "yes", "answer.shots": "3", "answer.note": "", "answer.mood": "wild"}


def ended(conn: psycopg.Connection, fails: str = "") -> str:
    """A run that is over, in which this node failed."""

    def body(job: ClaimedNodeJob) -> dict[str, Any]:
        if job.node_id == fails:
            raise ValueError(fails)
        return {}

    run_id = start(conn, FILM)
    run_through(conn, dispatcher(conn), body)
    return str(run_id)


def asking(conn: psycopg.Connection) -> str:
    """A run whose node waits for an answer."""
    run_id = start(conn, ASKING)
    settle(dispatcher(conn))
    return str(run_id)


def status(conn: psycopg.Connection, run_id: str) -> str:
    """How a run stands."""
    row = RunRepository(conn).fetch(uuid.UUID(run_id))
    assert row is not None
    return str(row.status)


def answers(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    """What was submitted, and on whose account."""
    return conn.execute("SELECT payload, submitted_by FROM workflow_input_submissions ORDER BY id").fetchall()


def test_a_run_is_cancelled(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """It is asked to stop; nothing is written before the button."""
    run_id = str(start(conn, FILM))
    before = everything(conn)
    seen = page.preview("run.cancel", run_id)
    assert everything(conn) == before
    assert "would be asked to stop" in text_of(seen)
    assert "asked to stop" in text_of(page.confirm(seen, reason="too dear"))
    assert audited(conn) == [("ada", "run.cancel", run_id, "too dear")]


def test_all_runs_that_match_are_cancelled(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """A filter takes all that match."""
    runs = {str(start(conn, FILM)) for _ in range(3)}
    assert "3 asked to stop" in text_of(page.act("run.cancel", where="workflow:test"))
    assert {subject for _, _, subject, _ in audited(conn)} == runs


def test_one_that_is_over_is_told(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """There is no button where there is nothing to do."""
    run_id = ended(conn)
    seen = page.preview("run.cancel", run_id)
    assert "not cancelled, it is completed" in text_of(seen)
    assert 'name="seen"' not in seen.text


def test_a_node_of_a_run_is_cancelled(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """The rest of the run goes on."""
    run_id = str(start(conn, FILM))
    seen = page.preview("run.cancel", run_id, node="draw")
    assert f"Cancel node draw of run {run_id}" in text_of(seen)
    assert "asked to stop" in text_of(page.confirm(seen))
    assert conn.execute("SELECT details ->> 'node_id' FROM audit_log").fetchall() == [("draw",)]
    assert page.preview("run.cancel", run_id, node="drwa").status_code == 404


def test_a_node_is_cancelled_in_one_run_at_a_time(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """Of several, or of all that match, it would be whole runs."""
    runs = [str(start(conn, FILM)), str(start(conn, FILM))]
    assert page.preview("run.cancel", *runs, node="draw").status_code == 400
    assert page.preview("run.cancel", where="workflow:film", node="draw").status_code == 400


def test_a_run_runs_again_and_says_first_what_would(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """What failed runs again; the preview changes nothing."""
    run_id = ended(conn, "draw")
    before = everything(conn)
    seen = page.preview("run.retry", run_id)
    assert "would run again draw; keeps plan" in text_of(seen)
    assert everything(conn) == before
    assert page.confirm(seen, reason="mended").status_code == 200
    assert status(conn, run_id) == "running"
    assert audited(conn) == [("ada", "run.retry", run_id, "mended")]


def test_a_run_runs_again_from_a_node(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """A node that is typed in is previewed before it is done."""
    run_id = ended(conn)
    seen = page.preview("run.retry", run_id)
    assert "there is nothing to run again" in text_of(seen)
    shown = page.preview("run.retry", run_id, **{"from": "plan"})
    assert "would run again plan, draw" in text_of(shown)
    assert page.confirm(shown, **{"from": "plan"}).status_code == 200
    assert status(conn, run_id) == "running"


def test_what_was_typed_after_the_preview_is_shown_again(
    page: OperatorsPage, conn: psycopg.Connection
) -> None:
    """Nothing is done that was not shown: another node is another preview."""
    run_id = ended(conn, "draw")
    before = everything(conn)
    changed = page.confirm(page.preview("run.retry", run_id), **{"from": "plan"})
    assert (changed.status_code, everything(conn)) == (409, before)
    assert "would run again plan, draw" in text_of(changed)
    assert page.confirm(changed, **{"from": "plan"}).status_code == 200


def test_all_failed_runs_run_again(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """A filter that names no status means failed ones."""
    failed, done = ended(conn, "draw"), ended(conn)
    assert "runs again draw; keeps plan" in text_of(page.act("run.retry", where="workflow:test"))
    assert [status(conn, failed), status(conn, done)] == ["running", "completed"]


def test_a_run_is_freed_from_its_host_and_its_errors(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """The one host that it belongs to is named; events that were given up are tried again."""
    run_id = str(start(conn, FILM))
    conn.execute("UPDATE workflow_runs SET pinned_host = 'attic'")
    conn.execute(
        "INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, payload, poisoned_at)"
        " VALUES (%s, 1, 0, 'cancel', '{}', now())",
        [run_id],
    )
    seen = page.preview("run.unpin", run_id)
    assert "belongs to attic" in text_of(seen)
    assert "no longer attic's" in text_of(page.confirm(seen))
    assert "1 event is tried again" in text_of(page.act("run.unpoison", run_id))
    assert [action for _, action, _, _ in audited(conn)] == ["run.unpin", "run.unpoison"]
    conn.execute("UPDATE workflow_dispatch_events SET poisoned_at = now() WHERE kind = 'cancel'")
    assert "Unpoison all that match" in page.get("/runs", q="workflow:test").text
    start(conn, FILM)
    seen = page.preview("run.unpoison", where="workflow:test")
    assert "Unpoison 1 run" in text_of(seen)
    assert "1 tried again" in text_of(page.confirm(seen, reason="the bug is mended"))
    assert [(action, run) for _, action, run, _ in audited(conn)][2:] == [("run.unpoison", run_id)]


class TestAnswers:
    def test_the_form_is_drawn_from_the_schema(self, page: OperatorsPage, conn: psycopg.Connection) -> None:
        """A field for each property, as its type is, with defaults; no button before all is said."""
        seen = page.preview("run.answer", f"{asking(conn)} approve")
        assert "May <b>it</b> go on?" in text_of(seen)
        for field in (
            '<select id="field-1" name="answer.ok"',
            'name="answer.shots" type="text" inputmode="decimal" value=""',
            'value="0.5"',
            '<option value="wild">',
            "[]</textarea>",
        ):
            assert field in seen.text
        assert 'name="seen"' not in seen.text

    def test_an_answer_is_shown_and_then_stored(self, page: OperatorsPage, conn: psycopg.Connection) -> None:
        """As the types say, with defaults for what is left out, on the account of the user."""
        run_id = asking(conn)
        before = everything(conn)
        shown = page.post(
            "/act/preview", [("act", "run.answer"), ("target", f"{run_id} approve"), *TYPED.items()]
        )
        answer = {"ok": True, "shots": 3, "share": 0.5, "note": "", "mood": "wild", "cast": []}
        told = re.search(r"would get (\{.*?\})", text_of(shown))
        assert told is not None
        assert json.loads(told[1]) == answer
        assert everything(conn) == before
        assert page.confirm(shown, **TYPED).status_code == 200
        assert answers(conn) == [(answer, "ada")]

    @pytest.mark.parametrize(
        ("name", "typed", "flaw"),
        [
            ("answer.shots", "0", "shots must be at least 1"),
            ("answer.shots", "many", "shots must be integer"),
            ("answer.share", "NaN", "share must be number"),
            ("answer.shots", "", "shots is missing"),
            ("answer.mood", "tame", "mood must be one of"),
            ("answer.cast", "[1]", "must be string"),
            ("answer.cast", "[" * 100_000, "is no JSON"),
            ("answer.cast", "ann, bob", "is no JSON"),
        ],
    )
    def test_what_is_wrong_stands_at_its_field(
        self, page: OperatorsPage, conn: psycopg.Connection, name: str, typed: str, flaw: str
    ) -> None:
        """What was typed is kept, nothing is stored, and there is no button."""
        run_id = asking(conn)
        words = {**TYPED, name: typed}
        seen = page.post(
            "/act/preview", [("act", "run.answer"), ("target", f"{run_id} approve"), *words.items()]
        )
        assert seen.status_code == 200
        assert flaw in text_of(seen)
        assert 'aria-invalid="true"' in seen.text
        assert 'name="seen"' not in seen.text
        assert (typed in seen.text, answers(conn)) == (name != "answer.mood", [])

    def test_a_node_that_awaits_none_refuses(self, page: OperatorsPage, conn: psycopg.Connection) -> None:
        """A task, a node that is over, a node that is not there: each says so."""
        asks, over = asking(conn), ended(conn)
        for target, code in (
            (f"{over} plan", 409),
            (f"{asks} reject", 404),
            (f"{uuid.uuid4()} approve", 404),
            (asks, 400),
        ):
            assert page.preview("run.answer", target).status_code == code


def test_a_node_that_is_not_there_is_said_so(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """No button is offered for it, nor for one that is over."""
    run_id = str(start(conn, FILM))
    missing = page.preview("run.cancel", run_id, node="cut")
    assert missing.status_code == 404
    assert "has no node 'cut'" in text_of(missing)
    assert 'name="seen"' not in missing.text
    open_node = page.preview("run.cancel", run_id, node="draw")
    assert "would be asked to stop" in text_of(open_node)
    assert 'name="seen"' in open_node.text
    gone = page.preview("run.cancel", str(uuid.uuid4()), node="draw")
    assert gone.status_code == 404
    over = page.preview("run.cancel", ended(conn), node="draw")
    assert "not cancelled, it is over" in text_of(over)
    assert 'name="seen"' not in over.text


def test_a_run_without_poison_has_no_button_to_unpoison_it(
    page: OperatorsPage, conn: psycopg.Connection
) -> None:
    """There is nothing of it to try again."""
    seen = page.preview("run.unpoison", str(start(conn, FILM)))
    assert "nothing was poisoned" in text_of(seen)
    assert 'name="seen"' not in seen.text


def test_a_preview_answers_programs(page: OperatorsPage, conn: psycopg.Connection) -> None:
    """With what its page says, and no mark: nothing is done by what it answers."""
    run_id = str(start(conn, FILM))
    seen = page.preview("run.cancel", run_id)
    assert f'href="/act/preview.json?act=run.cancel&amp;target={run_id}"' in seen.text
    assert page.get("/act/preview.json", act="run.cancel", target=run_id).json() == {
        "headline": f"Cancel run {run_id}",
        "text": "",
        "count": 1,
        "is_capped": False,
        "lines": [{"name": run_id, "said": "would be asked to stop"}],
        "notes": [],
        "fields": [],
        "command": f"qwf run cancel {run_id}",
        "is_ready": True,
    }
    nowhere = page.get("/act/preview.json", act="run.cancel", target=str(uuid.uuid4()))
    assert nowhere.status_code == 404
    assert "there is no run" in nowhere.json()["error"]
