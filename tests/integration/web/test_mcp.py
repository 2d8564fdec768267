"""Programs ask what the page knows, and are answered what the commands print; they act by leave alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2
import psycopg
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from starlette.testclient import TestClient
from support.processes.commands import qwf_here
from support.rows import runs as running
from support.rows.jobs import Jobs, ending
from support.servers.mcp_program import over_http, over_stdio, page_for_programs, refused, said
from support.servers.web_page import served_page
from support.suite import warm_starts

from queue_workflows.cli.shared.operator import asking_user
from queue_workflows.errors import ConfigurationError
from queue_workflows.repositories import HeartbeatRepository
from queue_workflows.web import create_app
from queue_workflows.web.acts import under_way
from queue_workflows.web.pages import runs as run_pages
from queue_workflows.web.serving import Served

QUESTIONS = {
    "explain",
    "list_jobs",
    "list_runs",
    "run_show",
    "queue_stats",
    "failures",
    "workers",
    "doctor",
}
# What is of the moment of asking.
OF_NOW = ("at", "seen_s_ago", "oldest_queued_s")


class There(NamedTuple):
    """What a test's database has: a job that failed, one that is queued, and a run that waits."""

    failed: int
    queued: int
    run: uuid.UUID


@pytest.fixture
def ingest(conn: psycopg.Connection) -> Jobs:
    """Jobs of one family."""
    return Jobs("ingest", conn)


@pytest.fixture
def there(conn: psycopg.Connection, ingest: Jobs) -> There:
    """One of each."""
    failed, queued = ingest.enqueue(2, max_attempts=1)
    error = {"kind": "exception", "message": "disk full", "type": "OSError"}
    ingest.repository.end(ending(ingest.one(), "failed", error=error, counts=True))
    document = {
        "nodes": [
            {"id": "a", "type": "task", "module": "m"},
            {"id": "b", "type": "input", "depends_on": ["a"]},
        ]
    }
    return There(failed, queued, running.start(conn, document))


@pytest.fixture
def served(qwf_dsn: str, conn: psycopg.Connection) -> Iterator[Served]:
    """The page of `qwf web --mcp`."""
    with page_for_programs(qwf_dsn) as served:
        yield served


def still(value: Any) -> Any:
    """Without what is of the moment of asking."""
    if isinstance(value, dict):
        return {name: still(inner) for name, inner in value.items() if name not in OF_NOW}
    return [still(inner) for inner in value] if isinstance(value, list) else value


def printed(dsn: str, *command: str) -> Any:
    """What a command prints for programs."""
    return still(json.loads(qwf_here("--db", dsn, *command, "--json").stdout))


def questions(there: There) -> list[tuple[str, dict[str, Any], list[str]]]:
    """Calls, each with the command that asks the same."""
    run, failed = str(there.run), f"ingest:{there.failed}"
    return [
        ("explain", {"what": failed}, ["explain", failed]),
        ("explain", {"what": run}, ["explain", run]),
        ("explain", {"what": run, "node": "b"}, ["explain", run, "b"]),
        ("list_jobs", {}, ["job", "list", "--limit", "20"]),
        ("list_jobs", {"where": "status:failed", "limit": 5}, ["job", "list", "--status", "failed"]),
        ("list_runs", {"where": "workflow:test"}, ["run", "list", "--workflow", "test"]),
        ("run_show", {"run": run}, ["run", "show", run]),
        ("queue_stats", {}, ["queue", "stats"]),
        (
            "queue_stats",
            {"queue": "fetch", "since": "2h"},
            ["queue", "stats", "--queue", "fetch", "--since", "2h"],
        ),
        ("failures", {}, ["job", "failures"]),
        (
            "failures",
            {"queue": "load", "since": "1d"},
            ["job", "failures", "--queue", "load", "--since", "1d"],
        ),
        ("workers", {"all": True}, ["workers", "list", "--all"]),
    ]


