"""Everything that is changed from the page: looked at first, done once, on its user's account."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from support.rows.jobs import Jobs
from support.servers.web_page import (
    OperatorsPage,
    audited,
    everything,
    hidden_of,
    served_page,
    text_of,
)

from queue_workflows.repositories import IngestJobRepository, NewIngestJob
from queue_workflows.web.acts.all import ACTS
from queue_workflows.web.database import writers


class TestEveryAct:
    def test_a_preview_writes_nothing(
        self, page: OperatorsPage, ingest: Jobs, conn: psycopg.Connection
    ) -> None:
        """Rows are after a preview what they were before it."""
        (job,) = ingest.enqueue()
        before = everything(conn)
        seen = page.preview("job.cancel", f"ingest:{job}")
        assert seen.status_code == 200
        assert f"Cancel ingest:{job}" in text_of(seen)
        assert f"qwf job cancel ingest:{job}" in text_of(seen)
        assert everything(conn) == before

    def test_a_preview_cannot_write(
        self,
        page: OperatorsPage,
        ingest: Jobs,
        conn: psycopg.Connection,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """One that would is refused by its connection, whatever its code says."""
        (job,) = ingest.enqueue()
        before = everything(conn)

        def writes(connection: psycopg.Connection, _asked: Any, _settings: Any) -> Any:
            connection.execute("DELETE FROM ingest_jobs")
            raise AssertionError("it could write")

        act = replace(ACTS["job.cancel"], preview=writes)
        monkeypatch.setitem(ACTS, "job.cancel", act)  # type: ignore[arg-type]
        assert page.preview("job.cancel", f"ingest:{job}").status_code in (409, 503)
        assert everything(conn) == before

    def test_the_button_does_it_on_the_account_of_the_user(
        self, page: OperatorsPage, ingest: Jobs, conn: psycopg.Connection
    ) -> None:
        """The row is changed, and the audit log names the signed-in user and the reason."""
        (job,) = ingest.enqueue()
        done = page.act("job.cancel", f"ingest:{job}", reason="not wanted any more")
        assert (done.status_code, ingest.seen(job, "status")) == (200, ("cancelled",))
        assert audited(conn) == [("ada", "job.cancel", str(job), "not wanted any more")]

    def test_a_form_that_is_sent_again_does_nothing(
        self, page: OperatorsPage, ingest: Jobs, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The second is told that it was done already, and a line in the log is all that it leaves."""
        (job,) = ingest.enqueue()
        seen = page.preview("job.cancel", f"ingest:{job}")
        page.confirm(seen)
        assert page.act("job.retry", f"ingest:{job}").status_code == 200
        before = everything(conn)
        with caplog.at_level(logging.WARNING):
            again = page.confirm(seen)
        assert (again.status_code, everything(conn)) == (409, before)
        assert "This was done already" in text_of(again)
        assert [record.getMessage() for record in caplog.records if record.name.endswith("door")] == [
            "refused job.cancel to 'ada': This was done already"
        ]

    def test_without_a_preview_nothing_is_done(
        self, page: OperatorsPage, ingest: Jobs, conn: psycopg.Connection
    ) -> None:
        """A form that was made by hand has no mark of a preview."""
        (job,) = ingest.enqueue()
        before = everything(conn)
        made = page.post("/act", [("act", "job.cancel"), ("target", f"ingest:{job}")])
        assert (made.status_code, everything(conn)) == (403, before)

    @pytest.mark.parametrize(
        "headers",
        [
            {"Sec_Fetch_Site": "cross-site"},
            {"Sec_Fetch_Site": "same-site"},
            {"Sec_Fetch_Site": "none"},
        ],
    )
    def test_another_origin_is_refused(
        self, page: OperatorsPage, ingest: Jobs, conn: psycopg.Connection, headers: dict[str, str]
    ) -> None:
        """Not even with the mark of a preview that the user saw."""
        (job,) = ingest.enqueue()
        seen = page.preview("job.cancel", f"ingest:{job}")
        before = everything(conn)
        refused = page.post("/act", hidden_of(seen), **headers)
        assert (refused.status_code, everything(conn)) == (403, before)
        assert page.confirm(seen).status_code == 200

    def test_a_mark_is_of_one_user_and_of_just_what_was_shown(
        self, page: OperatorsPage, ingest: Jobs, conn: psycopg.Connection
    ) -> None:
        """Another user, and another job, have the preview shown instead."""
        first, second = ingest.enqueue(2)
        fields = hidden_of(page.preview("job.cancel", f"ingest:{first}"))
        before = everything(conn)
        others = page.as_user("bob").post("/act", fields)
        changed = page.post("/act", [(n, f"ingest:{second}" if n == "target" else v) for n, v in fields])
        assert [others.status_code, changed.status_code] == [409, 409]
        assert "Nothing was done" in text_of(others)
        assert f"Cancel ingest:{second}" in text_of(changed)
        assert everything(conn) == before

    def test_a_viewer_can_do_nothing(
        self,
        qwf_dsn: str,
        page: OperatorsPage,
        ingest: Jobs,
        conn: psycopg.Connection,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Neither look at what it would be nor do it, by page or by hand; only the log has a line of it."""
        (job,) = ingest.enqueue()
        fields = hidden_of(page.preview("job.cancel", f"ingest:{job}"))
        before = everything(conn)
        with (
            served_page(qwf_dsn, authorize=lambda _user, verb, _target: verb == "look") as viewers,
            caplog.at_level(logging.WARNING),
        ):
            answers = [
                viewers.preview("job.cancel", f"ingest:{job}"),
                viewers.post("/act/preview", fields),
                viewers.post("/act", fields),
            ]
        assert [answer.status_code for answer in answers] == [403, 403, 403]
        assert everything(conn) == before
        assert "refused job.cancel to 'ada'" in caplog.text

    def test_it_is_asked_of_each_thing_whether_the_user_may(
        self, qwf_dsn: str, ingest: Jobs, conn: psycopg.Connection
    ) -> None:
        """One that is not allowed has none of them done; an `authorize` that raises denies."""
        first, second = ingest.enqueue(2)
        names = [f"ingest:{first}", f"ingest:{second}"]
        with served_page(qwf_dsn, authorize=lambda _user, _verb, target: target == names[0]) as page:
            assert page.preview("job.cancel", *names).status_code == 403
            assert page.preview("job.cancel", names[0]).status_code == 200

        def raises(_user: str, _verb: str, _target: str) -> bool:
            raise RuntimeError("the directory of users is away")

        with served_page(qwf_dsn, authorize=raises) as page:
            assert page.preview("job.cancel", names[0]).status_code == 403

    def test_a_page_that_only_reads_previews_nothing(self, qwf_dsn: str, ingest: Jobs) -> None:
        """A read-only page has no acts at all."""
        (job,) = ingest.enqueue()
        with served_page(qwf_dsn, read_only=True) as page:
            assert page.preview("job.cancel", f"ingest:{job}").status_code == 403
            assert page.post("/act", [("act", "job.cancel")]).status_code == 403

    @pytest.mark.parametrize(
        ("words", "status"),
        [
            ({"act": "job.bury", "target": "ingest:1"}, 400),
            ({"act": "job.cancel"}, 400),
            ({"act": "job.cancel", "target": "7"}, 400),
            ({"act": "job.cancel", "target": "ingest:7' OR 1=1"}, 400),
            ({"act": "job.cancel", "target": "ingest:1", "where": "queue:x"}, 400),
            ({"act": "job.cancel", "where": "stauts:failed"}, 400),
            ({"act": "job.cancel", "where": ""}, 400),
            ({"act": "job.cancel", "where": "status:completed"}, 400),
            ({"act": "job.cancel", "target": "ingest:999999999"}, 404),
            ({"act": "job.cancel", "target": [f"ingest:{n}" for n in range(1, 600)]}, 400),
            ({"act": "job.cancel", "target": "x" * 2000}, 400),
        ],
    )
    def test_what_cannot_be_read_is_refused(
        self, page: OperatorsPage, words: dict[str, Any], status: int
    ) -> None:
        """With what is wrong, and as what it is."""
        assert page.get("/act/preview", **words).status_code == status


class TestManyJobs:
    def test_all_that_match_are_done_with_a_reason(
        self, page: OperatorsPage, ingest: Jobs, conn: psycopg.Connection
    ) -> None:
        """A filter takes all that match; the preview counts them and shows ten."""
        jobs = ingest.enqueue(12)
        seen = page.preview("job.cancel", where="queue:fetch")
        assert "Cancel 12 jobs" in text_of(seen)
        assert seen.text.count("/jobs/ingest:") == 10
        done = page.confirm(seen, reason="a wrong import")
        assert done.status_code == 200
        assert "12 cancelled" in text_of(done)
        assert [ingest.seen(job, "status") for job in jobs] == [("cancelled",)] * 12
        assert {row[3] for row in audited(conn)} == {"a wrong import"}

    def test_without_a_reason_nothing_is_done(
        self, page: OperatorsPage, ingest: Jobs, conn: psycopg.Connection
    ) -> None:
        """By a filter or by names: more than one thing needs a reason, and it can still be given."""
        names = [f"ingest:{job}" for job in ingest.enqueue(2)]
        before = everything(conn)
        by_filter = page.confirm(page.preview("job.cancel", where="queue:fetch"))
        by_name = page.confirm(page.preview("job.cancel", *names))
        assert [by_filter.status_code, by_name.status_code, everything(conn)] == [422, 422, before]
        assert page.confirm(by_name, reason="a wrong import").status_code == 200

    def test_two_operators_on_one_set_are_told(
        self, page: OperatorsPage, ingest: Jobs, conn: psycopg.Connection
    ) -> None:
        """The second learns what was so already and on whose account, and changes nothing."""
        names = [f"ingest:{job}" for job in ingest.enqueue(3)]
        bobs = page.as_user("bob")
        hers, his = page.preview("job.cancel", *names[:2]), bobs.preview("job.cancel", *names)
        page.confirm(hers, reason="a wrong import")
        told = text_of(bobs.confirm(his, reason="the same"))
        assert told.count("not cancelled, it is cancelled") == 3
        assert f"{names[0]} not cancelled, it is cancelled (job.cancel by ada at" in told
        assert [(actor, subject) for actor, _, subject, _ in audited(conn)] == [
            ("ada", names[0].removeprefix("ingest:")),
            ("ada", names[1].removeprefix("ingest:")),
            ("bob", names[2].removeprefix("ingest:")),
        ]

    def test_two_operators_on_one_filter_are_told(
        self, page: OperatorsPage, ingest: Jobs, conn: psycopg.Connection
    ) -> None:
        """What matched when the second looked was dealt with meanwhile: it is said, nothing is done twice."""
        ingest.enqueue(3)
        bobs = page.as_user("bob")
        his = bobs.preview("job.cancel", where="queue:fetch")
        page.act("job.cancel", where="queue:fetch")
        before = everything(conn)
        late = bobs.confirm(his, reason="the same")
        assert "There is nothing to do" in text_of(late)
        assert everything(conn) == before

    def test_a_count_that_takes_long_is_not_waited_for(
        self, page: OperatorsPage, qwf_dsn: str, ingest: Jobs
    ) -> None:
        """The act is offered all the same, of all that match, and says that nobody counted them."""
        ingest.enqueue(2)
        with psycopg.connect(qwf_dsn) as other:
            other.execute("LOCK TABLE ingest_jobs IN ACCESS EXCLUSIVE MODE")
            seen = page.preview("job.cancel", where="queue:fetch")
        assert "Cancel all jobs that match" in text_of(seen)
        assert "too many to be counted while you wait" in text_of(seen)
        assert "2 cancelled" in text_of(page.confirm(seen, reason="a wrong import"))

    def test_hostile_names_are_text(self, page: OperatorsPage, conn: psycopg.Connection) -> None:
        """A task's name that is a script is shown, and does not run."""
        evil = "<script>alert(1)</script>\N{RIGHT-TO-LEFT OVERRIDE}"
        IngestJobRepository(conn).enqueue_many([NewIngestJob(task_name=evil, args={}, queue="fetch")])
        seen = page.preview("job.cancel", where="queue:fetch")
        assert "<script>alert" not in seen.text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in seen.text
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in seen.text


class TestLongActs:
    def test_one_that_takes_longer_is_watched_by_its_user_alone(
        self, qwf_dsn: str, ingest: Jobs, conn: psycopg.Connection
    ) -> None:
        """The page of a long act comes back by itself until it is over; others do not see it."""
        jobs = ingest.enqueue(3)
        with served_page(qwf_dsn) as page, psycopg.connect(qwf_dsn) as other:
            other.execute("SELECT FROM ingest_jobs WHERE id = %s FOR UPDATE", [jobs[1]])
            begun = page.act("job.cancel", where="queue:fetch")
            assert begun.status_code == 303
            place = begun.headers["location"]
            going = page.get(place)
            assert 'http-equiv="refresh"' in going.text
            assert "0 of 3 so far" in text_of(going)
            assert page.as_user("bob").get(place).status_code == 404
            other.rollback()
            page.app.writers.close()
            over = page.get(place)
        assert 'http-equiv="refresh"' not in over.text
        assert "3 cancelled" in text_of(over)

    def test_what_stops_one_midway_is_said_with_what_was_done(
        self, qwf_dsn: str, ingest: Jobs, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A page of 500 that is committed stays; the row that is locked is given up, and it is said."""
        monkeypatch.setattr(writers, "LOCK_WITHIN", "SET lock_timeout = '200ms'")
        jobs = ingest.enqueue(501)
        with served_page(qwf_dsn) as page, psycopg.connect(qwf_dsn) as other:
            other.execute("SELECT FROM ingest_jobs WHERE id = %s FOR UPDATE", [jobs[-1]])
            begun = page.act("job.cancel", where="queue:fetch")
            page.app.writers.close()
            over = page.get(begun.headers["location"]) if begun.status_code == 303 else begun
        assert "Somebody else is at one of these rows" in text_of(over)
        assert "before that, 500 were done" in text_of(over)
        assert ingest.seen(jobs[0], "status") == ("cancelled",)
        assert ingest.seen(jobs[-1], "status") == ("queued",)

    def test_one_that_cannot_begin_is_refused(
        self, qwf_dsn: str, ingest: Jobs, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What did nothing has the status of what kept it from it."""
        monkeypatch.setattr(writers, "LOCK_WITHIN", "SET lock_timeout = '200ms'")
        (job,) = ingest.enqueue()
        with served_page(qwf_dsn) as page, psycopg.connect(qwf_dsn) as other:
            other.execute("SELECT FROM ingest_jobs WHERE id = %s FOR UPDATE", [job])
            refused = page.act("job.cancel", f"ingest:{job}")
        assert (refused.status_code, ingest.seen(job, "status"), audited(conn)) == (409, ("queued",), [])


def test_links_and_forms_lead_to_where_the_page_is_mounted(qwf_dsn: str, ingest: Jobs) -> None:
    """Below a prefix the whole way from the preview to the result works."""
    (job,) = ingest.enqueue()
    with served_page(qwf_dsn, prefix="/ops") as page:
        seen = page.get("/ops/act/preview", act="job.cancel", target=f"ingest:{job}")
        for link in ('action="/ops/act/preview"', 'formaction="/ops/act"', f'href="/ops/jobs/ingest:{job}"'):
            assert link in seen.text
        done = page.post("/ops/act", hidden_of(seen))
        # A proxy in between may have taken the prefix off.
        for place in ("/ops", "/ops/queues", "/queues"):
            assert 'href="/ops/queues"' in page.get(place).text
    assert (done.status_code, ingest.seen(job, "status")) == (200, ("cancelled",))
