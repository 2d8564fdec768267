"""`qwf queue import`: a file of jobs, all of it or a clear word about what is not; again without doubles."""

from __future__ import annotations

import gzip
import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import Said, qwf_here
from support.rows.schemas import qwf_environment, until

from queue_workflows.config import configure, reset_config
from queue_workflows.repositories.sql.columns import CHUNK_ROWS

AWAY = "postgresql://nobody@127.0.0.1:1/nowhere"


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute("TRUNCATE ingest_jobs")
        yield connection


def line(number: int, **more: Any) -> str:
    return json.dumps({"task_name": "page", "queue": "fetch", "dedupe_key": f"p{number}", **more})


def long_line(number: int) -> str:
    return line(number, args={"text": "x" * 1600})


def written(path: Path, *lines: str | bytes, end: str = "\n") -> str:
    path.write_bytes(
        b"".join(one if isinstance(one, bytes) else one.encode() + end.encode() for one in lines)
    )
    return str(path)


def keys(conn: psycopg.Connection) -> list[str]:
    return [key for (key,) in conn.execute("SELECT dedupe_key FROM ingest_jobs ORDER BY position")]


def imported(dsn: str, file: str, *options: str, status: int = 0) -> dict[str, Any]:
    said = qwf_here("--db", dsn, "queue", "import", file, "--json", *options, status=status)
    return json.loads(said.stdout) if said.stdout else {"said": said.stderr}


def test_a_wrong_queue_for_lines_that_name_none_is_refused_though_all_name_one(tmp_path):
    """Who says --queue means something by it; and nothing is read or asked for first."""
    file = written(tmp_path / "jobs", line(1))
    for form in ((), ("--dry-run",)):
        said = qwf_here("--db", AWAY, "queue", "import", file, "--queue", "cpu", *form, status=2)
        assert "--queue: 'cpu' is none of this application's ingest queues (" in said.stderr
        assert (said.stdout, said.stderr.count("\n")) == ("", 1)


def test_every_field_of_a_line_is_stored(qwf_dsn, conn, tmp_path):
    """And the same file again adds nothing."""
    full = {
        "task_name": "page",
        "queue": "load",
        "args": {"url": "https://example.org/ü"},
        "reason": "new",
        "dedupe_key": "a",
        "priority": 7,
        "run_at": "2040-01-31T12:00:00+02:00",
        "limit_key": "host:example.org",
        "max_attempts": 4,
        "backoff_s": 1.5,
        "timeout_s": 60,
        "stall_timeout_s": 30,
        "host_lock": "disk",
        "traceparent": "00-1-2-03",
    }
    least = {"task_name": "page", "queue": None, "dedupe_key": "b"}
    file = written(tmp_path / "jobs.jsonl", json.dumps(full, ensure_ascii=False), json.dumps(least))
    told = {"lines": 2, "skipped": 0, "dry_run": False}
    assert imported(qwf_dsn, file, "--queue", "fetch") == told | {"created": 2, "present": 0}
    before = conn.execute("SELECT to_jsonb(j) FROM ingest_jobs j ORDER BY id").fetchall()
    ((first,), (second,)) = before
    assert {name: first[name] for name in full} == full | {"run_at": first["run_at"]}
    assert datetime.fromisoformat(first["run_at"]) == datetime.fromisoformat(full["run_at"])
    assert (second["queue"], second["args"], second["priority"]) == ("fetch", {}, 5)
    assert imported(qwf_dsn, file, "--queue", "load") == told | {"created": 0, "present": 2}
    assert conn.execute("SELECT to_jsonb(j) FROM ingest_jobs j ORDER BY id").fetchall() == before


def test_a_line_says_which_jobs_are_like_it(qwf_dsn, conn, tmp_path):
    """As for `qwf_enqueue`; beside lines that do not, and refused with its number where it makes no sense."""
    page = {"task_name": "page", "queue": "fetch"}
    unique = {"by": ["args.order"], "replace": ["args"]}
    jobs = [page | {"args": {"order": 1, "n": n}, "unique": unique} for n in range(3)]
    file = written(tmp_path / "jobs", *map(json.dumps, [*jobs, page]))
    told = {"lines": 4, "skipped": 0, "dry_run": False}
    assert imported(qwf_dsn, file) == told | {"created": 2, "present": 2}
    assert imported(qwf_dsn, file, "--dedupe-by", "content") == told | {"created": 1, "present": 3}
    rows = conn.execute("SELECT args FROM ingest_jobs ORDER BY position").fetchall()
    assert rows == [({"order": 1, "n": 2},), ({},), ({},)]
    for wrong in (True, {"for": 3}, {"by": ["order"]}):
        bad = written(tmp_path / "bad", json.dumps(page | {"unique": wrong}))
        assert "line 1" in imported(qwf_dsn, bad, status=2)["said"]