class TestQuestions:
    """Every tool answers what its command prints."""

    @pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.nightly)])
    def test_over_stdio(self, qwf_dsn: str, conn: psycopg.Connection, there: There, mode: str) -> None:
        """A real `qwf mcp`, in the protocol's present and its former way."""

        async def talk(client: Client) -> list[Any]:
            return [
                [tool.name for tool in (await client.list_tools()).tools],
                *[said(await client.call_tool(name, given)) for name, given, _ in questions(there)],
            ]

        HeartbeatRepository(conn).beat("w1", host_label="here", queue="fetch", pid=7, state="idle")
        names, *answers = over_stdio(qwf_dsn, talk=talk, mode=mode)
        assert set(names) == QUESTIONS
        for (name, _given, command), told in zip(questions(there), answers, strict=True):
            assert still(told["answer"]) == printed(qwf_dsn, *command), name

    @pytest.mark.parametrize("mode", ["auto", "legacy"])
    def test_over_http(self, qwf_dsn: str, served: Served, there: There, mode: str) -> None:
        """A served page, with its token."""

        async def talk(client: Client) -> list[Any]:
            return [said(await client.call_tool(name, given)) for name, given, _ in questions(there)]

        answers = over_http(served, talk=talk, mode=mode)
        for (name, _given, command), told in zip(questions(there), answers, strict=True):
            assert still(told["answer"]) == printed(qwf_dsn, *command), name

    def test_the_doctor(self, qwf_dsn: str, served: Served) -> None:
        """It checks the database that the others are about."""
        told = over_http(served, talk=lambda client: client.call_tool("doctor", {}))
        checks = {check["name"]: check["status"] for check in said(told)["answer"]["checks"]}
        assert checks == {check["name"]: check["status"] for check in printed(qwf_dsn, "doctor")["checks"]}

    def test_each_answer_has_the_command_that_shows_it(self, served: Served, there: There) -> None:
        """A person can look at the same."""
        call = {"where": "status:failed", "limit": 5}
        told = said(over_http(served, talk=lambda client: client.call_tool("list_jobs", call)))
        assert told["command"] == "qwf job list --where status:failed --limit 5"

    def test_a_list_goes_on_where_it_ended(self, served: Served, ingest: Jobs) -> None:
        """A program pages by what an answer says."""
        ids = ingest.enqueue(5)

        async def talk(client: Client) -> list[dict[str, Any]]:
            answers = [said(await client.call_tool("list_jobs", {"limit": 2}))]
            while before := answers[-1].get("before"):
                answers.append(said(await client.call_tool("list_jobs", {"limit": 2, "before": before})))
            return [line["job"] for told in answers for line in told["answer"]]

        assert over_http(served, talk=talk) == [f"ingest:{job}" for job in sorted(ids, reverse=True)]


