"""`qwf run`: starting runs, finding them, drawing them, cancelling, retrying, answering and freeing them."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import Said, qwf_here
from support.rows.jobs import CLEAR
from support.rows.plans import explain
from support.rows.runs import dispatcher, run_through, settle, start, work
from support.rows.schemas import qwf_environment, start_qwf

from queue_workflows import set_workflow_dir
from queue_workflows.config import reset_config
from queue_workflows.repositories import InputSubmissionRepository, RunRepository
from queue_workflows.repositories.audit_log import AuditRepository
from queue_workflows.repositories.runs import listing
from queue_workflows.repositories.runs.listing import RunFilter
from queue_workflows.states import JobStatus

FILM = """\
name: film
inputs: {brief: {type: string}, scenes: {type: integer, default: 2}, dry: {type: boolean, default: false}}
nodes:
  - {id: plan, module: planner, inputs: {brief: {$from: inputs.brief}}}
  - {id: draw, module: draw, queue: gpu, depends_on: [plan], for_each: {$value: [1, 2, 3]}}
  - id: approve
    type: input
    depends_on: [draw]
    prompt: Is it good?
    schema: {ok: {type: boolean}, grade: {type: integer, default: 3}}
  - {id: publish, module: publish, depends_on: [approve]}
outputs: {ok: {$from: approve.ok}}
"""
CHAIN: dict[str, Any] = {
    "name": "chain",
    "nodes": [{"id": "a", "module": "m"}, {"id": "b", "module": "m", "depends_on": ["a"]}],
}


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


@pytest.fixture
def film(tmp_path: Path) -> str:
    """A document in a file."""
    path = tmp_path / "film.yaml"
    path.write_text(FILM)
    return str(path)


@pytest.fixture
def qwf(qwf_dsn: str) -> Callable[..., Said]:
    """`qwf run` on the test's database."""

    def run(*arguments: object, status: int = 0) -> Said:
        return qwf_here("--db", qwf_dsn, "run", *map(str, arguments), status=status)

    return run


def row(conn: psycopg.Connection, run: uuid.UUID) -> Any:
    found = RunRepository(conn).fetch(run)
    assert found is not None
    return found


def parked(conn: psycopg.Connection, run: uuid.UUID) -> None:
    """All that comes before the question is done."""
    run_through(conn, dispatcher(conn), lambda _job: {})
    assert row(conn, run).status == "running"


# start


def test_start_prints_the_id_alone(qwf, conn, film):
    """For scripts; what else there is to say goes to stderr."""
    said = qwf("start", film, "--input", "brief=a map")
    run = row(conn, uuid.UUID(said.stdout.strip()))
    assert (run.workflow_name, run.status, run.priority) == ("film", "queued", 5)
    assert run.inputs == {"brief": "a map", "scenes": 2, "dry": False}
    assert said.stderr == f"started film; `qwf run watch {run.id}` follows it\n"


def test_inputs_and_labels_are_of_the_type_that_is_meant(qwf, conn, film, tmp_path):
    """As the document says, or as JSON; what is given one by one overrides the file."""
    values = tmp_path / "inputs.yaml"
    values.write_text("brief: from the file\nscenes: 9\n")
    options = ["--inputs", str(values), "-i", "scenes=7", "--input", "dry=true", "-i", "brief=1=1"]
    said = qwf("start", film, *options, "--label", "customer=7", "--label", "size:=7", "--priority", "9")
    run = row(conn, uuid.UUID(said.stdout.strip()))
    assert run.inputs == {"brief": "1=1", "scenes": 7, "dry": True}
    assert (run.labels, run.priority) == ({"customer": "7", "size": 7}, 9)


def test_inputs_from_standard_input(qwf, conn, film, monkeypatch):
    """`--inputs -`."""
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"brief": "piped"}'))
    run = row(conn, uuid.UUID(qwf("start", film, "--inputs", "-").stdout.strip()))
    assert run.inputs["brief"] == "piped"


