"""`qwf` before any command: options, help, how errors and signals end, the host app's wiring, completion."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from support.processes.commands import qwf_here
from support.processes.environments import environment_without
from support.processes.workers import until
from support.suite import warm_starts

from queue_workflows.cli.main import ENTRIES
from queue_workflows.errors import ExitCode

SRC = Path(__file__).resolve().parents[3] / "src"
HEAVY = {"sqlalchemy", "psycopg", "alembic", "pydantic", "psutil"}

# A command of the test's own, registered as ours are, does what its argument says.
DRIVER = """
import sys
from queue_workflows.cli import main
from queue_workflows.cli.shared.lazy_group import Entry
main.ENTRIES["probe"] = Entry("probe:probe", "Do as told.")
main.main()
"""
PROBE = '''
import contextlib, gc, signal, sys, time, weakref
import click
from queue_workflows.errors import ConfigurationError, ExitCode, SchemaBehind

class Room:
    def __enter__(self): pass
    def __exit__(self, *why): click.echo("left properly")

class Thing:
    pass

class Grave:
    def __init__(self, number): self.number = number
    def __del__(self): signal.raise_signal(self.number)

def swallow(number, where):
    """Get the signal where Python, or somebody's except, does not let an exception through."""
    if where == "finalizer":
        Grave(number)
    elif where == "reference":
        thing = Thing()
        kept = weakref.ref(thing, lambda _: signal.raise_signal(number))
        del thing
    elif where == "collector":
        def collected(phase, _info):
            if phase == "stop": signal.raise_signal(number)
        gc.callbacks.append(collected)
        gc.collect()
        gc.callbacks.remove(collected)
    elif where == "circle":
        try:
            signal.raise_signal(number)
        except BaseException as stop:
            thing = Thing()
            thing.own, thing.stop = thing, stop
    else:
        with contextlib.suppress(BaseException):
            signal.raise_signal(number)

@click.command()
@click.argument("what")
@click.option("--number", type=int)
@click.pass_context
def probe(ctx, what, number):
    """Do as told."""
    if what == "obj":
        click.echo(f"{ctx.obj.db_url} {ctx.obj.app} {ctx.obj.debug}")
    elif what == "ours":
        raise ConfigurationError("two\\nlines", advice="mend it")
    elif what == "behind":
        raise SchemaBehind("0003", "0008")
    elif what == "bug":
        raise ZeroDivisionError("of\\nnothing")
    elif what == "status":
        return ExitCode.SCHEMA
    elif what == "exit":
        ctx.exit(73)
    elif what == "value":
        return 5
    elif what == "wait":
        with Room():
            click.echo("in")
            while True:  # a wait for the signal alone would miss one that comes right before it
                time.sleep(0.05)
    elif what.startswith("swallow"):
        with Room():
            click.echo("in")
            swallow(getattr(signal, what.split()[1]), what.split()[2])
            while True:  # each round of what insists ends a pause
                signal.pause()
    elif what == "replace":
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException as stop:
            raise ConfigurationError("by the way") from stop
    elif what == "too late":
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)
    elif what == "remark":
        import logging, warnings
        from queue_workflows.settings import load_settings
        for _ in range(2):
            logging.getLogger("queue_workflows.db.embedded.server").info("using the %s", "one")
            load_settings(environ={"QWF_LEASE": "5"})
    elif what == "flood":
        for number in range(1_000_000):
            click.echo(f"line {number}")
    elif what == "stdout":
        click.echo(f"a terminal: {sys.stdout.isatty()}", err=True)
    elif what == "say":
        click.echo("short")
    elif what == "print":
        print("short")
    elif what == "connect":
        import psycopg
        psycopg.connect(ctx.obj.db_url)
    elif what == "engine":
        import sqlalchemy
        sqlalchemy.create_engine(ctx.obj.db_url.replace("postgresql:", "postgresql+psycopg:")).connect()