class TestBounds:
    """No answer is longer than a program can take, and none has secrets."""

    def test_a_list_is_cut_at_its_limit(self, served: Served, ingest: Jobs) -> None:
        """Twenty lines unless told otherwise, and never more than two hundred."""
        ingest.enqueue(25)

        async def talk(client: Client) -> tuple[Any, Any]:
            return (
                await client.call_tool("list_jobs", {}),
                await client.call_tool("list_jobs", {"limit": 201}),
            )

        few, many = over_http(served, talk=talk)
        assert len(said(few)["answer"]) == 20
        assert refused(many).startswith("These arguments do not fit: limit: 201 is greater than the maximum")

    def test_long_text_is_cut_and_said_to_be(self, served: Served, ingest: Jobs) -> None:
        """A program learns where something was left out."""
        ingest.enqueue(max_attempts=1)
        error = {"kind": "exception", "message": "x" * 50_000, "type": "ValueError"}
        ingest.repository.end(ending(ingest.one(), "failed", error=error, counts=True))
        told = over_http(served, talk=lambda client: client.call_tool("failures", {}))
        assert len(json.dumps(said(told))) < 10_000

    @pytest.mark.parametrize("tool", ["run_show", "explain"])
    def test_no_picture_is_drawn_of_a_run(
        self, qwf_dsn: str, there: There, tool: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A program gets none: of a run of thousands of nodes it takes longer than the answer."""
        drawn, draw = [], run_pages.graph_picture
        monkeypatch.setattr(run_pages, "graph_picture", lambda *seen: drawn.append(seen) or draw(*seen))
        given = {"run_show": {"run": str(there.run)}, "explain": {"what": str(there.run)}}[tool]
        with served_page(qwf_dsn, mcp=True) as page:
            assert not _called(page.client, tool, given)["isError"]
            assert drawn == []
            page.get(f"/runs/{there.run}")
        assert len(drawn) == 1

    def test_payloads_are_redacted(self, qwf_dsn: str, conn: psycopg.Connection) -> None:
        """By the host app's function, as on the page."""
        run = running.start(conn, {"nodes": [{"id": "a", "type": "task", "module": "m"}]})
        conn.execute(
            """UPDATE workflow_runs SET status = 'failed', finished_at = now(), started_at = now(),
                error = '{"kind": "exception", "message": "password=hunter2 for ann"}' WHERE id = %s""",
            [run],
        )
        options = {"mcp": True, "redact": lambda kind, value: f"a {kind}"}
        with served_page(qwf_dsn, **options) as page:
            told = _called(page.client, "run_show", {"run": str(run)})
        assert told["structuredContent"]["answer"]["error"] == "a error"


class TestRefusals:
    """What does not fit is refused with what would."""

    @pytest.mark.parametrize(
        ("tool", "given", "why"),
        [
            ("explain", {}, "'what' is a required property"),
            ("explain", {"what": "7"}, "neither a job nor a run's id"),
            ("explain", {"what": "ingest:999999999"}, "ingest:999999999"),
            ("explain", {"what": "ingest:7", "node": "a"}, "a node goes with a run"),
            ("run_show", {"run": str(uuid.UUID(int=7))}, str(uuid.UUID(int=7))),
            ("list_jobs", {"where": "colour:red"}, "colour"),
            ("list_jobs", {"where": "task:\0"}, "characters that no text in the database has"),
            ("list_jobs", {"colour": "red"}, "list_jobs takes where, limit, before"),
            ("failures", {"since": "soon"}, "since takes a length of time"),
        ],
    )
    def test_arguments(self, served: Served, tool: str, given: dict[str, Any], why: str) -> None:
        """In one line, in the answer, for the program to do better."""
        said = refused(over_http(served, talk=lambda client: client.call_tool(tool, given)))
        assert why in said
        assert "\n" not in said

    def test_a_tool_that_is_none(self, served: Served) -> None:
        """That is an error of the protocol."""
        assert over_http(served, talk=lambda client: unknown(client, "drop_table")) == (
            "there is no tool 'drop_table'"
        )

    def test_an_act_more_than_can_be_kept_track_of(
        self, qwf_dsn: str, ingest: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is not begun, as on the page."""
        monkeypatch.setattr(under_way, "MOST_AT_ONCE", 0)
        (job,) = ingest.enqueue()
        with served_page(qwf_dsn, mcp=True, mcp_acts=["job.cancel"]) as page:
            told = _called(page.client, "job_cancel", {"targets": [f"ingest:{job}"]})
        assert "under way already" in told["content"][0]["text"]
        assert ingest.seen(job, "status") == ("queued",)


class TestAccess:
    """Whoever asks is known, and may see the page that answers."""

    def test_without_its_token_a_program_is_nobody(self, served: Served) -> None:
        """Whether it sends none, another one, or a browser's cookie."""
        with httpx2.Client() as browser:
            browser.get(served.first_url, follow_redirects=True)
            sent = [{}, {"Authorization": "Bearer nope"}, {"Authorization": f"Basic {served.mcp_token}"}]
            answers = [_post(browser, f"{served.url}/mcp", LIST, **headers) for headers in sent]
        assert [(one.status_code, one.headers["www-authenticate"]) for one in answers] == [
            (401, "Bearer")
        ] * 3

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({}, 200),
            ({"Sec-Fetch-Site": "same-origin"}, 200),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Origin": "http://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Host": "evil.example"}, 421),
        ],
    )
    def test_no_other_site_has_a_browser_ask(
        self, served: Served, headers: dict[str, str], status: int
    ) -> None:
        """Not even with the token."""
        sent = {"Authorization": f"Bearer {served.mcp_token}", **headers}
        with httpx2.Client() as browser:
            assert _post(browser, f"{served.url}/mcp", LIST, **sent).status_code == status

    def test_there_is_no_such_address_unless_it_is_wanted(
        self, qwf_dsn: str, conn: psycopg.Connection
    ) -> None:
        """Neither for programs nor for others."""
        with served_page(qwf_dsn) as page:
            assert (
                _post(
                    page.client, "/mcp", LIST, **{"X-User": "ada", "Sec-Fetch-Site": "same-origin"}
                ).status_code
                == 404
            )

    def test_a_mounted_app_asks_what_its_user_may_see(
        self, qwf_dsn: str, conn: psycopg.Connection, there: There
    ) -> None:
        """`authorize` is asked for the address, and for the page of each call."""
        asked = []

        def authorize(user: str, verb: str, target: str) -> bool:
            asked.append((user, verb, target))
            return target != f"/jobs/ingest:{there.failed}/explain"

        with served_page(qwf_dsn, authorize=authorize, mcp=True) as page:
            denied = _called(page.client, "explain", {"what": f"ingest:{there.failed}"})
            allowed = _called(page.client, "explain", {"what": f"ingest:{there.queued}"})
        assert (denied["isError"], denied["content"][0]["text"]) == (True, "You may not see this")
        assert allowed["structuredContent"]["answer"]["job"] == f"ingest:{there.queued}"
        assert asked == [
            ("ada", "look", "/mcp"),
            ("ada", "look", f"/jobs/ingest:{there.failed}/explain"),
            ("ada", "look", "/mcp"),
            ("ada", "look", f"/jobs/ingest:{there.queued}/explain"),
        ]

    def test_a_user_that_may_not_ask_is_told(self, qwf_dsn: str, conn: psycopg.Connection) -> None:
        """And one that is nobody is as well."""
        with served_page(qwf_dsn, authorize=lambda *_: False, mcp=True) as page:
            known = _post(page.client, "/mcp", LIST, **{"X-User": "ada"})
            unknown = _post(page.client, "/mcp", LIST)
        assert (known.status_code, unknown.status_code) == (403, 401)