def test_a_workflow_by_its_name(qwf, conn, film):
    """As the host app provides it."""
    set_workflow_dir(Path(film).parent)
    try:
        told = json.loads(qwf("start", "film", "--input", "brief=x", "--json").stdout)
    finally:
        reset_config()
    assert told == {"run": told["run"], "created": True, "workflow": "film"}
    assert row(conn, uuid.UUID(told["run"])).workflow_name == "film"


def test_a_key_starts_one_run(qwf, conn, film):
    """The second time the first one is the answer."""
    options = [film, "--input", "brief=x", "--dedupe-key", "monday"]
    first, again = qwf("start", *options), qwf("start", *options)
    assert again.stdout == first.stdout
    assert "has this key already: nothing was started" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nowhere",), ("there is no workflow 'nowhere'", 2)),
        (("nowhere.yaml",), ("nowhere.yaml: cannot be read: No such file", 2)),
        (("FILM", "--input", "brief=x", "--input", "brief:=7"), ("brief is given twice", 2)),
        (("FILM",), ("inputs.brief is missing", 2)),
        (("FILM", "--input", "brief=x", "--input", "scenes=many"), ("'many' is no JSON", 2)),
        (("FILM", "-i", "scenes=abc"), ("--input 'scenes=abc': scenes must be integer, and 'abc' is no", 2)),
        (("FILM", "-i", "dry=yes"), ("--input 'dry=yes': dry must be boolean, and 'yes' is no JSON", 2)),
        (("FILM", "--input", "brief:=7"), ("inputs.brief must be string", 2)),
        (("FILM", "--input", "brief=x", "--input", "breif=y"), ("inputs.breif is not asked for", 2)),
        (("FILM", "--input", "brief"), ("write name=text, or name:=JSON", 2)),
        (("FILM", "--inputs", "nowhere.json"), ("No such file", 2)),
        (("FILM", "--input", "brief=x", "--priority", "10"), ("--priority", 2)),
    ],
)
def test_what_is_wrong_is_said_in_a_line(qwf, conn, film, arguments, expected):
    """And nothing is started."""
    words, status = expected
    said = qwf("start", *[film if word == "FILM" else word for word in arguments], status=status)
    assert said.stdout == ""
    assert words in said.stderr
    assert said.stderr.count("\n") == 1
    assert RunRepository(conn).list() == []


# list and show


def test_runs_are_found_by_what_they_are(qwf, conn, film):
    """Workflow, label, status, age; the newest first."""
    runs = [start(conn, CHAIN, labels={"customer": name}) for name in ("ann", "bob")]
    other = uuid.UUID(qwf("start", film, "--input", "brief=x").stdout.strip())
    run_through(conn, dispatcher(conn), lambda _job: {})

    def found(*options: str) -> list[uuid.UUID]:
        return [uuid.UUID(one["run"]) for one in json.loads(qwf("list", "--json", *options).stdout)]

    assert found() == [other, *reversed(runs)]
    assert found("--workflow", "film") == [other]
    assert found("--label", "customer=bob") == [runs[1]]
    assert found("--status", "completed") == list(reversed(runs))
    assert found("--status", "running", "--status", "queued") == [other]
    assert found("--limit", "1") == [other]
    assert found("--older-than", "1h") == []
    assert found("--newer-than", "1h", "--label", "customer=ann") == [runs[0]]
    assert found("--poisoned") == []
    table = qwf("list").stdout.splitlines()
    assert table[0].split() == ["RUN", "WORKFLOW", "STATUS", "LEFT", "FAILED", "STARTED", "TOOK", "NOTE"]
    assert table[1].split()[:5] == [str(other), "film", "running", "2", "-"]
    assert qwf("list", "--label", "customer=eve").stderr == "no run matches\n"
    assert qwf("list", "--limit", "2").stderr.startswith("the newest 2;")


