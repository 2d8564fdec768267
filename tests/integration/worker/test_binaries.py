"""Programs of plugins: found or installed once on each machine, by the first provider that succeeds."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import until
from support.rows.jobs import CLEAR

from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.errors import LeaseLost, PluginConfigError
from queue_workflows.hooks.plugins.needs import Need, need_of, needs_of
from queue_workflows.hooks.programs import install
from queue_workflows.hooks.programs.ensure import ensure
from queue_workflows.hooks.programs.install import InstallationStopped, Installer
from queue_workflows.hooks.script.process import HookStop
from queue_workflows.host.commands.client import Spawner
from queue_workflows.repositories import NewNodeJob, NodeJobRepository, RunRepository
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.hooks.binaries import (
    BINARY_MISSING,
    BinaryFence,
    BinaryRepository,
    Installed,
)
from queue_workflows.repositories.workers.machines import MachineRepository
from queue_workflows.roles.worker.common.side_connection import SideConnection
from queue_workflows.states import BinaryStatus, JobStatus, check_move


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """Empty tables; each statement is seen at once."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        connection.execute("TRUNCATE machines, binaries CASCADE")
        yield connection


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    """Who starts programs, for one test."""
    with Spawner() as each:
        yield each


@pytest.fixture
def shop(conn: psycopg.Connection, qwf_dsn: str, spawner: Spawner, tmp_path: Path) -> Installer:
    """A machine called `here`, whose providers are below `hooks`."""
    (tmp_path / "hooks").mkdir()
    return Installer(
        ask=asking(qwf_dsn),
        host_label="here",
        machine_id=MachineRepository(conn).seen("here"),
        hook_dirs=(tmp_path / "hooks",),
        data_dir=tmp_path / "data",
        spawner=spawner,
        claimed_by="w1",
        dsns=(qwf_dsn,),
        redactor=Redactor(["hunter2"]),
        environ={"PATH": os.environ["PATH"], "DATABASE_URL": qwf_dsn, "GREETING": "hello"},
    )


def asking(dsn: str) -> Any:
    """A connection for each question."""

    def ask(question: Any) -> Any:
        with psycopg.connect(dsn, autocommit=True) as connection:
            return question(connection)

    return ask


def provider(shop: Installer, name: str, script: str) -> None:
    """A provider of the user's own."""
    place = shop.hook_dirs[0] / name
    place.mkdir(exist_ok=True)
    hook = place / f"on_Binary__install_using_{name}_provider.sh"
    hook.write_text(f"#!/bin/sh\n{script}\n")
    hook.chmod(0o755)


def making(shop: Installer, log: Path) -> str:
    """A script that makes the program `tool` in its directory, and writes that it was called."""
    return f"""echo "$@" >> {log}
printf '#!/bin/sh\\n' > tool; chmod +x tool
echo '{{"type": "Binary", "name": "tool", "abspath": "'$PWD'/tool", "version": "1.2"}}'"""


def rows(conn: psycopg.Connection) -> list[tuple[str | None, ...]]:
    found = conn.execute(
        "SELECT name, status, provider, version, claimed_by, error FROM binaries ORDER BY name"
    )
    return found.fetchall()


TOOL = Need("tool", ("first", "second"), {"second": {"x": 1}})


def test_the_first_provider_that_succeeds_wins(
    conn: psycopg.Connection, shop: Installer, tmp_path: Path
) -> None:
    """Each is asked in order, with its arguments; what was found once is not looked for again."""
    log = tmp_path / "log"
    provider(shop, "first", f"echo first >> {log}; echo 'not for me' >&2; exit 3")
    provider(shop, "second", making(shop, log))
    for _ in range(2):
        ready = ensure([TOOL], shop)
        assert ready.env == {"TOOL_BINARY": str(shop.data_dir / "binaries" / "tool" / "tool")}
    (machine_id, binary_id) = conn.execute("SELECT machine_id, id FROM binaries").fetchone() or ()
    assert log.read_text().splitlines() == [
        "first",
        (
            '--name=tool --bin-providers=second --overrides={"second":{"x":1}}'
            f" --machine-id={machine_id} --binary-id={binary_id}"
        ),
    ]
    assert rows(conn) == [("tool", "installed", "second", "1.2", None, None)]
    (sha256,) = conn.execute("SELECT sha256 FROM binaries").fetchone() or ()
    assert len(sha256) == 64