class TestActs:
    """A program changes what it was allowed to, by name, on its user's account."""

    def test_none_unless_it_is_allowed(self, qwf_dsn: str, conn: psycopg.Connection, ingest: Jobs) -> None:
        """What is not there cannot be called either."""
        (job,) = ingest.enqueue()

        with page_for_programs(qwf_dsn, acts=["job.retry"]) as served:
            said = over_http(
                served, talk=lambda client: unknown(client, "job_cancel", targets=[f"ingest:{job}"])
            )
        assert said == "there is no tool 'job_cancel'"
        assert ingest.seen(job, "status") == ("queued",)

    def test_by_name_on_the_users_account(self, qwf_dsn: str, conn: psycopg.Connection, ingest: Jobs) -> None:
        """Looked at by `dry_run` first, which writes nothing; then done, and said who did it."""
        (job,) = ingest.enqueue()
        name = f"ingest:{job}"

        async def talk(client: Client) -> tuple[list[str], dict[str, Any], list[Any], dict[str, Any]]:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            seen = said(await client.call_tool("job_cancel", {"targets": [name], "dry_run": True}))
            before = audited(conn)
            done = said(await client.call_tool("job_cancel", {"targets": [name], "reason": "no need"}))
            return tools, seen["answer"], before, done["answer"]

        tools, seen, before, done = over_stdio(qwf_dsn, "--allow-acts", "job.cancel", talk=talk)
        assert set(tools) == QUESTIONS | {"job_cancel"}
        assert (seen["headline"], seen["count"], seen["command"]) == (
            f"Cancel {name}",
            1,
            f"qwf job cancel {name}",
        )
        assert before == []
        assert (done["is_over"], done["became"], ingest.seen(job, "status")) == (
            True,
            {"cancelled": 1},
            ("cancelled",),
        )
        assert audited(conn) == [(f"{asking_user()} via mcp", "job.cancel", str(job), "no need")]

    def test_many_need_a_reason(self, qwf_dsn: str, conn: psycopg.Connection, ingest: Jobs) -> None:
        """A filter, or more names than one; with a reason they are done."""
        ids = ingest.enqueue(3)

        async def talk(client: Client) -> tuple[str, str, dict[str, Any]]:
            named = await client.call_tool("job_cancel", {"targets": [f"ingest:{one}" for one in ids]})
            matched = await client.call_tool("job_cancel", {"where": "queue:fetch status:queued"})
            done = await client.call_tool("job_cancel", {"where": "queue:fetch", "reason": "old"})
            return refused(named), refused(matched), said(done)["answer"]

        with page_for_programs(qwf_dsn, acts=["job.cancel"]) as served:
            named, matched, done = over_http(served, talk=talk)
        assert named == matched == "Not done: say why, by reason; it is about more than one thing"
        assert done["became"] == {"cancelled": 3}
        assert {actor for actor, *_ in audited(conn)} == {"ann@here via mcp"}

    def test_what_cannot_be_done_is_refused_and_why(
        self, qwf_dsn: str, conn: psycopg.Connection, ingest: Jobs
    ) -> None:
        """As the page's preview has no button for it."""
        (job,) = ingest.enqueue()
        ingest.repository.end(ending(ingest.one()))

        async def talk(client: Client) -> tuple[str, str, str]:
            return (
                refused(await client.call_tool("job_cancel", {"targets": [f"ingest:{job}"]})),
                refused(await client.call_tool("job_cancel", {"targets": ["film"]})),
                refused(await client.call_tool("job_cancel", {})),
            )

        with page_for_programs(qwf_dsn, acts=["job.cancel"]) as served:
            over, unknown, none = over_http(served, talk=talk)
        assert over.startswith("Not done: Cancel ")
        assert unknown.startswith("'film' is no job")
        assert none.startswith("Name things by target")
        assert audited(conn) == []

    def test_authorize_is_asked_for_each_thing(
        self, qwf_dsn: str, conn: psycopg.Connection, ingest: Jobs
    ) -> None:
        """One that may not be touched keeps all of them from it."""
        mine, hers = ingest.enqueue(2)

        def authorize(_user: str, _verb: str, target: str) -> bool:
            return target != f"ingest:{hers}"

        with served_page(qwf_dsn, authorize=authorize, mcp=True, mcp_acts=["job.cancel"]) as page:
            names = [f"ingest:{mine}", f"ingest:{hers}"]
            told = _called(page.client, "job_cancel", {"targets": names, "reason": "both"})
        assert (told["isError"], told["content"][0]["text"]) == (
            True,
            f"You may not do this — job.cancel ingest:{hers}",
        )
        assert (ingest.seen(mine, "status"), audited(conn)) == (("queued",), [])

    def test_a_page_that_is_read_only_has_none(self, qwf_dsn: str, conn: psycopg.Connection) -> None:
        """Whatever was allowed."""
        with served_page(qwf_dsn, mcp=True, mcp_acts=["job.cancel"], read_only=True) as page:
            listed = _post(page.client, "/mcp", LIST, **{"X-User": "ada"}).json()["result"]["tools"]
        assert {tool["name"] for tool in listed} == QUESTIONS

    def test_an_act_that_is_none(self, qwf_dsn: str, conn: psycopg.Connection) -> None:
        """A slip in the wiring says what there is."""
        with pytest.raises(ConfigurationError, match=r"no act 'job\.drop' — one of job\.cancel"):
            create_app(
                qwf_dsn, authorize=lambda *_: True, user=lambda _: "ada", mcp=True, mcp_acts=["job.drop"]
            )