def test_where_says_the_options_of_runs_in_one_text(qwf, conn):
    """It finds and decides as the options do; a list goes on at the cursor that it names."""
    first, second = start(conn, CHAIN, labels={"customer": "ann"}), start(conn, CHAIN)
    (only,) = json.loads(qwf("list", "--where", "label:customer=ann status:queued", "--json").stdout)
    assert only["run"] == str(first)
    rest = qwf("list", "--limit", "1", "--before", str(second).replace("-", ""))
    assert rest.stdout.splitlines()[1].split()[0] == str(first)
    assert qwf("list", "--where", "lable:x=y", status=2).stderr == (
        "qwf: no filter 'lable': one of workflow, label, status, poisoned, parent, older, newer\n"
    )
    assert "differently" in qwf("cancel", "--where", "workflow:a", "--workflow", "b", status=2).stderr
    assert json.loads(qwf("cancel", "--where", "label:customer=ann", "--yes", "--json").stdout) == {
        "asked": 1
    }


def test_a_run_is_drawn(qwf, conn, film):
    """With what waits for an answer, and how to give it; the beginning of the id will do."""
    run = uuid.UUID(qwf("start", film, "--input", "brief=x", "--label", "customer=ann").stdout.strip())
    parked(conn, run)
    lines = qwf("show", run).stdout.splitlines()
    assert lines[0].startswith(f"film  {run}  running for ")
    assert lines[1] == "labels: customer=ann"
    assert [line.split()[1:3] for line in lines[3:7]] == [
        ["plan", "completed"],
        ["draw", "completed"],
        ["approve", "awaiting_input"],
        ["publish", "waiting"],
    ]
    assert "3/3" in lines[4]
    assert lines[-1] == f"to answer: qwf run submit-input {run} approve"
    assert qwf("show", str(run)[:18].upper(), "--ascii").stdout.isascii()
    told = json.loads(qwf("show", run, "--json").stdout)
    assert [node["state"] for node in told["nodes"]] == [
        "completed",
        "completed",
        "awaiting_input",
        "waiting",
    ]
    assert told["nodes"][1]["elements"]["completed"] == 3


def test_a_run_that_failed_says_why(qwf, conn):
    """On its node, and below; and who did what to it."""
    run = start(conn, CHAIN)

    def fails(_job: object) -> dict[str, Any]:
        raise ValueError("no paper")

    conn.execute("UPDATE workflow_runs SET id = id")
    turn = dispatcher(conn)
    settle(turn)
    conn.execute("UPDATE workflow_node_jobs SET max_attempts = 1")
    work(conn, fails)
    settle(turn)
    shown = qwf("show", run).stdout
    assert "ValueError: no paper" in shown
    assert "error: " in shown
    assert "cancelled" in shown.splitlines()[3]
    qwf("retry", run, "--actor", "ann", "--reason", "paper came")
    assert "run.retry by ann at " in qwf("show", run).stdout
    assert qwf("show", run).stdout.splitlines()[-1].endswith(": paper came")


@pytest.mark.parametrize("verb", ["show", "watch", "cancel", "retry", "unpoison"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nonsense", "'nonsense' is no run: write its id, or its first 8 digits or more"),
        ("0190", "'0190' is no run"),
        ("00000000", "there is no run 00000000"),
        ("00000000-0000-7000-8000-000000000000", "there is no run 00000000-0000-7000-8000-000000000000"),
    ],
)
def test_a_run_that_is_not_there_is_2(qwf, conn, verb, name, words):
    """One line, whoever asks."""
    said = qwf(verb, name, status=2)
    assert (said.stdout, said.stderr.count("\n")) == ("", 1)
    assert words in said.stderr