'''

Qwf = Callable[..., "subprocess.CompletedProcess[str]"]


def environ(**changes: str) -> dict[str, str]:
    """Ours, without what would choose a database, an app, a terminal width or how Python buffers."""
    kept = environment_without("QWF_", "AI_LEADS_", "_QWF", "PYTEST", "PYTHON")
    return kept | {"PYTHONPATH": str(SRC), "COLUMNS": "100"} | changes


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """How to start `qwf` with the probe in it; its directory is the current one of every test."""
    (tmp_path / "driver.py").write_text(DRIVER, encoding="utf-8")
    (tmp_path / "probe.py").write_text(PROBE, encoding="utf-8")
    return [sys.executable, str(tmp_path / "driver.py")]


@pytest.fixture
def qwf(command: list[str], tmp_path: Path) -> Qwf:
    """Run one command line to its end."""

    def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return warm_starts.run(
            [*command, *arguments],
            environ(**changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
        )

    return run


def one_line(ended: subprocess.CompletedProcess[str]) -> str:
    """What stderr says, after checking that it is a single line of ours and stdout is empty."""
    assert ended.stdout == ""
    assert ended.stderr.endswith("\n")
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("qwf: ")
    return ended.stderr.removeprefix("qwf: ").rstrip("\n")


def test_help_lists_every_command_with_its_summary(qwf: Qwf) -> None:
    """In the order of the table, a line each."""
    ended = qwf("--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    listed = ended.stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == [*ENTRIES, "probe"]
    for name, entry in ENTRIES.items():
        assert f"{name:<14}{entry.summary}" in ended.stdout


@pytest.mark.slow
def test_every_listed_command_exists_and_has_help() -> None:
    """No entry of the table points at nothing."""
    for name in ENTRIES:
        said = qwf_here(name, "--help")
        assert (said.stdout.startswith(f"Usage: qwf {name}"), said.stderr) == (True, ""), name


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["completion", "bash"], ["demmo"]])
def test_what_needs_no_database_loads_no_database_code(tmp_path: Path, arguments: list[str]) -> None:
    """Help, version, completion and typos answer at once because nothing heavy is imported for them."""
    script = (
        "import json, sys\nfrom queue_workflows.cli.main import run\n"
        f"run({arguments!r})\nprint(json.dumps(sorted(sys.modules)), file=open('modules', 'w'))"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env=environ(),
        timeout=150,
    )
    assert not HEAVY & set(json.loads((tmp_path / "modules").read_text(encoding="utf-8")))


def test_completing_a_command_name_loads_no_database_code(command: list[str], tmp_path: Path) -> None:
    """The Tab key waits for it."""
    trace = subprocess.run(
        [command[0], "-X", "importtime", command[1]],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=tmp_path,
        env=environ(_QWF_COMPLETE="bash_complete", COMP_WORDS="qwf d", COMP_CWORD="1"),
    )
    assert trace.stdout.split() == ["plain,demo", "plain,db", "plain,doctor"]
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in trace.stderr.splitlines()}
    assert "click" in loaded
    assert not HEAVY & loaded


def test_version_names_the_program_and_a_version(qwf: Qwf) -> None:
    """`qwf --version` says one line."""
    ended = qwf("--version")
    assert (ended.returncode, ended.stderr, ended.stdout.split()[0]) == (0, "", "qwf")
    assert len(ended.stdout.split()) >= 2


def test_the_version_is_said_before_the_command_line_is_loaded(tmp_path: Path) -> None:
    """Of ours four modules, no click, and less than eight times the work of a Python that does nothing."""
    asked = [sys.executable, "-m", "queue_workflows", "--version"]
    trace = subprocess.run(
        [asked[0], "-X", "importtime", *asked[1:]],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=tmp_path,
        env=environ(),
    )
    assert trace.stdout.split()[0] == "qwf"
    loaded = {line.rpartition("|")[2].strip() for line in trace.stderr.splitlines()}
    assert {name for name in loaded if name.partition(".")[0] in {"queue_workflows", "click"}} == {
        "queue_workflows",
        "queue_workflows.cli",
        "queue_workflows.cli.entry_points",
        "queue_workflows.cli.version",
    }
    rounds = [(_work_of(asked), _work_of([sys.executable, "-c", "pass"])) for _ in range(5)]
    of_ours, of_nothing = (median(each) for each in zip(*rounds, strict=True))
    assert of_ours < 8 * of_nothing


def _work_of(command: list[str]) -> float:
    """The processor time of a command, which a busy machine hardly changes."""
    nowhere = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(command[0], command, environ(), file_actions=nowhere)
    _, status, used = os.wait4(pid, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime


def test_a_version_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The short way hands over to the long one, which knows what to say."""
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "queue_workflows", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=150,
            cwd=tmp_path,
            env=environ(),
        )
    assert ended.returncode == ExitCode.CONFIGURATION
    assert ended.stderr.startswith("qwf: the output could not be written: No space left on device")


def test_no_command_shows_the_help_as_a_usage_error(qwf: Qwf) -> None:
    """`qwf` alone teaches, on stderr, and does not pass for success in a script."""
    ended = qwf()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Usage: qwf [OPTIONS] COMMAND")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["docter"], "No such command 'docter'. Did you mean 'doctor'? — see `qwf --help`"),
        (["xyzzy"], "No such command 'xyzzy'. — see `qwf --help`"),
        (["--dbb", "x"], "No such option '--dbb'. (Did you mean one of: '--db', '--debug'?)"),
        (["run", "lst"], "No such command 'lst'. Did you mean 'list'? — see `qwf run --help`"),
        (["db", "upgrad"], "No such command 'upgrad'. Did you mean 'upgrade'? — see `qwf db --help`"),
        (["run", "start", "--wach", "x"], "No such option '--wach'. Did you mean '--watch'?"),
        (["db", "current", "--quite"], "No such option '--quite'. Did you mean '--quiet'?"),
        (["probe"], "Missing argument 'WHAT'. — see `qwf probe --help`"),
        (["probe", "say", "--number", "x"], "'x' is not a valid integer. — see `qwf probe --help`"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(qwf: Qwf, arguments: list[str], said: str) -> None:
    """What is wrong, what was probably meant, and where the help is."""
    ended = qwf(*arguments)
    assert ended.returncode == ExitCode.USAGE
    assert said in one_line(ended)


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("ours", 78, "two lines — mend it"),
        ("behind", 79, "the database schema is at 0003, this needs 0008 — run `qwf db upgrade`"),
        ("bug", 1, "ZeroDivisionError: of nothing — run it again with --debug to see where"),
    ],
)
def test_an_error_is_one_line_with_its_own_exit_code(qwf: Qwf, what: str, code: int, said: str) -> None:
    """No traceback unless asked for, whatever went wrong."""
    ended = qwf("probe", what)
    assert (ended.returncode, one_line(ended)) == (code, said)


@pytest.mark.parametrize(
    ("what", "code", "name"), [("ours", 78, "ConfigurationError"), ("bug", 1, "ZeroDivision")]
)
def test_debug_adds_the_traceback_above_the_line(qwf: Qwf, what: str, code: int, name: str) -> None:
    """The last line and the exit code stay the same."""
    ended = qwf("--debug", "probe", what)
    assert ended.returncode == code
    assert ended.stderr.startswith("Traceback (most recent call last)")
    assert name in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("qwf: ")


@pytest.mark.parametrize(("what", "code"), [("status", 79), ("exit", 73), ("value", 0)])
def test_a_command_says_its_exit_code_itself(qwf: Qwf, what: str, code: int) -> None:
    """By returning an ExitCode or by leaving the context; any other value is not for the shell."""
    ended = qwf("probe", what)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")


@pytest.mark.parametrize("what", ["connect", "engine"])
def test_a_drivers_complaint_becomes_ours(qwf: Qwf, what: str) -> None:
    """An unreachable database is 69 and one line that tells no password, by either driver's exception."""
    ended = qwf("--db", "postgresql://someone:s3cret@127.0.0.1:1/nowhere", "probe", what)
    assert ended.returncode == ExitCode.UNREACHABLE
    line = one_line(ended)
    assert "127.0.0.1" in line
    assert "s3cret" not in line
    assert " — " in line


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGTERM, 143, "qwf: terminated\n"), (signal.SIGINT, 130, "qwf: interrupted\n")],
)
def test_a_signal_unwinds_the_command(
    command: list[str], tmp_path: Path, number: signal.Signals, code: int, said: str
) -> None:
    """What was opened is closed on the way out, and the exit code names the signal."""
    process = warm_starts.start(
        [*command, "probe", "wait"], environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=150)
    assert (process.returncode, out, err) == (code, "left properly\n", said)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["finalizer", "reference", "collector", "circle", "except"])
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [("SIGTERM", 143, "qwf: terminated\n"), ("SIGINT", 130, "qwf: interrupted\n")],
)
def test_a_swallowed_stop_comes_again(qwf: Qwf, number: str, where: str, code: int, said: str) -> None:
    """Wherever the exception of the signal gets lost, the command ends, properly and without a trace."""
    ended = qwf("probe", f"swallow {number} {where}")
    assert (ended.returncode, ended.stderr) == (code, said)
    assert ended.stdout == "in\nleft properly\n"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["replace", "too late"])
def test_a_stop_is_a_stop_whatever_the_command_made_of_it(qwf: Qwf, what: str) -> None:
    """Turned into another error, or lost in the last moment: whoever sent the signal reads 143."""
    ended = qwf("probe", what)
    assert (ended.returncode, ended.stderr) == (143, "qwf: terminated\n")


def test_remarks_are_one_plain_line_each(qwf: Qwf) -> None:
    """Which embedded server is used, and a variable that nothing reads: told once, without a source line."""
    ended = qwf("probe", "remark")
    assert ended.returncode == 0
    assert ended.stderr.splitlines() == [
        "qwf: using the one",
        "qwf: QWF_LEASE is set but nothing reads it: did you mean QWF_LEASE_S?",
    ]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("what", "unbuffered"), [("say", ""), ("print", ""), ("flood", ""), ("say", "1"), ("flood", "1")]
)
def test_an_output_that_cannot_be_written_is_one_line_and_78(
    command: list[str], tmp_path: Path, what: str, unbuffered: str
) -> None:
    """A full disk under `qwf … > file` is told as such."""
    with open("/dev/full", "w") as full:
        ended = warm_starts.run(
            [*command, "probe", what],
            environ(PYTHONUNBUFFERED=unbuffered),
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
        )
    assert ended.returncode == ExitCode.CONFIGURATION
    assert ended.stderr.startswith("qwf: the output could not be written: No space left on device")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reads"), [(["probe", "flood"], 1), (["probe", "say"], 0), (["probe", "print"], 0)]
)
def test_a_reader_that_goes_away_is_not_an_error_message(
    command: list[str], tmp_path: Path, arguments: list[str], reads: int
) -> None:
    """`qwf … | head -1` is silent, whether the pipe closes in the middle or before the first byte."""
    process = warm_starts.start(
        [*command, *arguments],
        environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    for number in range(reads):
        assert process.stdout.readline() == f"line {number}\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=150) == ExitCode.PIPE_CLOSED
    process.stderr.close()


def test_a_closed_stdout_is_survived(command: list[str], tmp_path: Path) -> None:
    """`qwf … >&-`, as some supervisors start things."""
    closing = ["sh", "-c", 'exec "$@" >&-', "sh", *command, "probe", "say"]
    ended = subprocess.run(
        closing, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environ(), timeout=150
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_closed_stdout_is_nobody_elses(command: list[str], tmp_path: Path) -> None:
    """No file or connection that is opened later is taken for it, and it can be asked what it is."""
    closing = ["sh", "-c", 'exec "$@" >&-', "sh", *command, "probe", "stdout"]
    ended = subprocess.run(
        closing, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environ(), timeout=150
    )
    assert (ended.returncode, ended.stderr) == (0, "a terminal: False\n")


def test_a_closed_stderr_sends_nothing_to_stdout(command: list[str], tmp_path: Path) -> None:
    """There it would be taken for what was asked for."""
    closing = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command, "no-such-command"]
    ended = subprocess.run(
        closing, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environ(), timeout=150
    )
    assert (ended.returncode, ended.stdout) == (ExitCode.USAGE, "")


def test_what_stands_before_the_command_reaches_it(qwf: Qwf) -> None:
    """`--db` and `--debug` are in ctx.obj, as every command finds them."""
    assert qwf("--db", "postgresql:///x", "--debug", "probe", "obj").stdout == "postgresql:///x None True\n"
    assert qwf("probe", "obj").stdout == "None None False\n"


def wiring(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")


def test_the_host_apps_wiring_is_imported_first(qwf: Qwf, tmp_path: Path) -> None:
    """From the current directory too; by option, variable or file, the option being the strongest."""
    wiring(tmp_path, "one", "print('one')")
    wiring(tmp_path, "two", "print('two')")
    wiring(tmp_path, "three", "print('three')")
    assert qwf("--app", "one", "probe", "say").stdout == "one\nshort\n"
    assert qwf("probe", "say", QWF_APP="two").stdout == "two\nshort\n"
    (tmp_path / "qwf.toml").write_text('app = "three"\n', encoding="utf-8")
    assert qwf("probe", "say").stdout == "three\nshort\n"
    assert qwf("probe", "say", QWF_APP="two").stdout == "two\nshort\n"
    assert qwf("--app", "one", "probe", "say", QWF_APP="two").stdout == "one\nshort\n"


OF_EVERY_COMMAND = """
Options of every command:
  --db URL      The database; else QWF_DB_URL, qwf.toml, or an embedded one.
  --app MODULE  Import the host app's wiring first; else QWF_APP or qwf.toml.
  --debug       Show the full traceback of an error.
  --quiet       Say nothing on stderr but errors: no remarks, no progress.
"""


@pytest.mark.parametrize("command", [["run", "list"], ["run", "start"], ["worker"]], ids=" ".join)
def test_help_of_a_command_ends_with_the_options_of_every_command(command: list[str]) -> None:
    """Once, apart from its own, and without importing the wiring."""
    own, of_every, rest = qwf_here(*command, "--help", "--app", "nowhere").stdout.partition(OF_EVERY_COMMAND)
    assert (of_every, rest) == (OF_EVERY_COMMAND, "")
    assert "--help" in own
    assert not {"--db", "--app", "--debug", "--quiet"} & set(own.split())


def test_the_options_of_all_commands_may_stand_after_the_command(qwf: Qwf, tmp_path: Path) -> None:
    """What stands nearer to the command counts."""
    wiring(tmp_path, "one", "print('one')")
    wiring(tmp_path, "two", "print('two')")
    assert qwf("probe", "obj", "--db", "x", "--debug").stdout == "x None True\n"
    assert qwf("--db", "y", "--debug", "probe", "obj", "--db", "x").stdout == "x None True\n"
    assert qwf("probe", "--app", "one", "obj").stdout == "one\nNone one False\n"
    assert qwf("--app", "two", "probe", "say", "--app", "one", QWF_APP="three").stdout == "one\nshort\n"
    assert "Traceback" in qwf("probe", "bug", "--debug").stderr
    wanting = qwf("db", "url", "--db")
    assert (wanting.returncode, one_line(wanting)[:32]) == (2, "Option '--db' requires an argume")
    deeper = qwf("db", "url", "--db", "postgresql://h/d", "--app", "one")
    assert (deeper.returncode, deeper.stdout) == (0, "one\npostgresql://h/d\n")


def test_a_quiet_command_says_nothing_but_its_output_and_errors(qwf: Qwf) -> None:
    """On either side of the command."""
    url = ("db", "url", "--db", "postgresql://h/d")
    assert qwf(*url).stderr == "from argument\n"
    for ended in (qwf("--quiet", *url), qwf(*url, "--quiet")):
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "postgresql://h/d\n", "")
    assert qwf("probe", "remark", "--quiet").stderr.count("using the one") == 0
    assert "mend it" in one_line(qwf("--quiet", "probe", "ours"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "ModuleNotFoundError: No module named 'shop'"),
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def broken(:", "SyntaxError"),
        ("raise SystemExit('not here')", "SystemExit: not here"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_wiring_that_cannot_be_imported_is_one_line_and_78(
    qwf: Qwf, tmp_path: Path, text: str | None, reason: str
) -> None:
    """The module and the reason, and the command does not run."""
    if text is not None:
        wiring(tmp_path, "shop", text)
    ended = qwf("--app", "shop", "probe", "say")
    assert ended.returncode == ExitCode.CONFIGURATION
    line = one_line(ended)
    assert line.startswith(f"the host app's wiring shop could not be imported: {reason}")
    assert "--app or QWF_APP" in line
    assert "Traceback" in qwf("--debug", "--app", "shop", "probe", "say").stderr


def test_an_error_of_ours_in_the_wiring_keeps_its_words_and_code(qwf: Qwf, tmp_path: Path) -> None:
    """`configure()` says best what is wrong with what it was given."""
    text = "from queue_workflows.errors import SchemaBehind\nraise SchemaBehind('0003', '0008')"
    wiring(tmp_path, "shop", text)
    ended = qwf("--app", "shop", "probe", "say")
    assert (ended.returncode, one_line(ended)[:35]) == (79, "the database schema is at 0003, thi")


@pytest.mark.parametrize("name", ["shop.py:app", "./shop", "a b", "shop..x"])
def test_what_is_no_module_name_is_refused(qwf: Qwf, name: str) -> None:
    """A path or an attribute is told how to be written."""
    ended = qwf("--app", name, "probe", "say")
    assert ended.returncode == ExitCode.CONFIGURATION
    assert "such as shop.wiring" in one_line(ended)


def test_help_and_completion_work_whatever_the_host_app_does(qwf: Qwf) -> None:
    """Whoever asks for help must not first mend the wiring."""
    for arguments in (["probe", "--help"], ["--help"], ["completion", "bash"]):
        ended = qwf(*arguments, QWF_APP="no.such.thing")
        assert (ended.returncode, ended.stderr) == (0, ""), arguments


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "role", "wrong"),
    [
        ("claim_worker", "worker", [[], ["--queue=not a name"], ["--queue=fetch", "--max-jobs=none"]]),
        ("scheduler", "scheduler", [["--queue", "cpu"], ["--health", "none"], ["--schema-wait=-1"]]),
    ],
)
def test_a_console_script_is_its_command(
    qwf: Qwf, tmp_path: Path, script: str, role: str, wrong: list[list[str]]
) -> None:
    """`queue-claim-worker --queue=Q` takes what `qwf worker` takes, and says the same of what is wrong."""
    program = f"from queue_workflows.cli.main import {script} as main; main()"
    for arguments in wrong:
        by_script = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environ(),
            timeout=150,
        )
        by_command = qwf(role, *arguments)
        assert by_script.returncode == by_command.returncode != 0
        assert one_line(by_script) == one_line(by_command)


def script_on_path(command: list[str], tmp_path: Path) -> str:
    """A directory with the console scripts, as the completion scripts expect them."""
    directory = tmp_path / "bin"
    directory.mkdir()
    claim_worker = "from queue_workflows.cli.main import claim_worker; claim_worker()"
    for name, words in (
        ("qwf", f'"{command[0]}" "{command[1]}"'),
        ("queue-claim-worker", f"'{sys.executable}' -c '{claim_worker}'"),
    ):
        program = directory / name
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


def test_bash_completes_commands_and_options(command: list[str], tmp_path: Path) -> None:
    """The printed script, in a real bash: commands by prefix, options, and a command's own values."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("this machine has no bash")
    script = """
    set -eu
    eval "$(qwf completion bash)"
    complete -p qwf queue-claim-worker
    complete -p queue-orchestrator queue-scheduler >/dev/null
    ask() {
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        _${1//-/_}_completion "$1"
        echo "${COMPREPLY[*]}"
    }
    ask qwf d
    ask qwf --de
    ask qwf completion ""
    ask qwf probe --n
    ask queue-claim-worker --qu
    """
    ended = subprocess.run(
        [bash, "--norc", "-c", script],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=tmp_path,
        env=environ(PATH=script_on_path(command, tmp_path)),
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        "complete -o nosort -F _qwf_completion qwf",
        "complete -o nosort -F _queue_claim_worker_completion queue-claim-worker",
        "demo db doctor",
        "--debug",
        "bash zsh fish",
        "--number",
        "--queue",
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_accept_their_script(qwf: Qwf, shell: str) -> None:
    """Parsed by the shell itself, without running it."""
    program = shutil.which(shell)
    ended = qwf("completion", shell)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "_QWF_COMPLETE" in ended.stdout
    if program is None:
        pytest.skip(f"this machine has no {shell}")
    checked = subprocess.run([program, "-n"], input=ended.stdout, text=True, capture_output=True, timeout=150)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_ctrl_c_while_a_command_is_still_imported_says_nothing(tmp_path: Path) -> None:
    """It ends of the signal, as a shell expects it, without a traceback of our imports."""
    begun = tmp_path / "begun"
    (tmp_path / "click.py").write_text(f"import time; open({str(begun)!r}, 'w').close(); time.sleep(1000)")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SRC}"}
    words = [sys.executable, "-m", "queue_workflows", "run-job", "--", "true"]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            until(begun.exists)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=150)
        finally:
            process.kill()
    assert (process.returncode, said) == (-signal.SIGINT, b"")