def test_a_program_that_is_gone_is_installed_again(
    conn: psycopg.Connection, shop: Installer, tmp_path: Path
) -> None:
    """The row is believed as long as the file is there and can be run."""
    log = tmp_path / "log"
    provider(shop, "second", making(shop, log))
    ensure([TOOL], shop)
    os.unlink(shop.data_dir / "binaries" / "tool" / "tool")
    assert ensure([TOOL], shop).is_ready
    assert len(log.read_text().splitlines()) == 2


def test_what_was_installed_meanwhile_is_not_gone(conn: psycopg.Connection, shop: Installer) -> None:
    """Whoever found the one before missing says nothing of the one that is there now."""
    binaries = BinaryRepository(conn)
    binaries.report(shop.machine_id, Installed("tool", "/nowhere/tool", None, None, "own"))
    (missing,) = binaries.list()
    binaries.report(shop.machine_id, Installed("tool", "/bin/sh", None, None, "own"))
    binaries.gone(missing, "gone")
    assert rows(conn)[0][:3] == ("tool", "installed", "own")


def test_a_provider_is_kept_from_the_workers_secrets(
    conn: psycopg.Connection, shop: Installer, qwf_dsn: str, tmp_path: Path
) -> None:
    """As any hook is: no variable that holds the DSN, and no secret among the words that are stored."""
    provider(shop, "first", f"env > {tmp_path / 'seen'}; echo 'refused with hunter2' >&2; exit 1")
    provider(shop, "second", "true")
    (shop.hook_dirs[0] / "first" / "config.json").write_text('{"x-env": ["GREETING"]}')
    (shop.hook_dirs[0] / "second" / "config.json").write_text('{"x-env": ["DATABASE_URL"]}')
    assert not ensure([TOOL], shop).is_ready
    assert "GREETING=hello" in (tmp_path / "seen").read_text()
    assert qwf_dsn not in (tmp_path / "seen").read_text()
    error = str(rows(conn)[0][5])
    assert error.startswith("first: refused with *** (exit 1); second: plugin second, DATABASE_URL")
    assert "holds the engine's database URL" in error


def test_a_provider_is_believed_when_the_file_is_there(conn: psycopg.Connection, shop: Installer) -> None:
    """Who prints a path that is no program, or another name, or nothing, has not succeeded; all say why."""
    provider(shop, "first", """echo '{"type": "Binary", "name": "tool", "abspath": "/nowhere/tool"}'""")
    provider(shop, "second", "true")
    third = Need("tool", ("first", "second", "none"), {})
    ready = ensure([third], shop)
    assert (ready.hold_key, ready.skip) == ("here/tool", None)
    assert rows(conn) == [
        (
            *("tool", "failed", None, None, None),
            (
                "first: /nowhere/tool is no file that this user can run; "
                "second: it printed no Binary record; "
                "none: there is no hook on_Binary__install_using_none_provider"
            ),
        )
    ]
    again = ensure([Need("tool", ("first",), {}, is_skipped_without=True)], shop)
    assert again.skip is not None
    assert again.skip.startswith("tool is missing on here: first: /nowhere/tool")


def test_a_provider_may_speak_of_other_programs_as_well(conn: psycopg.Connection, shop: Installer) -> None:
    """Before the one that it was asked for, also of that one as something that it still needs."""
    lines = [
        {"type": "Binary", "name": "other", "abspath": "/bin/cat"},
        {"type": "Binary", "name": "tool", "binproviders": "first"},
        {"type": "Binary", "name": "tool", "abspath": "/bin/sh"},
    ]
    provider(shop, "first", "\n".join(f"echo '{json.dumps(line)}'" for line in lines))
    assert ensure([Need("tool", ("first",), {})], shop).is_ready
    assert conn.execute("SELECT name, status, abspath FROM binaries").fetchall() == [
        ("tool", "installed", "/bin/sh")
    ]


