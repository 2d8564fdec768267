"""What the page lets nobody do: each rule of its safety, broken on purpose."""

from __future__ import annotations

import asyncio
import html
from typing import Any
from urllib.parse import quote, unquote

import psycopg
import pytest
from starlette.testclient import TestClient
from support.rows.every_state import EveryState
from support.servers.web_page import HOST, OperatorsPage, everything, hidden_of, served_page, text_of

from queue_workflows.repositories import IngestJobRepository, NewIngestJob
from queue_workflows.repositories.workers.control import WorkerControlRepository
from queue_workflows.web import create_app
from queue_workflows.web.access.requests import HEADERS
from queue_workflows.web.pages.all import ADDRESSES

SCRIPT = "</script><script>alert(1)</script>"
ERRORS = ("timed out after 30", "the pen is dry")
BIDI = "txt.\u202eexe"


def put(eyes: psycopg.Connection, task: str, args: dict[str, Any]) -> int:
    """A job of this task, with these arguments."""
    (made,) = IngestJobRepository(eyes).enqueue_many([NewIngestJob(task_name=task, queue="fetch", args=args)])
    return made.id


PLACES = ["/jobs", "/jobs.json", "/static/0/qwf.css", "/healthz", "/nothing", "/jobs?q=x:y"]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@pytest.mark.parametrize("place", PLACES)
def test_every_answer_has_the_headers(place: str, filled: OperatorsPage) -> None:
    """A page, a file, a refusal: none may run what is not its own, or stand in another's frame."""
    answer = filled.get(place)
    assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS)
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["cache-control"] in ("no-store", "no-cache")


@pytest.mark.parametrize("address", ADDRESSES, ids=lambda one: one.path)
def test_no_page_has_a_style_or_a_script_of_its_own(
    address: Any, filled: OperatorsPage, full: EveryState
) -> None:
    """The policy would refuse them, so nothing may depend on one."""
    html = filled.get(full.place(address.path)).text
    for word in (" style=", "<style", "javascript:", " onclick=", " onload=", "hx-on"):
        assert word not in html
    assert all(one.startswith(' src="') for one in html.split("<script")[1:])


def test_nobody_sees_anything_without_a_user(qwf_dsn: str, full: EveryState) -> None:
    """Each page, its JSON, the stream and each act are for users alone."""
    app = create_app(qwf_dsn, user=lambda _request: None, authorize=lambda *_: True)
    with TestClient(app, base_url=HOST) as client:
        for address in ADDRESSES:
            answer = client.get(full.place(address.path), follow_redirects=False)
            assert answer.status_code == 401
            assert "film" not in answer.text
        for place in ("/live?page=/jobs", "/go?q=ingest:1", "/act/preview?act=job.cancel&target=ingest:1"):
            assert client.get(place, follow_redirects=False).status_code == 401
    app.close()


@pytest.mark.parametrize("address", ADDRESSES, ids=lambda one: one.path)
def test_what_authorize_denies_is_not_shown(address: Any, qwf_dsn: str, full: EveryState) -> None:
    """It is asked for each page with its address; one that raises, or says anything but True, has said no."""
    asked: list[tuple[str, str, str]] = []

    def denies(user: str, verb: str, target: str) -> bool:
        asked.append((user, verb, target))
        return 1  # type: ignore[return-value]

    place = full.place(address.path)
    with served_page(qwf_dsn, authorize=denies) as page:
        assert page.get(place).status_code == 403
        assert page.get(f"{place if place != '/' else '/overview'}.json").status_code == 403
    # The same name for a page and for its JSON, or a rule about the one would be none for the other.
    assert asked == [("ada", "look", unquote(place))] * 2

    def raises(*_given: str) -> bool:
        raise RuntimeError("no")

    with served_page(qwf_dsn, authorize=raises) as page:
        assert page.get(place).status_code == 403


def test_nobody_is_led_to_what_it_may_not_see(qwf_dsn: str, full: EveryState) -> None:
    """A redirect would tell that a thing is there, and a run's whole id."""
    beginning = str(full.runs["running"])[:13]
    with served_page(qwf_dsn, authorize=lambda _user, _verb, target: target == "/jobs") as page:
        assert page.get("/go", q=beginning).status_code == 403
        assert page.get("/go", q="timeout").status_code == 303


def test_a_yes_to_something_is_a_yes_to_no_thing(qwf_dsn: str, full: EveryState) -> None:
    """Buttons are asked for by a name that nothing has: `*` is every queue."""
    with served_page(qwf_dsn, authorize=lambda _user, verb, target: verb == "look" or not target) as page:
        assert "queue.pause" in page.get("/queues").text
        assert page.preview("queue.pause", "*").status_code == 403
        assert page.preview("limits.set", "*").status_code == 403