def test_a_beginning_that_several_runs_have(qwf, conn):
    """Is told which they are."""
    runs = [start(conn, CHAIN) for _ in range(2)]
    for number, run in enumerate(runs):
        conn.execute(
            "UPDATE workflow_runs SET id = %s WHERE id = %s",
            [uuid.UUID(f"0190b5d4-0000-7000-8000-00000000000{number}"), run],
        )
    said = qwf("show", "0190b5d4", status=2)
    assert "may be 0190b5d4-0000-7000-8000-000000000000, 0190b5d4-" in said.stderr
    assert qwf("show", "0190b5d4-0000-7000-8000-000000000001").stdout.startswith("chain  ")


# nodes


def test_nodes_pages_through_the_jobs_of_one(qwf, conn, film):
    """A table with why each is where it is, or JSON; a node that there is not is one line."""
    run = uuid.UUID(qwf("start", film, "--input", "brief=a map").stdout.strip())
    settle(dispatcher(conn))
    work(conn, lambda _job: {})
    settle(dispatcher(conn))
    said = qwf("nodes", run, "draw", "--limit", 2)
    assert [line.split()[:1] + line.split()[2:5] for line in said.stdout.splitlines()] == [
        ["INDEX", "STATUS", "TRIES", "TOOK"],
        ["0", "queued", "0", "-"],
        ["1", "queued", "0", "-"],
    ]
    assert said.stderr == "looked as far as element 1; --after 1 goes on\n"
    told = json.loads(qwf("nodes", run, "draw", "--after", 1, "--json").stdout)
    assert [one["index"] for one in told.pop("elements")] == [2]
    assert told == {
        "run": str(run),
        "node": "draw",
        "type": "task",
        "state": "active",
        "counts": {"total": 3, "left": 3, "completed": 0, "skipped": 0, "failed": 0, "cancelled": 0},
        "next": None,
    }
    assert qwf("nodes", run, "draw", "--state", "failed").stderr == "no element of draw matches\n"
    assert qwf("nodes", run, "approve").stderr == "approve is waiting: it has no jobs\n"
    assert qwf("nodes", run, "drow", status=2).stderr.startswith(f"qwf: run {run} has no node 'drow'")


def test_timeline_draws_what_waited_and_what_was_at_work(qwf, conn, film):
    """A bar a job, in the order in which they began; with JSON what each waited for."""
    run = uuid.UUID(qwf("start", film, "--input", "brief=a map").stdout.strip())
    assert qwf("timeline", run).stderr == "nothing of it has begun\n"
    parked(conn, run)
    head, *bars = qwf("timeline", run, "--ascii").stdout.splitlines()
    assert "waiting" in head
    assert [line.split()[0] for line in bars] == ["plan", "draw[0]", "draw[1]", "draw[2]", "approve"]
    told = json.loads(qwf("timeline", run, "--json").stdout)
    assert (told["run"], told["status"]) == (str(run), "running")
    kinds = [[one["kind"] for one in bar["segments"]] for bar in told["bars"]]
    assert kinds[1:] == [["parents", "queued", "running", "ended"]] * 3 + [["parents", "parked"]]
    assert qwf("timeline", "run", status=2).stderr.startswith("qwf: Invalid value: 'run' is no run")


# cancel


def test_named_runs_are_cancelled(qwf, conn):
    """Those that are over are told, and make it 1; the audit log has who and why."""
    over, waiting = start(conn, CHAIN), start(conn, CHAIN)
    turn = dispatcher(conn)
    conn.execute("UPDATE workflow_runs SET priority = 9 WHERE id = %s", [over])
    settle(turn)
    qwf("cancel", over)
    settle(turn)
    dry = qwf("cancel", over, waiting, "--dry-run").stdout
    assert dry == f"{over}: not cancelled, it is cancelled\n{waiting}: would be asked to stop\n"
    said = qwf("cancel", over, waiting, "--actor", "ann", "--reason", "wrong", status=1)
    assert said.stdout == f"{over}: not cancelled, it is cancelled\n{waiting}: asked to stop\n"
    settle(turn)
    run = row(conn, waiting)
    assert (run.status, run.cancel_reason) == ("cancelled", "wrong")
    (entry,) = AuditRepository(conn).of("run", str(waiting))
    assert (entry.actor, entry.action, entry.reason) == ("ann", "run.cancel", "wrong")