def test_a_line_says_what_its_job_has_alone(qwf_dsn, conn, tmp_path):
    """By the words of a job; one that has two keys is refused with its number."""
    file = written(
        tmp_path / "jobs.jsonl",
        line(1, exclusive="account-7"),
        line(2, host_lock="elsewhere:disk", exclusive=None),
    )
    assert imported(qwf_dsn, file)["created"] == 2
    assert conn.execute("SELECT limit_key, host_lock FROM ingest_jobs ORDER BY id").fetchall() == [
        ("exclusive:account-7", None),
        (None, "elsewhere:disk"),
    ]
    wrong = written(tmp_path / "wrong.jsonl", line(3), line(4, exclusive="a", limit_key="b"))
    assert "line 2: " in (said := imported(qwf_dsn, wrong, status=2)["said"])
    assert "both exclusive and limit_key" in said


@pytest.mark.parametrize("shape", ["plain", "crlf", "bom", "blank lines", "no end", "gzip"])
def test_files_as_they_come(qwf_dsn, conn, tmp_path, shape):
    """However an editor or a program left them."""
    lines: list[str | bytes] = [line(1), line(2), line(3)]
    path, end = tmp_path / "jobs.jsonl", "\n"
    if shape == "crlf":
        end = "\r\n"
    elif shape == "bom":
        lines = [b"\xef\xbb\xbf", *lines]
    elif shape == "blank lines":
        lines = [b"\n", line(1), b"  \r\n", line(2), b"\n", line(3), b"\n\n"]
    elif shape == "no end":
        lines = [line(1), line(2), line(3).encode()]
    written(path, *lines, end=end)
    if shape == "gzip":
        path = tmp_path / "jobs.jsonl.gz"
        path.write_bytes(gzip.compress((tmp_path / "jobs.jsonl").read_bytes()))
    assert imported(qwf_dsn, str(path))["created"] == 3
    assert keys(conn) == ["p1", "p2", "p3"]


BAD = {
    '{"task_name": "page"': "no JSON: Expecting ',' delimiter at column 21",
    '{"task_name": "page", "queue": "fetch"}\x0c': "no JSON: Extra data at column 40",
    "[1, 2]": "no object",
    '{"queue": "fetch"}': "it has no task_name",
    '{"task_name": "page"}': "it has no queue",
    '{"task_name": "page", "queue": "elsewhere"}': "'elsewhere' is none of this application's ingest queues",
    '{"task_name": "page", "queue": "cpu"}': "'cpu' is none of this application's ingest queues",
    '{"task_name": "page", "queue": "' + "q" * 9000 + '"}': "is none of this application's ingest queues",
    '{"task_name": "page", "queue": 7}': "queue must be a string, not int",
    '{"task_name": "page", "queue": "fetch", "arg": {}}': "unknown: 'arg'",
    '{"task_name": ["page"], "queue": "fetch"}': "task_name must be a string, not list",
    '{"task_name": "page", "queue": "fetch", "args": [1]}': "args must be a dict, not list",
    '{"task_name": "page", "queue": "fetch", "args": {"x": NaN}}': "payload at $.x: nan is not JSON",
    '{"task_name": "page", "queue": "fetch", "args": {"x": "\\u0000"}}': "NUL (\\u0000) in a string",
    '{"task_name": "page", "queue": "fetch", "args": {"x": "\\ud800"}}': "surrogate \\ud800 in a string",
    '{"task_name": "page", "queue": "fetch", "priority": 10}': "priority must be a whole number from 0 to 9",
    '{"task_name": "page", "queue": "fetch", "delay": 1'
    + "0" * 400
    + "}": "delay must be a number of seconds",
    '{"task_name": "page", "queue": "fetch", "run_at": "soon"}': "run_at 'soon' is no time",
    '{"task_name": "page", "queue": "fetch", "run_at": "2030-01-01T00:00"}': "has no time zone",
    '{"task_name": "page", "queue": "fetch", "run_at": "9999-12-31T23:59-12:00"}': "is beyond the calendar",
    '{"task_name": "page", "queue": "fetch", "args": {"x": ' + "9" * 5000 + "}}": "no JSON that can be read",
    '{"task_name": "page", "queue": "fetch", "args": ' + "[" * 100_000: "nested too deeply",
    '{"task_name": "page", "queue": "fetch", "args": {"x": "' + "x" * 3000 + '"}}': "larger than 2,000 bytes",
    '{"task_name": "page", "queue": "fetch", "args": {"x": "' + "x" * 600_000 + '"}}': "longer than 526,288",
}


