"""`qwf db` as a user meets it: one clear line, the right exit code."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from support.rows.revisions import BEFORE_HEAD, HEAD, REVISIONS
from support.rows.schemas import catalog, query, qwf, qwf_environment

from queue_workflows.db.shipped_chain import chain_directory

pytestmark = pytest.mark.slow

HOST = ("--app", "support.host_app.wiring")


def ok(*arguments: str, **environment: str) -> str:
    """The output of a command that must succeed."""
    run = qwf(*arguments, **environment)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_upgrade_tells_of_each_revision_and_current_of_the_end(empty: str) -> None:
    """A line a revision while it runs; afterwards there is nothing to do."""
    lines = ok("db", "upgrade", QWF_DB_URL=empty).splitlines()
    assert len(lines) == len(REVISIONS)
    assert lines[3].startswith("0004 ")
    assert all(line.endswith(" … ok") for line in lines)
    assert ok("db", "upgrade", QWF_DB_URL=empty) == "nothing to do\n"
    assert ok("db", "current", QWF_DB_URL=empty) == f"engine: {HEAD} (up to date)\n"
    assert ok("db", "check", QWF_DB_URL=empty) == f"engine: at {HEAD}, no difference to the models\n"


def test_json_for_machines(empty: str) -> None:
    """`current` and `history` print lists of objects."""
    assert json.loads(ok("db", "current", "--json", QWF_DB_URL=empty)) == [
        {"chain": "engine", "current": [], "head": HEAD, "status": "empty", "missing": []}
    ]
    history = json.loads(ok("db", "history", "--json"))
    assert history[0]["revision"] == "0001"
    assert history[-1] | {"subject": ""} == {
        "chain": "engine",
        "revision": HEAD,
        "down_revision": BEFORE_HEAD,
        "subject": "",
        "is_head": True,
    }


def test_the_whole_life_of_a_host_chain(migrated: str, tmp_path: Path) -> None:
    """The commands of the documentation, in its order."""
    where = {"QWF_DB_URL": migrated, "HOST_APP_VERSIONS": str(tmp_path)}
    written = ok(*HOST, "db", "revision", "--chain", "host", "--autogenerate", "-m", "First tables", **where)
    assert written == f"{tmp_path}/0001_first_tables.py\n"
    assert ok(*HOST, "db", "upgrade", "--chain", "host", **where) == "host 0001 First tables … ok\n"
    assert ok(*HOST, "db", "current", **where).splitlines() == [
        f"engine: {HEAD} (up to date)",
        "host: 0001 (up to date)",
    ]
    assert "host: at 0001, no difference" in ok(*HOST, "db", "check", **where)
    refused = qwf(*HOST, "db", "downgrade", "base", "--chain", "engine", "--yes", **where)
    assert refused.returncode == 79
    assert "downgrade it first" in refused.stderr
    assert ok(*HOST, "db", "downgrade", "base", "--chain", "host", "--yes", **where) == (
        "undo host 0001 First tables … ok\n"
    )
    assert ("table", "films") not in catalog(migrated)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("db", "upgrade", "0099"), 2, "there is no revision '0099'"),
        (("db", "upgrade", "--chain", "nonsense"), 2, "'nonsense' is not one of"),
        (("db", "upgrade", "--chain", "host"), 78, "no host chain is configured"),
        (("db", "upgrade", "--lock-timeout", "0"), 2, "lock-timeout"),
        (("db", "upgrade", "--lock-timeout", "nan"), 2, "lock-timeout"),
        (("db", "upgrade", "--lock-timeout", "inf"), 2, "lock-timeout"),
        (("db", "upgrade", "--lock-timeout", "1e9"), 2, "lock-timeout"),
        (("db", "upgrade", "--wait", "nan"), 2, "wait"),
        (("db", "adopt", "--wait", "inf"), 2, "wait"),
        (("db", "upgrade", "+99"), 2, "from base does not lead to '+99'"),
        (("db", "upgrade", "base"), 2, "does not lead to 'base'"),
        (("db", "upgrade", "0005:0009"), 2, "--sql"),
        (("db", "upgrade", "engine@head"), 2, "does not lead to"),
        (("db", "downgrade", "-1", "--chain", "engine", "--yes"), 2, "'-1'"),
        (("db", "downgrade", "head", "--chain", "engine", "--yes"), 2, "does not lead to 'head'"),
        (
            ("db", "downgrade", "0009:0013", "--chain", "engine", "--sql"),
            2,
            "from 0009 does not lead to '0013'",
        ),
        (("db", "upgrade", "0013:0009", "--sql"), 2, "from 0013 does not lead to '0009'"),
        (("db", "revision", "--chain", "engine"), 2, "-m"),
        (("db", "revision", "--chain", "engine", "-m", "  "), 2, "say what the revision is about"),
        (("db", "downgrade", "-1", "--yes"), 2, "from base does not lead to '-1'"),
        (("db", "downgrade", "-1", "-2", "--yes"), 2, "No such option '-1'"),
        (
            (*HOST, "db", "downgrade", "-1", "--yes"),
            2,
            "there are two chains: say --chain engine or --chain host",
        ),
        (("db", "downgrade", "--chain", "engine", "--yes"), 2, "REVISION"),
        (("db", "downgrade", "base", "--chain", "engine"), 2, "say --yes"),
        (("db", "downgrade", "base", "--chain", "engine", "--sql"), 2, "FROM:TO"),
        (("db", "adopt"), 79, "no hand-made ledger"),
        (("db", "check"), 79, f"at nothing, this needs {HEAD}"),
        (("--db", "postgresql://127.0.0.1:1/x", "db", "current"), 69, "cannot use"),
        (("--db", "postgresql://127.0.0.1:1/x", "db", "upgrade"), 69, "cannot use"),
    ],
)
def test_bad_input_is_one_line_and_its_exit_code(
    empty: str, arguments: tuple[str, ...], status: int, said: str, tmp_path: Path
) -> None:
    """No traceback, and nothing is changed."""
    run = qwf(*arguments, QWF_DB_URL=empty, HOST_APP_VERSIONS=str(tmp_path))
    assert run.returncode == status, run.stderr
    assert said in run.stderr
    assert len(run.stderr.splitlines()) == 1, run.stderr
    assert catalog(empty) == {}


@pytest.mark.parametrize(
    ("verb", "revision"),
    [("upgrade", "+1"), ("upgrade", "-1"), ("downgrade", "+1"), ("downgrade", "-99"), ("downgrade", "heads")],
)
def test_a_step_that_leads_nowhere_is_a_usage_error(migrated: str, verb: str, revision: str) -> None:
    """Nothing is above head, and nothing is ninety-nine steps below it: one line of our own."""
    yes = ("--yes",) if verb == "downgrade" else ()
    run = qwf("db", verb, "--chain", "engine", *yes, "--", revision, QWF_DB_URL=migrated)
    assert run.returncode == 2, run.stderr
    assert f"from {HEAD} does not lead to '{revision}'" in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert ok("db", "check", QWF_DB_URL=migrated)


def test_the_last_revision_is_undone_by_a_number(migrated: str) -> None:
    """Where there is one chain nobody has to name it; the options may stand on either side."""
    (undone,) = ok("db", "downgrade", "-1", "--yes", QWF_DB_URL=migrated).splitlines()
    assert undone.startswith(f"undo {HEAD} ")
    assert undone.endswith(" … ok")
    assert ok("db", "current", QWF_DB_URL=migrated).startswith(f"engine: {BEFORE_HEAD} (behind")
    assert len(ok("db", "downgrade", "--yes", "-2", "--wait", "9", QWF_DB_URL=migrated).splitlines()) == 2


def downgrade_asked(dsn: str, answer: bytes) -> subprocess.CompletedProcess[str]:
    """`qwf db downgrade` in a terminal, in which a person types the answer when asked."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "queue_workflows", "db", "downgrade", BEFORE_HEAD, "--chain", "engine"],
        env=qwf_environment(QWF_DB_URL=dsn),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    try:
        os.write(ours, answer)
        out, err = process.communicate(timeout=150)
    finally:
        process.kill()
        os.close(ours)
    return subprocess.CompletedProcess([], process.returncode, out, err)