class TestTheCommand:
    """`qwf mcp` is started by a program, and says nothing that is not the protocol's."""

    def test_an_act_that_is_none_is_a_slip_of_the_command_line(self, qwf_dsn: str) -> None:
        """With what there is."""
        told = qwf_here("--db", qwf_dsn, "mcp", "--allow-acts", "job.drop", status=2)
        assert "there is no act 'job.drop'" in told.stderr
        assert "job.cancel" in told.stderr

    def test_without_the_extra_it_says_what_to_install(
        self, qwf_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In one line, with the status of a wrong set-up; the page's flag does so too."""
        monkeypatch.setitem(sys.modules, "mcp", None)
        for command in (["mcp"], ["web", "--mcp", "--port", "0"]):
            told = qwf_here("--db", qwf_dsn, *command, status=78)
            assert told.stderr == (
                "qwf: the Model Context Protocol's SDK is not installed — install it with: "
                "pip install 'queue-workflows[mcp]'\n"
            )

    def test_the_page_prints_the_header_that_a_program_sends(
        self, qwf_dsn: str, conn: psycopg.Connection
    ) -> None:
        """Once, behind the address that signs a browser in."""
        command = [sys.executable, "-m", "queue_workflows", "--db", qwf_dsn, "web", "--port", "0", "--mcp"]
        with warm_starts.start(command, os.environ, **PIPES) as program:
            assert program.stdout is not None
            address = program.stdout.readline().partition("?")[0].rstrip("/")
            url, name, value = program.stdout.readline().split(" ", 2)
            with httpx2.Client() as client:
                listed = _post(client, url, LIST, **{name.rstrip(":"): value.strip()}).json()
            program.send_signal(signal.SIGTERM)
            rest, _log = program.communicate(timeout=120)
        assert url == f"{address}/mcp"
        assert {tool["name"] for tool in listed["result"]["tools"]} == QUESTIONS
        assert rest == ""

    def test_what_the_wiring_prints_goes_to_stderr(
        self, qwf_dsn: str, conn: psycopg.Connection, tmp_path: Any
    ) -> None:
        """Standard output is the protocol's, and the end of input is the end."""
        (tmp_path / "chatty.py").write_text("print('hello from the wiring')\n", encoding="utf-8")
        command = [sys.executable, "-m", "queue_workflows", "--db", qwf_dsn, "--app", "chatty", "mcp"]
        with warm_starts.start(command, os.environ, cwd=tmp_path, **PIPES) as program:
            first = initialized(program)
            rest, log = program.communicate(timeout=120)
        assert first["result"]["serverInfo"]["name"] == "queue_workflows"
        assert (rest, program.returncode) == ("", 0)
        assert "hello from the wiring" in log

    @pytest.mark.parametrize(
        ("number", "status"),
        [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
    )
    def test_a_signal_ends_it_while_it_waits_for_input(
        self, qwf_dsn: str, conn: psycopg.Connection, number: int, status: int
    ) -> None:
        """At once, and not with the next line."""
        command = [sys.executable, "-m", "queue_workflows", "--db", qwf_dsn, "mcp"]
        with warm_starts.start(command, os.environ, **PIPES) as program:
            initialized(program)
            program.send_signal(number)
            assert program.wait(60) == status


PIPES: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


def initialized(program: subprocess.Popen[str]) -> Any:
    """The first answer of a program that was started by hand."""
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(json.dumps(INITIALIZE) + "\n")
    program.stdin.flush()
    return json.loads(program.stdout.readline())


async def unknown(client: Client, tool: str, **given: Any) -> str:
    """What the protocol says of a tool that is none."""
    with pytest.raises(MCPError) as refused:
        await client.call_tool(tool, given)
    return refused.value.message


def audited(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    """What the audit log has, oldest first."""
    return conn.execute("SELECT actor, action, subject_id, reason FROM audit_log ORDER BY id").fetchall()


def _post(client: httpx2.Client, url: str, message: dict[str, Any], **headers: str) -> httpx2.Response:
    sent = {"Accept": "application/json, text/event-stream", **headers}
    return client.post(url, json=message, headers=sent)


def _called(client: TestClient, tool: str, given: dict[str, Any]) -> dict[str, Any]:
    """The result of a call to a page in this process, by user ada."""
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": tool, "arguments": given},
    }
    answer = _post(client, "/mcp", message, **{"X-User": "ada"})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()["result"]
    return told