def test_a_label_is_shown_as_it_is_looked_for(qwf, conn):
    """The number 7 and the text are two things, and what the list shows can be given to --label."""
    run = start(conn, CHAIN, labels={"customer": 7, "paid": True})
    for text in (qwf("list").stdout, qwf("show", str(run)).stdout):
        assert "customer:=7" in text
        assert "paid:=true" in text
    assert str(run) in qwf("list", "--label", "customer:=7", "--label", "paid:=true").stdout
    assert str(run) not in qwf("list", "--label", "customer=7").stdout


def test_runs_are_cancelled_by_their_labels(qwf, conn):
    """After a look at how many; those that are over, or of another label, are left."""
    mine = [start(conn, CHAIN, labels={"customer": "ann"}) for _ in range(3)]
    other = start(conn, CHAIN, labels={"customer": "bob"})
    dry = qwf("cancel", "--label", "customer=ann", "--dry-run")
    assert dry.stderr == "3 runs would be cancelled\n"
    assert len(dry.stdout.splitlines()) == 4
    assert "nobody is there to be asked" in qwf("cancel", "--label", "customer=ann", status=2).stderr
    assert qwf("cancel", "--label", "customer=ann", "--yes").stdout.endswith("3 runs asked to stop\n")
    settle(dispatcher(conn))
    assert {row(conn, run).status for run in mine} == {"cancelled"}
    assert row(conn, other).status == "running"
    assert json.loads(qwf("cancel", "--label", "customer=ann", "--yes", "--json").stdout) == {
        "matched": 0,
        "dry_run": False,
    }


def test_one_node_is_cancelled(qwf, conn):
    """With what needs it, and nothing else of the run."""
    document = {"nodes": [*CHAIN["nodes"], {"id": "c", "module": "m"}]}
    run = start(conn, document)
    settle(dispatcher(conn))
    assert qwf("cancel", run, "--node", "a").stdout == f"a of {run}: asked to stop\n"
    run_through(conn, dispatcher(conn), lambda _job: {})
    told = json.loads(qwf("show", run, "--json").stdout)
    assert {node["node"]: node["state"] for node in told["nodes"]} == {
        "a": "cancelled",
        "b": "cancelled",
        "c": "completed",
    }
    assert "not cancelled, it is over" in qwf("cancel", run, "--node", "a", status=1).stdout
    assert "no node 'x'" in qwf("cancel", run, "--node", "x", status=2).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("cancel",),
        ("retry",),
        ("cancel", "00000000-0000-7000-8000-000000000000", "--label", "a=b"),
        ("cancel", "--label", "a=b", "--status", "completed"),
        ("retry", "--label", "a=b", "--status", "running"),
        ("cancel", "--label", "a"),
        ("cancel", "--label", "a=b", "--node", "n"),
        ("unpoison",),
        ("start",),
        ("submit-input", "00000000-0000-7000-8000-000000000000", "n", "{}", "--file", "x"),
    ],
)
def test_a_wrong_command_line_is_2(qwf, conn, arguments):
    """One line."""
    said = qwf(*arguments, status=2)
    assert (said.stdout, said.stderr.count("\n")) == ("", 1)


# retry


def failed_run(conn: psycopg.Connection, **more: Any) -> uuid.UUID:
    """`a` completed, `b` failed."""
    run = start(conn, CHAIN, **more)

    def body(job: Any) -> dict[str, Any]:
        if job.node_id == "b":
            raise ValueError("no")
        return {}

    turn = dispatcher(conn)
    settle(turn)
    while row(conn, run).status == "running":
        conn.execute("UPDATE workflow_node_jobs SET max_attempts = 1 WHERE finished_at IS NULL")
        work(conn, body)
        settle(turn)
    return run