def test_a_no_is_taken_for_a_no(migrated: str) -> None:
    """A careful person's answer is no interruption: one plain line, exit code 1, nothing done."""
    no = downgrade_asked(migrated, b"n\n")
    assert (no.returncode, no.stdout) == (1, "")
    assert no.stderr.splitlines()[-1].endswith("nothing done")
    assert ok("db", "current", QWF_DB_URL=migrated) == f"engine: {HEAD} (up to date)\n"
    yes = downgrade_asked(migrated, b"y\n")
    assert (yes.returncode, yes.stdout.endswith("… ok\n")) == (0, True), yes.stderr


def test_a_closed_standard_input_is_nobody_to_ask(migrated: str) -> None:
    """As cron or a service has it: asked for --yes, not a traceback."""
    ran = subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m queue_workflows db downgrade base --chain engine <&-"],
        env=qwf_environment(QWF_DB_URL=migrated),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert ran.returncode == 2, ran.stderr
    assert "say --yes" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_url_hides_the_password_unless_asked() -> None:
    """What goes into a ticket is safe; what goes into psql is complete."""
    dsn = "postgresql://me:s3cret@127.0.0.1:1/none"
    shown = qwf("db", "url", QWF_DB_URL=dsn)
    assert (shown.returncode, "s3cret" in shown.stdout + shown.stderr) == (0, False)
    assert "QWF_DB_URL" in shown.stderr
    assert ok("db", "url", "--show-password", QWF_DB_URL=dsn) == f"{dsn}\n"


def test_a_revision_belongs_to_one_chain(migrated: str, tmp_path: Path) -> None:
    """With two chains a revision without --chain could mean either."""
    run = qwf(*HOST, "db", "upgrade", "0001", QWF_DB_URL=migrated, HOST_APP_VERSIONS=str(tmp_path))
    assert run.returncode == 2
    assert "say --chain engine or --chain host" in run.stderr


def test_plain_alembic_by_hand_serves_the_engine_chain(empty: str) -> None:
    """In a checkout `alembic` itself works: the settings name the database, alembic.ini the logging."""
    ini = chain_directory().parent / "alembic.ini"

    def alembic(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "alembic", "-c", str(ini), *arguments],
            env=qwf_environment(QWF_DB_URL=empty),
            capture_output=True,
            text=True,
            timeout=150,
        )

    up = alembic("upgrade", "head")
    assert up.returncode == 0, up.stderr
    assert f"Running upgrade {BEFORE_HEAD} -> {HEAD}" in up.stderr
    assert query(empty, "SELECT version_num FROM queue_schema_version") == [(HEAD,)]
    checked = alembic("check")
    assert "No new upgrade operations detected" in checked.stdout, checked.stderr
    offline = alembic("upgrade", "head", "--sql")
    assert "CREATE TABLE workflow_runs" in offline.stdout