def test_a_bad_line_is_named_and_skipped_if_that_is_wanted(qwf_dsn, conn, tmp_path):
    """Each kind of bad line, by its number and in words; the good ones around them are there."""
    configure(payload_max_bytes=2000)
    try:
        lines: list[str | bytes] = [line(0)]
        for number, bad in enumerate(BAD, start=1):
            lines += [bad, line(number)]
        lines.append(b'{"task_name": "\xff"}\n')
        file = written(tmp_path / "jobs.jsonl", *lines)
        said = qwf_here("--db", qwf_dsn, "queue", "import", file, "--skip-bad")
    finally:
        reset_config()
    told = said.stderr.splitlines()
    for number, (reason, one) in enumerate(zip([*BAD.values(), "no UTF-8 at byte 16"], told, strict=True)):
        assert one.startswith(f"line {2 * number + 2}: "), one
        assert reason in one
        assert len(one) < 500
    count = len(BAD) + 1
    assert said.stdout == f"{len(lines)} lines: {count} new, 0 there already, {count} bad lines skipped\n"
    assert keys(conn) == [f"p{number}" for number in range(count)]


def test_a_bad_line_ends_the_import_with_what_came_before_it(qwf_dsn, conn, tmp_path):
    """All of that and nothing behind it; the file mended and imported again makes it whole."""
    good = [line(number) for number in range(CHUNK_ROWS + 5)]
    file = written(tmp_path / "jobs.jsonl", *good[:-2], "{", *good[-2:])
    said = qwf_here("--db", qwf_dsn, "queue", "import", file, status=2)
    before = CHUNK_ROWS + 3
    assert said.stdout == ""
    assert said.stderr.startswith(f"qwf: line {before + 1}: no JSON: ")
    assert f"all up to line {before} is imported: {before:,} new, 0 there already" in said.stderr
    assert said.stderr.count("\n") == 1
    assert keys(conn) == [f"p{number}" for number in range(before)]
    written(tmp_path / "jobs.jsonl", *good)
    assert imported(qwf_dsn, file) == {
        "lines": len(good),
        "skipped": 0,
        "dry_run": False,
        "created": 2,
        "present": before,
    }


def test_a_bad_first_line_imports_nothing(qwf_dsn, conn, tmp_path):
    """And says so."""
    said = imported(qwf_dsn, written(tmp_path / "jobs.jsonl", "x", line(1)), status=2)["said"]
    assert "line 1: no JSON" in said
    assert "nothing was imported" in said
    assert keys(conn) == []


def test_a_dry_run_checks_all_lines_and_needs_no_database(tmp_path):
    """Every bad line is told; 2 if there is one."""
    file = written(tmp_path / "jobs.jsonl", line(1), "x", line(2), "{}")
    said = qwf_here("--db", AWAY, "queue", "import", file, "--dry-run", status=2)
    assert [one.split(":")[0] for one in said.stderr.splitlines()] == ["line 2", "line 4"]
    assert said.stdout == "4 lines: 2 good, 2 bad; nothing was imported\n"
    assert imported(AWAY, written(tmp_path / "ok.jsonl", line(1)), "--dry-run")["good"] == 1