def test_a_retry_says_first_what_it_would_do(qwf, conn):
    """Then does it; what was finished is kept."""
    run = failed_run(conn)
    assert qwf("retry", run, "--dry-run").stdout == f"{run}: would run again b; keeps a\n"
    assert row(conn, run).status == "failed"
    assert qwf("retry", run, "--from", "a", "--dry-run").stdout == f"{run}: would run again a, b\n"
    assert qwf("retry", run).stdout == f"{run}: runs again b; keeps a\n"
    run_through(conn, dispatcher(conn), lambda _job: {})
    assert row(conn, run).status == "completed"
    refused = qwf("retry", run, status=1).stdout
    assert refused.startswith(f"{run}: not retried: ")
    told = json.loads(qwf("retry", run, "--from", "b", "--dry-run", "--json").stdout)
    assert (told[0]["run"], told[0]["again"], told[0]["dry_run"]) == (str(run), ["b"], True)
    assert "no node 'x'" in qwf("retry", run, "--from", "x", status=2).stderr


def test_of_several_runs_those_are_retried_with_which_the_document_goes(qwf, conn, tmp_path):
    """What the others have against it is told of each."""
    bad, good = failed_run(conn, inputs={"n": "x"}), failed_run(conn, inputs={"n": 1})
    (tmp_path / "chain.json").write_text(json.dumps({**CHAIN, "inputs": {"n": {"type": "integer"}}}))
    told = qwf("retry", bad, good, "--document", tmp_path / "chain.json", "--yes", status=1).stdout
    refused, retried = told.splitlines()
    assert refused.startswith(f"{bad}: not retried: ")
    assert "integer" in refused
    assert retried == f"{good}: runs again b; keeps a"
    assert [row(conn, run).status for run in (bad, good)] == ["failed", "running"]
    alone = qwf("retry", bad, "--document", tmp_path / "chain.json", "--yes", status=2)
    assert (alone.stdout, "integer" in alone.stderr) == ("", True)


def test_a_retry_with_another_document_shows_first_what_it_keeps(qwf, conn, tmp_path):
    """And asks; a script says --yes. From a file, or as the app has it now."""
    run = failed_run(conn)
    changed = {**CHAIN, "nodes": [*CHAIN["nodes"], {"id": "c", "module": "m", "depends_on": ["a"]}]}
    (tmp_path / "chain.json").write_text(json.dumps(changed))
    would = f"{run}: would run again b, c; keeps a; changed: c\n"
    how = ("--document", tmp_path / "chain.json")
    assert qwf("retry", run, *how, "--dry-run").stdout == would
    asked = qwf("retry", run, *how, status=2)
    assert (asked.stdout, "--yes" in asked.stderr) == (would, True)
    matching = qwf("retry", "--workflow", "chain", *how, status=2)
    assert matching.stdout.endswith(f"\n{would}")
    assert row(conn, run).status == "failed"
    assert "not both" in qwf("retry", run, *how, "--latest", status=2).stderr
    set_workflow_dir(tmp_path)
    try:
        assert qwf("retry", run, "--latest", "--dry-run").stdout == would
        told = json.loads(qwf("retry", run, "--latest", "--yes", "--json").stdout)
    finally:
        reset_config()
    assert (told[0]["again"], told[0]["kept"], told[0]["changed"]) == (["b", "c"], ["a"], ["c"])
    run_through(conn, dispatcher(conn), lambda _job: {})
    assert (row(conn, run).status, len(row(conn, run).spec["nodes"])) == ("completed", 3)


