"""Pages that keep up: over real sockets, from changes in a real database."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from support.rows.jobs import Jobs
from support.servers.browsed_page import OPERATOR, VIEWER, BrowsedPage, browsed_page, running_page

from queue_workflows.web import create_app

OURS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE %s AND pid <> pg_backend_pid()
"""


@pytest.fixture
def served(qwf_dsn: str, conn: psycopg.Connection) -> Iterator[BrowsedPage]:
    """The page behind a real server."""
    with browsed_page(qwf_dsn) as page:
        yield page


@contextmanager
def stream(page: BrowsedPage, place: str, user: str = OPERATOR) -> Iterator[http.client.HTTPResponse]:
    """What a tab that shows this page listens to."""
    with closing(http.client.HTTPConnection(urlsplit(page.url).netloc, timeout=60)) as connection:
        connection.request("GET", f"/live?page={quote(place)}", headers={"X-User": user})
        yield connection.getresponse()


def next_page(told: http.client.HTTPResponse) -> str:
    """The next event of a page, with its lines joined; a beat is passed over."""
    lines: list[str] = []
    while True:
        line = told.readline().decode()
        assert line, "the stream has ended"
        if line.startswith("data: "):
            lines.append(line.removeprefix("data: "))
        elif line == "\n" and lines:
            return "".join(lines)


def test_a_change_reaches_each_tab(served: BrowsedPage, conn: psycopg.Connection) -> None:
    """The page comes at once, and again when a row has changed."""
    with stream(served, "/jobs") as told:
        assert told.getheader("content-type", "").startswith("text/event-stream")
        assert "There is no job" in next_page(told)
        (job,) = Jobs("ingest", conn).enqueue()
        assert f"ingest:{job}" in next_page(told)


def test_a_page_that_goes_away_says_so_where_it_is_watched(
    served: BrowsedPage, conn: psycopg.Connection
) -> None:
    """A job that is pruned meanwhile is told of in its own tab."""
    (job,) = Jobs("ingest", conn).enqueue()
    with stream(served, f"/jobs/ingest:{job}") as told:
        assert f"ingest:{job}" in next_page(told)
        conn.execute("DELETE FROM ingest_jobs")
        assert "pruned" in next_page(told)


def test_fifty_tabs_are_three_readers_and_one_topic_a_view(
    served: BrowsedPage, conn: psycopg.Connection
) -> None:
    """However many look, the database is asked once for each view."""
    with ExitStack() as tabs:
        for number in range(50):
            told = tabs.enter_context(stream(served, ["/jobs", "/queues", "/workers"][number % 3]))
            assert next_page(told)
        assert served.app.hub.topics == 3
        assert served.app.hub.streams == 50
        row = conn.execute(OURS, ("%web%",)).fetchone()
        assert row is not None
        assert 1 <= row[0] <= 4


@pytest.mark.parametrize(
    ("place", "user", "status"), [("/nothing", OPERATOR, 404), ("/jobs", "nobody", 403), ("/jobs", "", 401)]
)
def test_what_is_no_page_of_a_users_is_no_stream(
    served: BrowsedPage, place: str, user: str, status: int
) -> None:
    """A stream is refused as its page would be."""
    with stream(served, place, user) as told:
        assert told.status == status


def test_a_user_has_so_many_streams(served: BrowsedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is told to come back, while another user's are opened."""
    monkeypatch.setattr("queue_workflows.web.live.hub.MOST_STREAMS_A_USER", 2)
    with ExitStack() as tabs:
        for place in ("/jobs", "/queues"):
            assert next_page(tabs.enter_context(stream(served, place)))
        refused = tabs.enter_context(stream(served, "/jobs"))
        assert (refused.status, refused.getheader("retry-after")) == (503, "3")
        assert next_page(tabs.enter_context(stream(served, "/jobs", VIEWER)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_known", "said"), [(False, "You are not signed in"), (True, "You may not see this")]
)
def test_a_stream_ends_for_a_user_that_is_signed_out_or_refused(
    qwf_dsn: str, conn: psycopg.Connection, is_known: bool, said: str
) -> None:
    """The last thing on the page says so, in place of what it showed."""
    is_good = [True]
    app = create_app(
        qwf_dsn,
        user=lambda _request: "ada" if is_good[0] or is_known else None,
        authorize=lambda _user, _verb, _target: is_good[0],
    )
    with running_page(app) as page, stream(page, "/jobs") as told:
        assert "There is no job" in next_page(told)
        is_good[0] = False
        Jobs("ingest", conn).enqueue()
        while said not in (last := next_page(told)):
            pass
        assert "ingest:" not in last
        assert told.read() == b""