def test_lines_without_a_key_get_one_of_their_content(qwf_dsn, conn, tmp_path):
    """`content` takes equal lines for one job, `line` for several; both add nothing the second time."""
    same = '{"task_name": "page", "queue": "fetch", "args": {"n": 1}}'
    file = written(tmp_path / "jobs.jsonl", same, f"  {same} ", line(1))
    made = {
        by: [imported(qwf_dsn, file, "--dedupe-by", by)["created"] for _ in range(2)]
        for by in ("content", "line")
    }
    assert made == {"content": [2, 0], "line": [2, 0]}
    assert [imported(qwf_dsn, file)["created"] for _ in range(2)] == [2, 2]


def test_standard_input(qwf_dsn, conn, monkeypatch):
    """`-`, with a task for lines that name none."""

    class Piped:
        closed = False
        buffer = io.BytesIO(b'{"args": {"n": 1}}\n{"args": {"n": 2}}')

    monkeypatch.setattr(sys, "stdin", Piped)
    assert imported(qwf_dsn, "-", "--task", "page", "--queue", "load")["created"] == 2
    found = conn.execute("SELECT task_name, queue, args FROM ingest_jobs ORDER BY position").fetchall()
    assert found == [("page", "load", {"n": 1}), ("page", "load", {"n": 2})]


def test_an_empty_file_is_imported(qwf_dsn, conn, tmp_path):
    """It has no jobs."""
    assert imported(qwf_dsn, written(tmp_path / "jobs.jsonl"))["lines"] == 0


@pytest.mark.parametrize("kind", ["none", "directory", "no gzip", "cut gzip", "damaged gzip"])
def test_a_file_that_cannot_be_read(qwf_dsn, conn, tmp_path, kind):
    """One line with 2; of a cut file what could be read is there."""
    path = tmp_path / "jobs.jsonl.gz"
    packed = gzip.compress("".join(f"{line(number)}\n" for number in range(20)).encode())
    if kind == "directory":
        path.mkdir()
    elif kind == "no gzip":
        path.write_text(line(1))
    elif kind == "cut gzip":
        path.write_bytes(packed[:-10])
    elif kind == "damaged gzip":
        path.write_bytes(packed[:30] + b"\0" * 40 + packed[70:])
    said: Said = qwf_here("--db", qwf_dsn, "queue", "import", str(path), status=2)
    assert (said.stdout, said.stderr.count("\n")) == ("", 1)
    if kind == "none":
        assert f"{path}: No such file or directory" in said.stderr
    # No way leads past it, so none is named.
    assert "--skip-bad" not in said.stderr


def test_no_database_is_69(tmp_path):
    """One line, as everywhere."""
    said = qwf_here("--db", AWAY, "queue", "import", written(tmp_path / "jobs.jsonl", line(1)), status=69)
    assert said.stderr.count("\n") == 1