def test_failed_runs_are_retried_by_their_labels(qwf, conn):
    """Those that failed; one that cannot be is told, and the others go on."""
    mine = [failed_run(conn, labels={"customer": "ann"}) for _ in range(2)]
    other = failed_run(conn)
    dry = qwf("retry", "--label", "customer=ann", "--dry-run")
    assert sum("would run again b" in line for line in dry.stdout.splitlines()) == 2
    said = qwf("retry", "--label", "customer=ann", "--yes").stdout
    assert sum("runs again b; keeps a" in line for line in said.splitlines()) == 2
    assert {row(conn, run).status for run in mine} == {"running"}
    assert row(conn, other).status == "failed"
    assert qwf("retry", "--label", "customer=ann", "--yes").stderr == "no runs match\n"


# submit-input


def test_a_node_is_answered(qwf, conn, film):
    """As JSON, from a file or from standard input; who answers is kept."""
    run = uuid.UUID(qwf("start", film, "--input", "brief=x").stdout.strip())
    parked(conn, run)
    said = qwf("submit-input", run, "approve", '{"ok": true}', "--by", "ann")
    assert (said.stdout, said.stderr.endswith("is stored; an orchestrator takes it up\n")) == ("", True)
    (stored,) = InputSubmissionRepository(conn).list(run_id=run)
    assert (stored.payload, stored.submitted_by) == ({"ok": True, "grade": 3}, "ann")
    asked = qwf("submit-input", run, "approve", "--show").stdout
    assert asked.startswith("approve is active\n")
    assert '{"ok": true, "grade": 3}' in asked.splitlines()[-1]
    assert "--show takes no answer" in qwf("submit-input", run, "approve", "{}", "--show", status=2).stderr
    run_through(conn, dispatcher(conn), lambda _job: {})
    assert (row(conn, run).status, row(conn, run).outputs) == ("completed", {"ok": True})
    assert 'outputs: {"ok": true}' in qwf("show", run).stdout


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('{"ok": "yes"}', "the answer.ok must be boolean"),
        ("{}", "the answer.ok is missing"),
        ("[1]", "it must be an object"),
        ("{", "the answer"),
    ],
)
def test_a_wrong_answer_is_refused(qwf, conn, film, answer, words):
    """And the node goes on waiting."""
    run = uuid.UUID(qwf("start", film, "--input", "brief=x").stdout.strip())
    parked(conn, run)
    said = qwf("submit-input", run, "approve", answer, status=2)
    assert words in said.stderr
    assert said.stderr.count("\n") == 1
    assert InputSubmissionRepository(conn).list(run_id=run) == []
    assert "there is no answer" in qwf("submit-input", run, "approve", status=2).stderr
    not_yet = qwf("submit-input", run, "publish", "{}", status=1).stderr
    assert "takes no answer" in not_yet


def test_the_question_is_put_in_a_terminal(qwf, conn, film, qwf_dsn):
    """Property by property, with its type and its default."""
    run = uuid.UUID(qwf("start", film, "--input", "brief=x").stdout.strip())
    parked(conn, run)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "queue_workflows", "run", "submit-input", str(run), "approve"],
        stdin=slave,
        stderr=slave,
        stdout=subprocess.DEVNULL,
        env=qwf_environment(QWF_DB_URL=qwf_dsn),
    )
    os.close(slave)
    try:
        assert "Is it good?" in until_prompt(master, "ok [y/n]: ")
        os.write(master, b"y\n")
        until_prompt(master, "grade [3]: ")
        os.write(master, b"many\n")
        until_prompt(master, "grade [3]: ")
        os.write(master, b"\n")
        assert process.wait(150) == 0
    finally:
        process.kill()
        os.close(master)
    (stored,) = InputSubmissionRepository(conn).list(run_id=run)
    assert stored.payload == {"ok": True, "grade": 3}


def until_prompt(master: int, prompt: str) -> str:
    """What a terminal shows until it asks."""
    shown = ""
    while not shown.endswith(prompt):
        shown += os.read(master, 4096).decode()
    return shown


# poison


def poison(conn: psycopg.Connection, run: uuid.UUID) -> None:
    conn.execute(
        "INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, tries, last_error,"
        " poisoned_at) VALUES (%s, 1, 0, 'nonsense', 8, 'ValueError: boom', now())",
        [run],
    )