def test_nobody_is_skipped_while_the_program_is_being_installed(
    conn: psycopg.Connection, shop: Installer
) -> None:
    """It may be there in a moment: until it has failed, who would be skipped without it waits."""
    provider(shop, "first", "exit 1")
    need = Need("tool", ("first",), {}, is_skipped_without=True)
    binaries = BinaryRepository(conn)
    binaries.want(shop.machine_id, "tool", bin_providers="first", overrides={})
    wanted = binaries.named(shop.machine_id, ["tool"])["tool"]
    fence = binaries.claim(wanted.id, claimed_by="w2", lease_s=60.0)
    assert fence is not None
    waits = ensure([need], shop)
    assert (waits.skip, waits.hold_key) == (None, "here/tool")
    conn.execute("UPDATE binaries SET lease_expires_at = now() - interval '1 s'")
    failed = ensure([need], shop)
    assert failed.skip is not None
    assert failed.skip.startswith("tool is missing on here: first: exit 1")


def test_each_provider_says_in_its_last_words_how_it_ended(conn: psycopg.Connection, shop: Installer) -> None:
    """Whoever reads why a program is missing reads them all."""
    provider(shop, "first", "echo 'looks for it' >&2; echo 'has no such package' >&2; exit 3")
    provider(shop, "second", "kill -9 $$")
    assert not ensure([TOOL], shop).is_ready
    assert rows(conn)[0][5] == "first: has no such package (exit 3); second: killed by signal 9"


# Says at its end, to which it is told to come, that all is well.
ALL_IS_WELL = """finish() { echo '{"type": "Binary", "name": "tool", "abspath": "/bin/sh"}'; exit 0; }
trap finish TERM
touch up
for second in 1 2 3 4 5; do sleep 1; done"""