def importing(dsn: str, *options: str, name: str = "importer") -> subprocess.Popen[str]:
    """A real process that reads what it is fed."""
    return subprocess.Popen(
        [sys.executable, "-m", "queue_workflows", "queue", "import", "-", *options],
        env=qwf_environment(QWF_DB_URL=f"{dsn}{'&' if '?' in dsn else '?'}application_name={name}"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def feed(process: subprocess.Popen[str], numbers: range) -> None:
    assert process.stdin
    process.stdin.write("".join(f"{line(number)}\n" for number in numbers))
    process.stdin.flush()


@pytest.mark.slow
def test_a_pipe_that_pauses_is_not_waited_for(qwf_dsn, conn):
    """The lines that came are jobs already; the rest follows."""
    process = importing(qwf_dsn, "--json")
    feed(process, range(3))
    until(lambda: keys(conn) == ["p0", "p1", "p2"], "what came is there")
    out, _ = process.communicate(f"{line(3)}\n{line(4)}", timeout=150)
    assert json.loads(out)["created"] == 5


def told_line(said: str) -> int:
    """Up to which line all is said to be imported."""
    found = re.search(r"all up to line (\d+) is imported: ([\d,]+) new, 0 there already", said)
    assert found, said
    assert found[1] == found[2].replace(",", "")
    return int(found[1])


@pytest.mark.slow
def test_ctrl_c_then_the_same_again_finishes_it(qwf_dsn, conn):
    """Interrupted with batches committed: 130, how far it surely came, and no double later."""
    process = importing(qwf_dsn)
    feed(process, range(2 * CHUNK_ROWS + 100))
    until(lambda: len(keys(conn)) == 2 * CHUNK_ROWS + 100, "all that came is committed")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=150)
    assert (process.returncode, out) == (130, "")
    assert 0 < told_line(err) <= 2 * CHUNK_ROWS + 100
    assert err.splitlines()[0].endswith("; the same command adds the rest")
    assert err.splitlines()[1:] == ["qwf: interrupted"]
    again = importing(qwf_dsn, "--json")
    out, _ = again.communicate("".join(f"{line(number)}\n" for number in range(5000)), timeout=150)
    assert json.loads(out) == {
        "lines": 5000,
        "skipped": 0,
        "dry_run": False,
        "created": 5000 - 2 * CHUNK_ROWS - 100,
        "present": 2 * CHUNK_ROWS + 100,
    }
    assert keys(conn) == [f"p{number}" for number in range(5000)]


@pytest.mark.slow
def test_two_copies_at_once_make_each_job_once(qwf_dsn, conn):
    """One forwards, one backwards: both wait for each other's keys, and neither fails."""
    numbers = range(3 * CHUNK_ROWS)
    copies = [importing(qwf_dsn, "--json") for _ in range(2)]
    for copy, order in zip(copies, (numbers, numbers[::-1]), strict=True):
        feed(copy, order)
    told = [json.loads(copy.communicate(timeout=150)[0]) for copy in copies]
    assert [copy.returncode for copy in copies] == [0, 0]
    assert sum(one["created"] for one in told) == len(numbers)
    assert sum(one["present"] for one in told) == len(numbers)
    assert sorted(keys(conn)) == sorted(f"p{number}" for number in numbers)


class Cutting(io.BytesIO):
    """Standard input at whose `at`-th line the server ends all sessions but ours."""

    def __init__(self, conn: psycopg.Connection, lines: int, at: int) -> None:
        super().__init__("".join(f"{line(number)}\n" for number in range(lines)).encode())
        self._conn, self._left = conn, at

    def readline(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left == 0:
            self._conn.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        return super().readline(size)


def test_a_database_that_goes_away_in_the_middle(qwf_dsn, conn, monkeypatch):
    """69, and one line that says how far it was; the same again adds the rest."""
    count = 4 * CHUNK_ROWS
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Cutting(conn, count, 2 * CHUNK_ROWS + 10)))
    said = qwf_here("--db", qwf_dsn, "queue", "import", "-", status=69)
    assert (said.stdout, said.stderr.count("\n")) == ("", 1)
    there = len(keys(conn))
    assert CHUNK_ROWS <= told_line(said.stderr) <= there < count
    assert keys(conn) == [f"p{number}" for number in range(there)]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Cutting(conn, count, 0)))
    again = imported(qwf_dsn, "-")
    assert (again["created"], again["present"]) == (count - there, there)


MEASURED = """
import resource, sys
from queue_workflows.cli.main import run
status = run(["queue", "import", "-", "--json", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(status)
"""


# Were each of them kept, they alone would be more than twice what is allowed below.
MANY = 60_000


def peak_mb(dsn: str, *options: str, lines: Iterator[str]) -> tuple[dict[str, Any], float]:
    """What an import says, and the most memory that it took."""
    process = subprocess.Popen(
        [sys.executable, "-c", MEASURED, *options],
        env=qwf_environment(QWF_DB_URL=dsn),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    for one in lines:
        process.stdin.write(one)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    return json.loads(out), int(err.splitlines()[-1]) / (1 << 20 if sys.platform == "darwin" else 1 << 10)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_lines_take_the_memory_of_a_few(qwf_dsn, conn):
    """And so does a line without an end."""
    few, small = peak_mb(qwf_dsn, lines=(f"{long_line(number)}\n" for number in range(10_000)))
    many, large = peak_mb(qwf_dsn, lines=(f"{long_line(number)}\n" for number in range(MANY)))
    assert (few["created"], many["created"], many["present"]) == (10_000, MANY - 10_000, 10_000)
    assert large < small + 40
    endless, largest = peak_mb(qwf_dsn, "--skip-bad", lines=("x" * (1 << 20) for _ in range(300)))
    assert (endless["lines"], endless["skipped"]) == (1, 1)
    assert largest < small + 80