def test_what_was_given_up_is_found_and_tried_again(qwf, conn):
    """Listed, drawn with its error, freed; the audit log has it."""
    run, other = start(conn, CHAIN), start(conn, CHAIN)
    poison(conn, run)
    (found,) = json.loads(qwf("list", "--poisoned", "--json").stdout)
    assert (found["run"], found["poisoned"]) == (str(run), True)
    assert "poisoned" in qwf("list").stdout.splitlines()[2]
    assert "(nonsense) after 8 tries: ValueError: boom" in qwf("show", run).stdout
    said = qwf("unpoison", run, other, "--actor", "ann", status=1).stdout
    assert said == f"{run}: 1 event is tried again\n{other}: nothing was poisoned\n"
    ((tries, poisoned_at),) = conn.execute(
        "SELECT tries, poisoned_at FROM workflow_dispatch_events WHERE kind = 'nonsense'"
    ).fetchall()
    assert (tries, poisoned_at) == (0, None)
    (entry,) = AuditRepository(conn).of("run", str(run))
    assert (entry.actor, entry.action, entry.details) == ("ann", "run.unpoison", {"events": 1})
    assert json.loads(qwf("unpoison", run, "--json", status=1).stdout) == [{"run": str(run), "events": 0}]
    conn.execute("UPDATE workflow_dispatch_events SET poisoned_at = now() WHERE kind = 'nonsense'")
    assert qwf("unpoison", run, other, "--dry-run").stdout == (
        f"{run}: would be tried again\n{other}: nothing was poisoned\n"
    )
    assert qwf("unpoison", "--poisoned", "--dry-run").stderr == "1 run would be unpoisoned\n"
    assert qwf("unpoison", "--where", "newer:1d", "--yes").stdout.endswith("1 event of 1 run tried again\n")
    assert qwf("unpoison", "--poisoned", "--yes").stderr == "no runs match\n"


# what it costs, and who may go away


def test_finding_runs_reads_no_documents_and_no_finished_runs(conn):
    """Among 20,000 old ones: those that run, those of a label, those that are poisoned."""
    conn.execute("ALTER TABLE workflow_runs SET (autovacuum_enabled = off)")
    conn.execute(
        "INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, finished_at, labels)"
        " SELECT gen_random_uuid(), 'old', '{}', 'h', 'completed', now(), '{\"customer\": \"old\"}'"
        " FROM generate_series(1, 20000)"
    )
    run = start(conn, CHAIN, labels={"customer": "ann"})
    poison(conn, run)
    conn.execute("ANALYZE workflow_runs, workflow_dispatch_events")
    for wanted in (
        RunFilter(status=("running",)),
        RunFilter(labels={"customer": "ann"}),
        RunFilter(poisoned=True),
    ):
        filters = wanted.where()
        sql = listing.COUNT.replace("{where}", filters.where)
        plan = explain(conn, "force_custom_plan", sql, filters.params | {"limit": 50})
        scanned = [node for node in plan if node.get("Relation Name") == "workflow_runs"]
        assert all(node["Node Type"] != "Seq Scan" for node in scanned), wanted
    conn.execute("ALTER TABLE workflow_runs RESET (autovacuum_enabled)")


def test_whoever_reads_may_go_away(qwf_dsn, conn):
    """`| head -1`."""
    for _ in range(200):
        start(conn, CHAIN)
    process = start_qwf("run", "list", "--limit", "200", "--json", QWF_DB_URL=qwf_dsn)
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(150) == 141


def test_statuses_of_jobs_and_nodes_have_a_look():
    """Each word that a row may show."""
    from queue_workflows.drawing.run import LOOKS
    from queue_workflows.states import NodeState, RunStatus

    assert set(LOOKS) >= {*JobStatus, *NodeState, *RunStatus}
