"""Every page of the operator's page, over empty tables and over rows in every state."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from support.rows.every_state import LIMIT, EveryState
from support.rows.jobs import Jobs
from support.servers.pgbouncer import PgBouncer
from support.servers.web_page import OperatorsPage, served_page, text_of

from queue_workflows.cli.main import cli
from queue_workflows.db import migrations
from queue_workflows.db.migrations.chain.chains import engine_chain
from queue_workflows.repositories import HeartbeatRepository
from queue_workflows.web.access.redaction import Redaction
from queue_workflows.web.pages.all import ADDRESSES

# The clock of a statement stands in these, and the machine's own in those of the doctor.
MOVING = frozenset(
    [
        *("at", "age_s", "seen_s_ago", "sampled_s_ago", "oldest_queued_s", "longest_running_s", "lag_s"),
        *("longest_s", "tokens", "blocked_s", "text", "headline", "found", "tick_at", "local", "begins_at"),
        *("per_minute", "minutes", "past"),
    ]
)
# Words behind addresses that change what is shown, and with it the command.
WORDS = {
    "/queues": ["queue=fetch&since=2h"],
    "/jobs": ["q=status:failed&limit=1", 'q=queue:fetch error:"timed out"'],
    "/failures": ["queue=fetch&since=1d"],
    "/runs": ["q=workflow:film&limit=2"],
    "/runs/{run}": ["view=timeline", "view=nodes", "view=records"],
    "/runs/{run}/nodes/{node}": ["state=completed&limit=2"],
    "/workflows/{workflow}": ["limit=1"],
    "/workers": ["host=h1&all=1"],
    "/limits": ["limit=1"],
    "/schedules/{schedule}": ["count=3"],
    "/audit": ["action=job.cancel&limit=1"],
}
PLACES = [
    path
    for address in ADDRESSES
    for path in (address.path, *(f"{address.path}?{words}" for words in WORDS.get(address.path, ())))
]


def json_place(place: str) -> str:
    path, _, words = place.partition("?")
    return f"{path.rstrip('/') or '/overview'}.json" + (f"?{words}" if words else "")


def still(value: Any) -> Any:
    """What does not change between two looks."""
    if isinstance(value, dict):
        return {name: still(inner) for name, inner in value.items() if name not in MOVING}
    return [still(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("path", PLACES)
def test_each_page_shows_what_its_command_prints(
    path: str, filled: OperatorsPage, full: EveryState, qwf_dsn: str
) -> None:
    """Its `.json` is the `--json` of the command at its foot, with what is secret masked."""
    # The bars of a run that goes on end where the clock of a statement is.
    place = full.place(path, run="failed" if path.endswith("view=timeline") else "running")
    shown = filled.get(place)
    assert shown.status_code == 200, text_of(shown)
    assert shown.headers["cache-control"] == "no-store"
    answered = filled.get(json_place(place))
    assert answered.status_code == 200, answered.text
    command = shlex.split(command_of(shown.text))
    if command[1:3] == ["hooks", "list"]:
        # Of no event, as this machine has no hooks.
        return
    printed = CliRunner().invoke(cli, ["--db", qwf_dsn, *command[1:], "--json"], catch_exceptions=False)
    assert printed.exit_code == 0, printed.output
    shown_json, printed_json = answered.json(), Redaction().document(json.loads(printed.stdout))
    if command[1] == "doctor":
        # The facts of its checks are of the moment.
        assert checks_of(shown_json) == checks_of(printed_json)
    else:
        assert still(shown_json) == still(printed_json)


def checks_of(report: Any) -> list[tuple[str, str]]:
    """The checks of the doctor, and how each came out."""
    return [(check["name"], check["status"]) for check in report["checks"]]


def test_the_hooks_of_a_machine_are_what_the_command_prints(
    qwf_dsn: str, full: EveryState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the event that is asked for, or of the first that there is."""
    script = tmp_path / "title" / "on_Page__10_title.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("QWF_HOOK_DIRS", str(tmp_path))
    with served_page(qwf_dsn) as page:
        command = shlex.split(command_of(page.get("/hooks").text))
        answered = page.get("/hooks.json").json()
    printed = CliRunner().invoke(cli, ["--db", qwf_dsn, *command[1:], "--json"], catch_exceptions=False)
    assert command == ["qwf", "hooks", "list", "Page"]
    assert len(answered) == 1
    assert answered == json.loads(printed.stdout)