def test_a_name_with_signs_of_addresses_is_linked(filled: OperatorsPage) -> None:
    """A key may have what separates the parts of an address; its words are its own."""
    shown = filled.get(f"/limits/{quote('a#b?c=1', safe='')}")
    assert shown.status_code == 200
    assert 'href="/limits/a%23b%3Fc%3D1.json"' in shown.text
    assert f"/live?page={quote('/limits/a%23b%3Fc%3D1')}" in shown.text
    assert filled.get("/jobs?limit=%E9").status_code == 400


def test_a_read_only_page_takes_no_act(qwf_dsn: str, full: EveryState, eyes: psycopg.Connection) -> None:
    """No button, no preview, no form; and its connections could not write."""
    before = everything(eyes)
    with served_page(qwf_dsn, read_only=True) as page:
        assert "/act/preview" not in page.get("/jobs").text
        assert page.preview("job.cancel", full.jobs["queued"]).status_code == 403
        assert page.post("/act", [("act", "job.cancel"), ("target", full.jobs["queued"])]).status_code == 403
        # Whatever it is that would change something, before it is looked for.
        assert page.post("/jobs", []).status_code == 403
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            page.app.readers._look(lambda reader: reader.execute("DELETE FROM ingest_jobs"))
    assert everything(eyes) == before


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Site": "", "Origin": "null"},
    ],
)
def test_a_form_of_another_site_changes_nothing(
    headers: dict[str, str],
    filled: OperatorsPage,
    full: EveryState,
    eyes: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Though the browser sends the user's cookie with it."""
    seen, before = filled.preview("job.cancel", full.jobs["queued"]), everything(eyes)
    with caplog.at_level("WARNING", logger="queue_workflows.web"):
        refused = filled.post("/act", [*hidden_of(seen), ("reason", "x")], **headers)
    assert refused.status_code == 403
    assert len(caplog.records) == 1
    assert everything(eyes) == before


def test_another_name_is_nobody_here(qwf_dsn: str, full: EveryState) -> None:
    """A name of somebody else's that leads to this machine gets no answer from it."""
    with served_page(qwf_dsn, hosts=["localhost"]) as page:
        assert page.get("/jobs").status_code == 200
        answer = page.client.get("/jobs", headers={"Host": "evil.example", "X-User": "ada"})
    assert answer.status_code == 421
    assert "ingest:" not in answer.text


def test_a_long_address_is_refused(filled: OperatorsPage) -> None:
    """Before anything of it is looked at."""
    assert filled.get("/jobs?q=" + "x" * 20_000).status_code == 414
    assert filled.get("/jobs?q=error:" + "x" * 5_000).status_code == 400


def test_hostile_rows_are_text(filled: OperatorsPage, eyes: psycopg.Connection) -> None:
    """Markup, a turned direction, ten megabytes and a hundred levels are shown, as text and within bounds."""
    job = put(eyes, SCRIPT, {"name": SCRIPT + BIDI, "big": "y" * 10_000_000})
    shown = filled.get(f"/jobs/ingest:{job}")
    assert shown.status_code == 200
    assert len(shown.text) < 300_000
    assert "<script>alert" not in shown.text
    assert "\u202e" not in shown.text
    assert "&lt;/script&gt;" in shown.text
    assert "<script>alert" not in filled.get("/jobs").text


def test_secrets_are_masked_on_pages_and_in_json(filled: OperatorsPage, eyes: psycopg.Connection) -> None:
    """A password in a payload is shown to nobody."""
    job = put(eyes, "load", {"password": "hunter2", "url": "postgresql://u:s3cret@h/db"})
    for place in (f"/jobs/ingest:{job}", f"/jobs/ingest:{job}.json"):
        told = filled.get(place).text
        assert "hunter2" not in told
        assert "s3cret" not in told
        assert "***" in told


def test_the_host_app_redacts_first(qwf_dsn: str, eyes: psycopg.Connection) -> None:
    """What its function takes out is nowhere; one that raises shows nothing at all."""
    job = put(eyes, "load", {"patient": "Ann Smith"})

    def raises(kind: str, value: Any) -> Any:
        raise RuntimeError(f"no {kind}: {value}")

    for redact in (lambda _kind, _value: {"patient": "gone"}, raises):
        with served_page(qwf_dsn, redact=redact) as page:
            for place in (f"/jobs/ingest:{job}", f"/jobs/ingest:{job}.json"):
                assert "Ann Smith" not in page.get(place).text
                assert text_of(page.get(place))


@pytest.mark.parametrize(
    "place",
    [
        "/jobs?q=status:failed",
        "/failures?since=7d",
        "/jobs/{job}",
        "/jobs/{job}/explain",
        "/runs?q=status:failed",
        "/runs/{run}",
        "/runs/{run}?view=nodes",
        "/runs/{run}/explain",
        "/runs/{run}/nodes/{node}",
        "/binaries",
    ],
)
def test_the_host_app_redacts_errors_wherever_they_are_quoted(
    place: str, qwf_dsn: str, full: EveryState, eyes: psycopg.Connection
) -> None:
    """In a table, in a picture, and in a sentence of an explanation."""
    eyes.execute("UPDATE binaries SET error = %s", [ERRORS[0]])
    path, _, words = place.partition("?")
    job, run = full.jobs["failed"], str(full.runs["failed"])
    path = path.format(job=job, run=run, node="draw")
    for suffix in ("", ".json"):
        asked = f"{path}{suffix}?{words}"
        with served_page(qwf_dsn) as page:
            shown = page.get(asked).text
        with served_page(qwf_dsn, redact=lambda kind, value: "gone" if kind == "error" else value) as page:
            answer = page.get(asked)
        assert answer.status_code == 200
        for word in ERRORS:
            assert word not in answer.text, (asked, word in shown)


@pytest.mark.parametrize(
    ("place", "word"),
    [
        ("/runs", "hospital"),
        ("/runs/{run}", "hospital"),
        ("/runs/{run}/answer/approve", "Publish it?"),
        ("/hosts/h2", "its disk is being replaced"),
        ("/workers", "its disk is being replaced"),
        ("/act/preview?act=workers.on&target=h2+*", "its disk is being replaced"),
        ("/act/preview?act=run.answer&target={run}+approve", "Publish it?"),
        ("/limits", "be kind to small sites"),
        ("/rates", "as they ask for"),
        ("/audit", "not before Monday"),
        ("/audit?target=schedule:off", "tomorrow"),
        ("/jobs/{job}", "not this one"),
        ("/jobs/{job}/explain", "not this one"),
    ],
)
def test_the_host_app_redacts_what_people_wrote(
    place: str, word: str, qwf_dsn: str, full: EveryState, eyes: psycopg.Connection
) -> None:
    """Labels, prompts, reasons, and details in the audit log: on the page, in its JSON, in its sentences."""
    job, run = full.jobs["failed"], full.runs["running"]
    eyes.execute("UPDATE workflow_runs SET labels = %s WHERE id = %s", ['{"customer": "hospital"}', run])
    eyes.execute("UPDATE audit_log SET details = %s WHERE subject_id = 'off'", ['{"was": "tomorrow"}'])
    eyes.execute(
        "INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason)"
        " VALUES ('ann', 'job.cancel', 'ingest job', %s, 'not this one')",
        [job.removeprefix("ingest:")],
    )
    path, _, words = place.format(job=job, run=run).partition("?")
    for suffix in ("", ".json"):
        asked = f"{path}{suffix}?{words}"
        with served_page(qwf_dsn) as page:
            assert word in html.unescape(page.get(asked).text), asked
        with served_page(qwf_dsn, redact=lambda kind, value: "gone" if kind == "note" else value) as page:
            answer = page.get(asked)
        assert answer.status_code == 200
        assert word not in html.unescape(answer.text), asked


def test_the_host_app_redacts_why_a_queue_was_paused(
    qwf_dsn: str, full: EveryState, eyes: psycopg.Connection
) -> None:
    """The bands of a timeline quote operators."""
    place = f"/runs/{full.runs['running']}?view=timeline"
    wishes = WorkerControlRepository(eyes)
    wishes.set("h9", "*", "pause", actor="ada", reason="the auditors visit")
    with served_page(qwf_dsn) as page:
        assert "the auditors visit" in page.get(place).text
    with served_page(qwf_dsn, redact=lambda kind, value: "gone" if kind == "note" else value) as page:
        text = page.get(place).text
    assert "by ada" in text
    assert "the auditors visit" not in text
    wishes.clear("h9", "*", actor="ada")


def test_what_is_no_text_in_an_address_is_refused_as_any_other(filled: OperatorsPage) -> None:
    """A server may hand on bytes that are no UTF-8, in the words and in the path."""

    async def status(path: str, words: bytes) -> int:
        told: list[Any] = []

        async def send(message: Any) -> None:
            told.append(message)

        headers = [(b"host", b"localhost"), (b"x-user", b"ada")]
        asked = {"type": "http", "method": "GET", "path": path, "query_string": words, "headers": headers}
        await filled.app(asked, receive=lambda: None, send=send)  # type: ignore[arg-type,return-value]
        return int(told[0]["status"])

    assert asyncio.run(status("/jobs", b"q=\xff\xfe")) == 400
    assert asyncio.run(status("/workers/\ud800", b"")) == 404


def test_the_head_of_a_stream_is_no_stream(filled: OperatorsPage) -> None:
    """A program that only asks whether it is there keeps nothing busy."""
    answer = filled.client.head("/live?page=/jobs", headers={"X-User": "ada"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert filled.app.hub.streams == 0


def test_a_page_that_reads_for_long_is_no_stream(filled: OperatorsPage) -> None:
    """Its look takes longer than the pause between two."""
    assert filled.get("/live", page="/doctor").status_code == 404