@pytest.mark.parametrize("whose", ["the plugin's", "everybody's"])
def test_an_installation_that_takes_too_long_is_ended(
    conn: psycopg.Connection, shop: Installer, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """By its plugin's own timeout, else by the usual one; what it says at its end is not believed."""
    provider(shop, "first", ALL_IS_WELL)
    if whose == "everybody's":
        monkeypatch.setattr(install, "_TIMEOUT_S", 0.2)
    else:
        shop = replace(shop, environ={**shop.environ, "FIRST_TIMEOUT": "0.2"})
    assert not ensure([Need("tool", ("first",), {})], shop).is_ready
    assert re.search(r"ended after \d+ s, its timeout", str(rows(conn)[0][5]))


def test_an_installation_that_is_told_to_stop_begins_anew(conn: psycopg.Connection, shop: Installer) -> None:
    """Whatever it says at its end: it may have got half way."""
    provider(shop, "first", ALL_IS_WELL)
    stop = HookStop()
    with ThreadPoolExecutor(1) as pool:
        had = pool.submit(ensure, [Need("tool", ("first",), {})], shop, stop=stop)
        until((shop.data_dir / "binaries" / "tool" / "up").exists)
        stop.request("the worker ends")
        with pytest.raises(InstallationStopped, match="the worker ends"):
            had.result()
    assert rows(conn) == [("tool", "queued", None, None, None, None)]


def test_what_could_not_be_installed_is_tried_later_each_time(
    conn: psycopg.Connection, shop: Installer
) -> None:
    """After a minute, then after twice as long, at most after an hour; once it was there it begins anew."""
    binaries = BinaryRepository(conn)
    binaries.want(shop.machine_id, "tool", bin_providers="first", overrides={})
    (wanted,) = binaries.list()

    def claimed() -> BinaryFence:
        fence = binaries.claim(wanted.id, claimed_by="w1", lease_s=30.0, at_once=True)
        assert fence is not None
        return fence

    def delay() -> float:
        binaries.failed(claimed(), "no")
        (seconds,) = conn.execute(
            "SELECT extract(epoch FROM retry_at - updated_at)::float8 FROM binaries"
        ).fetchone() or (0.0,)
        assert binaries.claim(wanted.id, claimed_by="w1", lease_s=30.0) is None
        return float(seconds)

    assert [delay() for _ in range(8)] == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    conn.execute("UPDATE binaries SET failures = 5000")
    assert delay() == 3600
    binaries.installed(claimed(), Installed("tool", "/bin/sh", None, None, "first"))
    binaries.gone(binaries.list()[0], "gone")
    assert delay() == 60
    conn.execute("UPDATE binaries SET retry_at = now()")
    assert binaries.claim(wanted.id, claimed_by="w1", lease_s=30.0) is not None


def writing_end(fifo: Path) -> int | None:
    """An open FIFO, as soon as somebody reads it."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_two_workers_of_a_machine_install_once(
    conn: psycopg.Connection, shop: Installer, tmp_path: Path
) -> None:
    """While one installs, the other waits on hold, and goes on when it is there; its own machine each."""
    fifo, log = tmp_path / "fifo", tmp_path / "log"
    os.mkfifo(fifo)
    provider(shop, "second", f"read line < {fifo}\n{making(shop, log)}")
    run = RunRepository(conn).insert("Snapshot", spec={}, spec_hash="h").id
    waiting = NewNodeJob(run_id=run, node_id="n", node_module="m", plugin="p", queue="hooks")
    jobs = NodeJobRepository(conn)
    jobs.insert_many([waiting])
    (job,) = jobs.claim("hooks", worker_id="w2", lease_s=30, limit=1)
    install = threading.Thread(target=ensure, args=([TOOL], shop))
    install.start()
    with os.fdopen(until(lambda: writing_end(fifo)), "w") as go:
        other = ensure([TOOL], shop)
        assert (other.hold_key, rows(conn)[0][1], rows(conn)[0][4]) == ("here/tool", "running", "w1")
        held = Ending(
            job.fence,
            JobStatus.SCHEDULED,
            delay_s=3600.0,
            hold_reason=BINARY_MISSING,
            hold_key=other.hold_key,
        )
        jobs.end_many([held])
        go.write("go\n")
    install.join()
    assert conn.execute("SELECT status FROM workflow_node_jobs").fetchall() == [("queued",)]
    assert len(log.read_text().splitlines()) == 1
    assert ensure([TOOL], shop).is_ready


def test_who_dies_while_installing_leaves_it_to_the_next(conn: psycopg.Connection, shop: Installer) -> None:
    """A claim lapses; one that is told to stop queues the program again."""
    binaries = BinaryRepository(conn)
    binaries.want(shop.machine_id, "tool", bin_providers="second", overrides={})
    row = binaries.named(shop.machine_id, ["tool"])["tool"]
    dead = binaries.claim(row.id, claimed_by="dead", lease_s=0.0)
    assert dead is not None
    stop = HookStop()
    stop.request("the worker ends")
    provider(shop, "second", "sleep 600")
    with pytest.raises(Exception, match="the worker ends"):
        ensure([TOOL], shop, stop=stop)
    assert rows(conn)[0][:2] == ("tool", "queued")
    assert conn.execute("SELECT attempt FROM binaries").fetchone() == (2,)


def test_a_plugins_needs_are_read_from_its_file(tmp_path: Path) -> None:
    """One program a line; a wrong line is named."""
    plugin = tmp_path / "media"
    plugin.mkdir()
    assert needs_of(plugin) == ()
    lines = [{"name": "yt-dlp", "bin_providers": "env, pip"}, {"bin_name": "wget", "if_missing": "skip"}]
    (plugin / "dependencies.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    first, second = needs_of(plugin)
    assert (first.name, first.providers, first.variable) == ("yt-dlp", ("env", "pip"), "YT_DLP_BINARY")
    assert (second.is_skipped_without, second.providers[0]) == (True, "env")
    (plugin / "binaries.jsonl").write_text('{"name": "wget"}\n{"name": "../wget"}\n')
    with pytest.raises(PluginConfigError, match=r"media: binaries.jsonl, line 2: '../wget' is no name"):
        needs_of(plugin)


def test_the_providers_that_come_along_say_what_they_lack(
    conn: psycopg.Connection, shop: Installer, tmp_path: Path
) -> None:
    """`env` finds what is on PATH; the others say that their tool is absent."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, target in (("python3", sys.executable), ("qwf-tool", "/bin/true")):
        (tools / name).symlink_to(target)
    shop = replace(shop, environ={"PATH": str(tools)})
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    (plugin / "binaries.jsonl").write_text('{"name": "qwf-tool", "bin_providers": "env"}')
    assert ensure(needs_of(plugin), shop).env == {"QWF_TOOL_BINARY": str(tools / "qwf-tool")}
    assert not ensure([need_of("no-such-tool", "env,npm,brew,apt")], shop).is_ready
    (error,) = conn.execute("SELECT error FROM binaries WHERE status = 'failed'").fetchone() or ()
    for said in ("no-such-tool is not on PATH", "npm is not installed", "brew is not", "apt-get is not"):
        assert said in error


def need_file(shop: Installer, plugin: str, **need: Any) -> Path:
    """A plugin that needs a program."""
    place = shop.hook_dirs[0] / plugin
    place.mkdir(exist_ok=True)
    (place / "binaries.jsonl").write_text(json.dumps(need))
    return place


def test_what_is_there_costs_one_question(conn: psycopg.Connection, shop: Installer, tmp_path: Path) -> None:
    """For all programs of a plugin, whose hooks may be many."""
    provider(shop, "second", making(shop, tmp_path / "log"))
    other = Need("other", ("env",), {"env": {"abspath": sys.executable}})
    ready = ensure([TOOL, other], shop)
    asked: list[Any] = []

    def ask(question: Any) -> Any:
        asked.append(question)
        return shop.ask(question)

    assert ensure([TOOL, other], replace(shop, ask=ask)) == ready
    assert len(asked) == 1


def test_two_plugins_may_want_a_program_from_different_providers(
    conn: psycopg.Connection, shop: Installer, tmp_path: Path
) -> None:
    """It is installed by whoever can, for both; who comes with another provider waits for no backoff."""
    log = tmp_path / "log"
    provider(shop, "first", f"echo first >> {log}; exit 1")
    poor = need_file(shop, "poor", name="tool", bin_providers="first")
    assert not ensure(needs_of(poor), shop).is_ready
    assert not ensure(needs_of(poor), shop).is_ready
    assert log.read_text().splitlines() == ["first"]
    provider(shop, "second", making(shop, log))
    need_file(shop, "rich", name="tool", bin_providers="second", overrides={"second": {"x": 1}})
    assert ensure(needs_of(poor), shop).is_ready
    first, again, second = log.read_text().splitlines()
    assert (first, again) == ("first", "first")
    assert '--overrides={"second":{"x":1}}' in second
    asked = conn.execute("SELECT bin_providers, status FROM binaries").fetchone()
    assert asked == ("first,second", "installed")


def test_who_loses_an_installation_waits_for_it(conn: psycopg.Connection, shop: Installer) -> None:
    """A program's lost lease is no failure of the hook that it was installed for."""
    provider(shop, "second", "sleep 600")
    answers: list[Any] = []
    install = threading.Thread(target=lambda: answers.append(ensure([TOOL], replace(shop, lease_s=0.6))))
    install.start()
    until(lambda: [row[1] for row in rows(conn)] == ["running"])
    conn.execute(
        "UPDATE binaries SET attempt = attempt + 1, claimed_by = 'other',"
        " lease_expires_at = now() + interval '1 hour'"
    )
    install.join()
    (held,) = answers
    assert held.hold_key == "here/tool"
    assert rows(conn) == [("tool", "running", None, None, "other", None)]


def test_an_operator_waits_for_who_installs_it(
    conn: psycopg.Connection, shop: Installer, tmp_path: Path
) -> None:
    """Rather than be told that it is missing; what that one could not do is not tried again at once."""
    log, fifo = tmp_path / "log", tmp_path / "fifo"
    os.mkfifo(fifo)
    provider(shop, "second", f"read line < {fifo}\n[ $line = go ] || exit 1\n{making(shop, log)}")
    for said, is_had in (("no", False), ("go", True)):
        conn.execute("TRUNCATE binaries")
        install = threading.Thread(target=ensure, args=([TOOL], shop))
        install.start()
        go = os.fdopen(until(lambda: writing_end(fifo)), "w")
        heard: list[str] = []

        def on_wait(words: str, go: Any = go, said: str = said, heard: list[str] = heard) -> None:
            heard.append(words)
            go.write(f"{said}\n")
            go.close()

        waited = ensure([TOOL], replace(shop, claimed_by="ann"), at_once=True, on_wait=on_wait)
        install.join()
        assert (waited.is_ready, heard) == (is_had, ["tool: w1 installs it"])
    assert len(log.read_text().splitlines()) == 1


def test_a_program_moves_only_as_the_table_says(conn: psycopg.Connection, shop: Installer) -> None:
    """Whatever is done to it in whichever status, with a fence that holds or one that does not."""
    binaries = BinaryRepository(conn)
    found = Installed("tool", "/bin/sh", None, None, "env")
    fence = BinaryFence(0, 1, "w1")
    verbs: dict[str, Callable[[BinaryFence], object]] = {
        "want": lambda held: binaries.want(shop.machine_id, "tool", bin_providers="new", overrides={}),
        "claim": lambda held: binaries.claim(held.id, claimed_by="w2", lease_s=30.0, at_once=True),
        "renew": lambda held: binaries.renew(held, 30.0),
        "installed": lambda held: binaries.installed(held, found),
        "failed": lambda held: binaries.failed(held, "no"),
        "released": binaries.released,
        "report": lambda held: binaries.report(shop.machine_id, found),
        "gone": lambda held: binaries.gone(binaries.list()[0], "gone"),
    }
    moved: set[tuple[str, str, str]] = set()
    for status, (name, verb) in product(BinaryStatus, verbs.items()):
        conn.execute("TRUNCATE binaries")
        (binary_id,) = conn.execute(
            "INSERT INTO binaries (machine_id, name, status, abspath, attempt, claimed_by, lease_expires_at)"
            " VALUES (%s, 'tool', %s, '/nowhere', 1, %s, %s) RETURNING id",
            [shop.machine_id, status, *(("w1", "2999-01-01") if status == "running" else (None, None))],
        ).fetchone() or (0,)
        with suppress(LeaseLost):
            verb(fence._replace(id=binary_id))
        if (after := str(rows(conn)[0][1])) != status:
            check_move("binary", status, after)
            moved.add((name, status, after))
    assert {name for name, *_ in moved} == verbs.keys() - {"renew"}


def test_a_database_that_is_away_is_asked_again(
    conn: psycopg.Connection, shop: Installer, qwf_dsn: str, tmp_path: Path
) -> None:
    """In the midst of an installation too: it costs the hook no attempt."""
    provider(shop, "second", f"echo x >> {tmp_path / 'log'}\n{making(shop, tmp_path / 'log')}")
    run = RunRepository(conn).insert("Snapshot", spec={}, spec_hash="h").id
    waiting = NewNodeJob(run_id=run, node_id="n", node_module="m", plugin="p", queue="hooks")
    NodeJobRepository(conn).insert_many([waiting])
    (job,) = NodeJobRepository(conn).claim("hooks", worker_id="w1", lease_s=30, limit=1)
    tried: list[bool] = []

    def connect() -> psycopg.Connection[Any]:
        """Nobody listens there at every second try, and each connection is good for one question."""
        tried.append(len(tried) % 2 == 1)
        return psycopg.connect(qwf_dsn if tried[-1] else "host=127.0.0.1 port=1", autocommit=True)

    aside = SideConnection(connect, lambda _job: True, sleep=lambda _s: None)

    def ask(question: Any) -> Any:
        answer = aside.ask(job, question)
        aside.close()
        return answer

    assert ensure([TOOL], replace(shop, ask=ask)).is_ready
    assert tried.count(True) == tried.count(False) == 3
    assert rows(conn) == [("tool", "installed", "second", "1.2", None, None)]


def test_providers_of_another_event_are_told_all_that_may_install_it(
    conn: psycopg.Connection, shop: Installer, tmp_path: Path
) -> None:
    """In the order of their names, until one prints the program, under either word for who it is."""
    place, log = shop.hook_dirs[0], tmp_path / "log"
    (place / "hooks.toml").write_text(
        '[providers]\nevent = "Install"\n[env]\nLIB = "{data_dir}/lib"\nRUN = "{run_dir}"\n'
    )
    (place / "all").mkdir()
    said = '"name": "tool", "abspath": "\'$PWD\'/tool", "version": "1.2", "binprovider": "mine"'
    record = '{"type": "Binary", ' + said + "}"
    for name, script in (
        ("10_second", f"printf '#!/bin/sh\\n' > tool; chmod +x tool; echo '{record}'"),
        ("00_first", f'echo "$@" >> {log}; echo "$LIB $RUN" >> {log}'),
    ):
        hook = place / "all" / f"on_Install__{name}.sh"
        hook.write_text(f"#!/bin/sh\n{script}\n")
        hook.chmod(0o755)
    need = Need("tool", ("second", "first"), {"second": {"install_args": ["t"]}}, min_version="1.1")
    assert ensure([need], shop).is_ready
    (machine_id, binary_id) = conn.execute("SELECT machine_id, id FROM binaries").fetchone() or ()
    assert log.read_text().splitlines() == [
        (
            "--name=tool --binproviders=second,first --min-version=1.1"
            ' --overrides={"second":{"install_args":["t"]}}'
            f" --machine-id={machine_id} --binary-id={binary_id}"
        ),
        f"{shop.data_dir}/lib ",
    ]
    assert rows(conn) == [("tool", "installed", "mine", "1.2", None, None)]


def test_a_program_that_is_too_old_is_not_what_was_asked_for(
    conn: psycopg.Connection, shop: Installer, tmp_path: Path
) -> None:
    """Neither what a provider found nor what was installed before; the next provider is asked."""
    provider(shop, "first", making(shop, tmp_path / "log"))
    newer = making(shop, tmp_path / "log").replace('"1.2"', '"v2.10"')
    provider(shop, "second", newer)
    assert ensure([Need("tool", ("first",), {})], shop).is_ready
    assert not ensure([Need("tool", ("first",), {}, min_version="2.9")], shop, at_once=True).is_ready
    (error,) = conn.execute("SELECT error FROM binaries").fetchone() or ()
    assert error == f"first: {shop.data_dir}/binaries/tool/tool is 1.2, and 2.9 is needed"
    # For another plugin it is as good as before, also while a newer one is being installed.
    assert ensure([Need("tool", ("first",), {})], shop).is_ready
    conn.execute(
        "UPDATE binaries SET status = 'running', claimed_by = 'another', lease_expires_at = 'infinity'"
    )
    assert ensure([Need("tool", ("first",), {}, min_version="1.1")], shop).is_ready
    conn.execute("UPDATE binaries SET status = 'failed', claimed_by = NULL, lease_expires_at = NULL")
    assert ensure([Need("tool", ("first", "second"), {}, min_version="2.9")], shop, at_once=True).is_ready
    assert rows(conn)[0][1:4] == ("installed", "second", "v2.10")