@pytest.mark.parametrize(
    "address", [one for one in ADDRESSES if "{" not in one.path], ids=lambda one: one.path
)
def test_each_list_says_what_to_do_when_it_is_empty(address: Any, empty: OperatorsPage) -> None:
    """On a new database nothing is missing, broken or blank."""
    shown = empty.get(address.path)
    assert shown.status_code == 200
    assert 'class="empty"' in shown.text or "<tbody>" in shown.text


@pytest.mark.parametrize("address", ADDRESSES, ids=lambda one: one.path)
def test_a_page_is_few_statements(
    address: Any, filled: OperatorsPage, full: EveryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page costs the same few however much there is, and none of them walks away from its start."""
    place = full.place(address.path)
    assert filled.get(place).status_code == 200
    asked = asked_by(lambda: filled.get(place), monkeypatch)
    assert len(asked) <= MORE_STATEMENTS.get(address.path, 8), asked


@pytest.mark.parametrize(
    "job",
    [
        *("completed", "failed", "running", "held", "cancelled", "queued", "scheduled", "limited", "node"),
        *("asleep", "event", "children"),
    ],
)
def test_a_job_is_few_statements(
    job: str,
    filled: OperatorsPage,
    full: EveryState,
    eyes: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever it waits for, and whichever family it is of."""
    if job == "limited":
        (number,) = Jobs("ingest", eyes).enqueue(limit_key=LIMIT, host_lock="disk")
        place = f"/jobs/ingest:{number}"
    elif job == "node":
        waiting = "SELECT max(id) FROM workflow_node_jobs WHERE status IN ('queued', 'running')"
        ((number,),) = eyes.execute(waiting).fetchall()
        place = f"/jobs/node:{number}"
    else:
        place = full.place("/jobs/{job}", job=job)
    # The explanation foretells too, once and not each second.
    for page, most in ((place, 8), (f"{place}/explain", 19)):
        assert filled.get(page).status_code == 200
        asked = asked_by(lambda page=page: filled.get(page), monkeypatch)  # type: ignore[misc]
        assert len(asked) <= most, asked


def asked_by(look: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements of a look, without those that set its bounds."""
    asked: list[str] = []
    before = psycopg.Cursor.execute

    def counted(cursor: Any, query: Any, *more: Any, **named: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        # Nor those of a reader that is new: which of the three looks is not ours to say.
        if "set_config" not in text and "pg_has_role" not in text:
            asked.append(text)
        return before(cursor, query, *more, **named)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Cursor, "execute", counted)
        assert look().status_code == 200
    return asked


# On connections of its own, for a report that is kept for ten seconds: eight a second as well.
MORE_STATEMENTS = {"/doctor": 80}


def command_of(html: str) -> str:
    """The command at the foot of a page."""
    from html import unescape

    return unescape(html.rpartition('data-copy="')[2].partition('"')[0])


@pytest.mark.parametrize(
    ("place", "status", "said"),
    [
        ("/jobs?q=stauts:failed", 400, "stauts"),
        ("/jobs?q=status:fialed", 400, "fialed"),
        ("/jobs?q=newer:soon", 400, "soon"),
        ("/jobs?limit=0", 400, "limit"),
        ("/jobs?limit=201", 400, "from 1 to 200"),
        ("/jobs?limit=x", 400, "limit"),
        ("/jobs?before=nonsense", 400, "nonsense"),
        ("/jobs/ingest:99999999", 404, "ingest:99999999"),
        ("/jobs/nonsense", 404, "nonsense"),
        ("/runs/nonsense", 400, "no run"),
        ("/runs/018f0000-0000-7000-8000-000000000000", 404, "018f0000"),
        ("/runs?q=label", 400, "label"),
        ("/workers/nobody", 404, "nobody"),
        ("/hosts/nowhere", 404, "nowhere"),
        ("/workflows/none", 404, "none"),
        ("/schedules/none", 404, "none"),
        ("/schedules/nightly?count=101", 400, "from 1 to 100"),
        ("/failures?since=soon", 400, "since"),
        ("/jobs?q=%00", 400, "NUL"),
        ("/queues/a%00b", 400, "NUL"),
        ("/jobs?" + "&".join(f"w{number}=1" for number in range(60)), 400, "words"),
        ("/audit?before=" + "5" * 30, 400, "before"),
        ("/audit?target=x", 400, "target"),
        ("/nothing/here", 404, "no such page"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(
    place: str, status: int, said: str, filled: OperatorsPage
) -> None:
    """In a page with the menu, not in a traceback."""
    shown = filled.get(place)
    assert shown.status_code == status
    assert said in text_of(shown)
    assert "Traceback" not in shown.text


@pytest.mark.parametrize("place", ["/jobs", "/runs"])
def test_a_typo_in_a_filter_is_mended_where_it_was_made(place: str, filled: OperatorsPage) -> None:
    """The field has what was written, and says at itself what is wrong with it."""
    shown = filled.get(place, q='stauts:failed "<b>').text
    assert f'<form class="filter" action="{place}"' in shown
    assert 'value="stauts:failed &#34;&lt;b&gt;"' in shown
    assert 'aria-invalid="true" aria-describedby="filter-flaw"' in shown
    assert "<b>" not in shown


def test_nothing_that_matches_has_no_button_for_all_of_it(filled: OperatorsPage) -> None:
    """An act on all that match is offered where something does, or may further back."""
    for place, act in (("/jobs", "job.retry"), ("/runs", "run.retry")):
        assert f'value="{act}"' in filled.get(place, q="status:failed").text
        assert f'value="{act}"' not in filled.get(place, q="status:failed older:90d").text


@pytest.mark.parametrize(
    ("place", "leads_to"),
    [
        ("/jobs", "/jobs/{held}"),
        ("/runs", "/runs/{run}"),
        ("/runs/{run}?view=nodes", "/runs/{run}/nodes/publish"),
        ("/runs/{at_work}/nodes/draw", "/jobs/node:"),
    ],
)
def test_each_row_that_is_not_over_leads_to_its_explanation(
    place: str, leads_to: str, filled: OperatorsPage, full: EveryState
) -> None:
    """By a link at its state to the reasons, each of which leads to its cause; what is over has none."""
    names = {"held": full.jobs["held"], "run": full.runs["running"], "at_work": full.runs["at_work"]}
    shown = filled.get(place.format(**names)).text
    table = shown.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = table.split("<tr>")[1:]
    over = re.compile(r"</svg>(completed|failed|cancelled|skipped)</span></td>")
    linked = ['class="why" href="' in row for row in rows]
    assert linked == [over.search(row) is None for row in rows]
    assert any(linked)
    where = re.search(f'class="why" href="({re.escape(leads_to.format(**names))}[^"#]*)#why"', shown)
    assert where is not None
    assert '<section id="why">' in filled.get(where[1]).text


def test_a_queue_shows_the_lanes_in_which_its_jobs_wait(
    filled: OperatorsPage, eyes: psycopg.Connection
) -> None:
    """Each leads to its key, whose page has the jobs that come next."""
    ((number,),) = eyes.execute("SELECT count(*) FROM ingest_jobs WHERE hold_key = %s", [LIMIT])
    assert number > 0
    shown = filled.get("/queues/fetch").text.partition('<section id="lanes">')[2].partition("</section>")[0]
    assert re.findall(r'num">(\d+)</td>.*?href="([^"]*)">([^<]*)</a>', shown) == [
        (str(number), "/limits/host:example.org", "host:example.org")
    ]
    assert 'id="lanes"' not in filled.get("/queues/cpu").text


def test_nodes_of_a_run_have_pages(
    filled: OperatorsPage, full: EveryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is left out of a run that has more nodes than one page of them."""
    monkeypatch.setattr("queue_workflows.web.pages.runs.NODE_ROWS", 2)
    place, seen = f"/runs/{full.runs['running']}?view=nodes", []
    while place:
        shown = filled.get(place).text
        seen += re.findall(r'<tr><td><a class="mono" href="/runs/[^"]*/nodes/(\w+)"', shown)
        further = re.search(r'rel="next" href="([^"]*)"', shown)
        place = html.unescape(further[1]) if further else ""
    assert seen == ["write", "draw", "cut", "approve", "publish"]


def test_a_filter_that_is_too_broad_is_no_failure_of_the_page(
    qwf_dsn: str, full: EveryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes longer than the bound is refused with what to do."""
    with served_page(qwf_dsn) as page:
        page.app.readers._within_ms = 1
        monkeypatch.setattr(
            "queue_workflows.repositories.reports.job_search.JobSearch.page",
            lambda search, *_given, **_named: search._conn.execute("SELECT pg_sleep(5)"),
        )
        shown = page.get("/jobs?q=error:rare")
    assert shown.status_code == 422
    assert "too broad" in text_of(shown)


def test_a_status_is_added_to_a_filter_as_it_is(filled: OperatorsPage) -> None:
    """What stands between quotation marks is one word, with its blanks."""
    shown = filled.get("/jobs", q='error:"a  status:failed b"').text
    added = urlencode({"q": 'error:"a  status:failed b" status:failed'})
    assert f'href="/jobs?{added}"' in shown


def test_a_database_that_is_away_is_looked_for_again() -> None:
    """The page says so and comes back by itself; a program is told when to."""
    with served_page("postgresql://nobody@127.0.0.1:1/none") as away:
        shown, answered = away.get("/jobs"), away.get("/jobs.json")
    assert (shown.status_code, answered.status_code) == (503, 503)
    assert 'http-equiv="refresh"' in shown.text
    assert shown.headers["retry-after"] == "3"
    assert "away" in answered.json()["error"]


def test_a_server_that_was_restarted_is_found_again(filled: OperatorsPage, eyes: psycopg.Connection) -> None:
    """Connections that died meanwhile are not noticed by those that look."""
    for _ in range(3):
        assert filled.get("/queues").status_code == 200
        eyes.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    assert filled.get("/queues").status_code == 200


def emptied(qwf_new_database: Any) -> str:
    """The DSN of a database without a schema of ours."""
    dsn = sa.make_url(qwf_new_database()).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(dsn) as raw:
        raw.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return dsn


def test_a_schema_that_is_missing_says_what_to_do(qwf_new_database: Any) -> None:
    """A database that nobody has upgraded is no mystery."""
    with served_page(emptied(qwf_new_database)) as page:
        shown = page.get("/jobs")
    assert shown.status_code == 503
    assert "qwf db upgrade" in text_of(shown)


def test_a_schema_that_is_behind_says_at_which_revision_it_is(qwf_new_database: Any) -> None:
    """Whichever page meets what is not there yet, and not by the name that the server has for it."""
    dsn = emptied(qwf_new_database)
    migrations.upgrade(dsn, chains=[engine_chain()], revision="0025")
    with served_page(dsn) as page:
        for place in ("/", "/runs", "/hosts", "/limits", "/schedules"):
            shown = page.get(place)
            assert shown.status_code == 503
            assert "the database schema is at 0025" in text_of(shown)
            assert "does not exist" not in shown.text


def test_a_schema_that_is_ahead_says_at_which_revision_it_is(qwf_new_database: Any) -> None:
    """Pages that can be read say it above what they show; workers of this version would not start."""
    dsn = qwf_new_database()
    with psycopg.connect(dsn) as raw:
        raw.execute("UPDATE queue_schema_version SET version_num = '9999'")
    with served_page(dsn) as page:
        for place in ("/", "/jobs", "/limits"):
            shown = page.get(place)
            assert shown.status_code == 200
            assert "the database schema is at 9999, this code knows revisions up to" in shown.text


SINGLE = {"default_pool_size": "1", "query_wait_timeout": "5"}


def test_no_look_waits_for_a_connection_that_it_holds(qwf_dsn: str, full: EveryState) -> None:
    """Behind a pooler with a single one: what is asked of the schema is asked before the page is read."""
    with PgBouncer(qwf_dsn, "transaction", **SINGLE) as pooler, served_page(pooler.dsn()) as page:
        assert [page.get(place).status_code for place in ("/", "/jobs", "/runs")] == [200] * 3


def test_a_schema_that_is_behind_takes_no_connection_for_each_look(qwf_new_database: Any) -> None:
    """Nor one while the look still holds the only one that there is."""
    dsn = emptied(qwf_new_database)
    migrations.upgrade(dsn, chains=[engine_chain()], revision="0025")
    with PgBouncer(dsn, "transaction", **SINGLE) as pooler, served_page(pooler.dsn()) as page:
        first = text_of(page.get("/runs"))
        connections = pooler.said().count("login attempt")
        later = [text_of(page.get("/runs")) for _ in range(5)]
        assert pooler.said().count("login attempt") == connections > 0
    assert ["the database schema is at 0025" in one for one in (first, *later)] == [True] * 6


def test_the_model_map_says_how_full_a_card_is_or_that_nothing_reports_it(
    filled: OperatorsPage, qwf_dsn: str
) -> None:
    """A worker that was started by hand is on the map, too; below it, what models were seen to take."""
    with psycopg.connect(qwf_dsn, autocommit=True) as conn:
        beats = HeartbeatRepository(conn)
        beats.beat("h3:gpu:9", host_label="h3", queue="gpu", pid=9, state="idle", cached_models=["whisper"])
        beats.beat("h1:gpu:2", host_label="h1", queue="gpu", pid=8, state="idle", cached_models=["llama-7b"])
        try:
            shown = text_of(filled.get("/models"))
        finally:
            conn.execute("DELETE FROM worker_heartbeats WHERE worker_id = 'h3:gpu:9'")
    assert "llama-7b NVIDIA H100 80GB HBM3 14.0 GB 17.0 GB 13.0 GB" in shown
    assert "40.0 of 80.0 GB" in shown
    assert shown.count("memory not reported") == 1


@pytest.mark.parametrize(
    ("job", "waits"),
    [
        ("asleep", r"5 sleep waiting \S+ \S+ until \S+ \S+"),
        ("event", r"5 event waiting \S+ \S+ for the event paid:7 until \S+ \S+"),
        ("children", r"5 qwf:gather children waiting \S+ \S+ for 1 job"),
    ],
)
def test_a_durable_function_shows_its_steps(
    job: str, waits: str, filled: OperatorsPage, full: EveryState
) -> None:
    """What each came to in a table that can be scrolled, and what it waits for, which holds nothing up."""
    shown = filled.get(full.place("/jobs/{job}", job=job))
    steps = re.search(r'<section id="steps">.*?</section>', shown.text, re.DOTALL)
    assert steps is not None
    assert (
        '<div class="scroll" tabindex="0" role="region" aria-label="Steps"><table class="data">' in steps[0]
    )
    said = " ".join(html.unescape(re.sub("<[^>]*>", " ", steps[0])).split())
    assert "1 write the letter done" in said
    assert "2 ask the bank failed" in said
    assert "TimeoutError: timed out after 30 s" in said
    assert "4 deliver child done" in said
    assert re.search(waits, said), said
    assert '<ol class="reasons over">' in shown.text
    listed = text_of(filled.get("/jobs"))
    assert {"asleep": "asleep", "event": "waits for the event paid:7"}.get(
        job, "waits for children: 1"
    ) in listed
    assert f"held: {job}" not in listed


def test_steps_that_have_no_room_are_counted(
    filled: OperatorsPage, full: EveryState, eyes: psycopg.Connection
) -> None:
    """What it waits for is shown all the same."""
    eyes.execute(
        "INSERT INTO durable_steps"
        " (job_family, job_id, name, call, position, kind, status, attempt, finished_at)"
        " SELECT 'ingest', %s, 'page', n, 0, 'step', 'done', 1, now() FROM generate_series(1, 300) AS n",
        [full.jobs["asleep"].removeprefix("ingest:")],
    )
    try:
        shown = text_of(filled.get(full.place("/jobs/{job}", job="asleep")))
    finally:
        eyes.execute("DELETE FROM durable_steps WHERE name = 'page'")
    assert f"… and 105 more: qwf job show {full.jobs['asleep']}" in shown
    assert "5 sleep waiting" in shown


def test_a_host_is_drawn_over_the_last_hour(filled: OperatorsPage, qwf_dsn: str) -> None:
    """Processors, memory, and each GPU with its memory; a host that nobody looks at says what to start."""
    shown = filled.get("/hosts/h1")
    charts = re.findall(r'<svg class="chart"[^>]*aria-label="([^"]*)"', shown.text)
    assert charts == [
        f"{what}, in percent, over the last hour"
        for what in ("cpu busy", "memory in use", "nvidia0 busy", "nvidia0 memory in use")
    ]
    assert len(filled.get("/hosts/h1.json").json()["history"]) == 61
    silent = filled.get("/hosts/h2")
    assert "Nothing was kept of the last hour" in silent.text
    assert "qwf supervisor --worker cpu" in silent.text
