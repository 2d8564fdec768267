"""`qwf hooks` and `qwf run unpin`: what they say, start and refuse."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import Said, qwf_here
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.runs import dispatcher, settle

from queue_workflows.hooks.output.read import read_output
from queue_workflows.hooks.output.store import store_and_process
from queue_workflows.repositories import HeartbeatRepository, RunRepository
from queue_workflows.repositories.jobs.hooks import HookJobRepository


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


@pytest.fixture
def qwf(qwf_dsn: str) -> Callable[..., Said]:
    def run(*arguments: object, status: int = 0) -> Said:
        return qwf_here("--db", qwf_dsn, *map(str, arguments), status=status)

    return run


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """Two plugins of the event Page, one of which is switched off."""
    for file in ("title/on_Page__30_title.sh", "listen/on_Page__00_listen.bg.sh", "title/on_PageEnd__sum.sh"):
        path = tmp_path / "plugins" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n", encoding="utf-8")
        path.chmod(0o755)
    off = {"properties": {"SAVE_LISTEN": {"type": "boolean", "default": False}}}
    (tmp_path / "plugins" / "listen" / "config.json").write_text(json.dumps(off))
    return tmp_path / "plugins"


def test_hooks_are_listed_in_their_order(qwf: Callable[..., Said], plugins: Path) -> None:
    """With what is off and why, and a warning for what has no number."""
    said = qwf("hooks", "list", "Page", "--dir", plugins)
    hooks = [line.split() for line in said.stdout.splitlines()[1:]]
    assert [(words[0], words[1]) for words in hooks] == [("0", "Page"), ("3", "Page"), ("9", "PageEnd")]
    assert "listen/on_Page__00_listen.bg.sh  off: SAVE_LISTEN is false" in said.stdout
    assert said.stderr == "warning: title/on_PageEnd__sum.sh has no number, so it runs in step 9\n"


def test_hooks_are_listed_and_warned_of_in_the_order_that_is_used(
    qwf: Callable[..., Said], plugins: Path
) -> None:
    """As the option says, else the directory."""
    for file in ("title/on_Page__10_z.sh", "listen/on_Page__123_a.sh", "listen/on_Page__91_late.bg.sh"):
        (plugins / file).write_text("#!/bin/sh\n", encoding="utf-8")
        (plugins / file).chmod(0o755)

    def listed(*options: str) -> tuple[list[str], list[str]]:
        said = qwf("hooks", "list", "Page", "--dir", plugins, *options, "--json")
        names = [one["name"].removeprefix("on_Page__") for one in json.loads(said.stdout)]
        return names[:-1], said.stderr.splitlines()

    steps = ["00_listen.bg.sh", "10_z.sh", "30_title.sh", "91_late.bg.sh", "123_a.sh"]
    assert listed()[0] == steps
    (plugins / "hooks.toml").write_text('order = "strict"')
    strict = ["00_listen.bg.sh", "10_z.sh", "123_a.sh", "30_title.sh", "91_late.bg.sh"]
    no_number = "has no number, so it comes where its name stands among the others"
    at_once = "is ended as soon as it begins: no foreground hook comes after it"
    assert listed() == (
        strict,
        [
            f"warning: listen/on_Page__123_a.sh {no_number}",
            f"warning: title/on_PageEnd__sum.sh {no_number}",
            f"warning: listen/on_Page__91_late.bg.sh {at_once}",
        ],
    )
    assert listed("--order", "steps")[0] == steps


def test_what_a_background_hook_says_of_its_end_is_shown(qwf: Callable[..., Said], plugins: Path) -> None:
    """It is a hint in its name, for people alone; what is in the foreground has none."""
    for name in ("on_Page__01_fetch.finite.bg.sh", "on_Page__02_hear.daemon.bg", "on_Page__03_x.finite.sh"):
        path = plugins / "listen" / name
        path.write_text("#!/bin/sh\n", encoding="utf-8")
        path.chmod(0o755)
    listed = qwf("hooks", "list", "Page", "--dir", plugins).stdout
    lines = [line.partition("listen/") for line in listed.splitlines() if "listen/" in line]
    shown = {rest.split()[0]: before.split()[2:] for before, _, rest in lines}
    assert shown == {
        "on_Page__00_listen.bg.sh": ["background"],
        "on_Page__01_fetch.finite.bg.sh": ["background", "finite"],
        "on_Page__02_hear.daemon.bg": ["background", "daemon"],
        "on_Page__03_x.finite.sh": [],
    }
    data = json.loads(qwf("hooks", "list", "Page", "--dir", plugins, "--json").stdout)
    assert [one["hint"] for one in data] == [None, "finite", "daemon", None, None, None]


def test_hooks_as_data(qwf: Callable[..., Said], plugins: Path) -> None:
    """For whoever draws them."""
    first, second, last = json.loads(qwf("hooks", "list", "Page", "--dir", plugins, "--json").stdout)
    assert (first["plugin"], first["background"], first["step"]) == ("listen", True, 0)
    assert second == {
        "event": "Page",
        "step": 3,
        "order": 0,
        "plugin": "title",
        "name": "on_Page__30_title.sh",
        "path": str(plugins / "title" / "on_Page__30_title.sh"),
        "interpreter": [],
        "background": False,
        "hint": None,
        "state": "on",
        "warning": None,
    }
    assert last["event"] == "PageEnd"


def test_a_run_of_hooks_is_an_ordinary_run(
    qwf: Callable[..., Said], plugins: Path, conn: psycopg.Connection[Any]
) -> None:
    """Shown, explained, cancelled and retried as any other."""
    said = qwf("hooks", "run", "Page", "--dir", plugins, "--input", "url=http://x/", "--plugins", "title")
    run_id = said.stdout.strip()
    run = RunRepository(conn).fetch(run_id)
    assert run is not None
    assert (run.workflow_name, run.inputs) == ("Page", {"url": "http://x/"})
    ids = ["title__30_title_sh", "descendants", "title__end_sum_sh"]
    assert [node["id"] for node in run.spec["nodes"]] == ids
    settle(dispatcher(conn))
    assert "title__30_title_sh" in qwf("run", "show", run_id).stdout
    qwf("run", "cancel", run_id)
    settle(dispatcher(conn))
    assert "cancelled" in qwf("run", "list").stdout
    qwf("run", "retry", run_id)


def test_what_waits_for_a_listener_to_begin_says_so(
    qwf: Callable[..., Said], plugins: Path, conn: psycopg.Connection[Any]
) -> None:
    """`explain` names it until it has begun, and what tidies up until it has ended."""
    run_id = qwf("hooks", "run", "Page", "--dir", plugins).stdout.strip()
    settle(dispatcher(conn))

    def waits_for(node: str) -> list[str]:
        reasons = json.loads(qwf("explain", run_id, node, "--json").stdout)["reasons"]
        return [
            one for reason in reasons if reason["code"] == "parents" for one in reason["data"]["waits_for"]
        ]

    assert waits_for("title__30_title_sh") == ["listen__00_listen_bg_sh"]
    repository = HookJobRepository.at("here")(conn)
    (job,) = repository.claim_background(worker_id="w", lease_s=60, limit=1)
    repository.tell_ready(job.fence._replace(attempt=job.attempt + 1))
    settle(dispatcher(conn))
    assert waits_for("title__30_title_sh") == ["listen__00_listen_bg_sh"]
    repository.tell_ready(job.fence)
    repository.tell_ready(job.fence)
    settle(dispatcher(conn))
    assert waits_for("title__30_title_sh") == []
    assert waits_for("title__end_sum_sh") == ["descendants", "listen__00_listen_bg_sh"]


def test_the_order_is_the_callers_or_the_directorys(
    qwf: Callable[..., Said], plugins: Path, conn: psycopg.Connection[Any]
) -> None:
    """`--order` comes before hooks.toml, and that before the default."""
    second = plugins / "title" / "on_Page__31_text.sh"
    second.write_text("#!/bin/sh\n", encoding="utf-8")
    second.chmod(0o755)

    def is_strict(*options: str) -> bool:
        run_id = qwf("hooks", "run", "Page", "--dir", plugins, *options).stdout.strip()
        run = RunRepository(conn).fetch(uuid.UUID(run_id))
        assert run is not None
        (text,) = [node for node in run.spec["nodes"] if node["id"] == "title__31_text_sh"]
        return bool(text["depends_on"] == ["title__30_title_sh"])

    assert [is_strict(), is_strict("--order", "strict")] == [False, True]
    (plugins / "hooks.toml").write_text('order = "strict"')
    assert [is_strict(), is_strict("--order", "steps")] == [True, False]


@pytest.fixture
def site(plugins: Path) -> Path:
    """The same plugins, and hooks that set up a tree of pages."""
    for name in ("on_SiteSetup__10_open.bg.sh", "on_SiteSetup__20_made.sh", "on_SiteSetupEnd__10_tidy.sh"):
        path = plugins / "browser" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n", encoding="utf-8")
        path.chmod(0o755)
    return plugins


def test_the_hooks_of_a_setup_are_listed_around_those_of_the_event(
    qwf: Callable[..., Said], site: Path
) -> None:
    """As the caller asks, or hooks.toml does; which of them end when is told by their event."""

    def events(*asked: str) -> list[str]:
        listed = json.loads(qwf("hooks", "list", "Page", "--dir", site, "--json", *asked).stdout)
        return [hook["event"] for hook in listed]

    own, around = ["Page", "Page", "PageEnd"], ["SiteSetup", "SiteSetup"]
    assert (events(), events("--setup", "SiteSetup")) == (own, [*around, *own, "SiteSetupEnd"])
    (site / "hooks.toml").write_text('setup = {Page = "SiteSetup"}')
    assert (events(), events("--no-setup")) == ([*around, *own, "SiteSetupEnd"], own)
    assert (
        "there are no hooks of Nope"
        in qwf("hooks", "list", "Page", "--dir", site, "--setup", "Nope", status=2).stderr
    )


def test_a_run_sets_up_its_tree_if_it_is_told_to(
    qwf: Callable[..., Said], site: Path, conn: psycopg.Connection[Any]
) -> None:
    """By the caller or by hooks.toml; the run that is started is the one that sets up."""

    def nodes(*asked: str) -> list[str]:
        run_id = qwf("hooks", "run", "Page", "--dir", site, *asked).stdout.strip()
        run = RunRepository(conn).fetch(uuid.UUID(run_id))
        assert run is not None
        assert run.workflow_name == "Page"
        return [node["id"] for node in run.spec["nodes"]]

    setup = ["browser__10_open_bg_sh", "browser__20_made_sh", "first_run", "descendants", "seal"]
    assert nodes("--setup", "SiteSetup") == [*setup, "browser__end_10_tidy_sh"]
    without = nodes()
    assert "first_run" not in without
    (site / "hooks.toml").write_text('setup = "SiteSetup"')
    assert nodes() == [*setup, "browser__end_10_tidy_sh"]
    assert nodes("--no-setup") == nodes("--plugins", "title,listen") == without


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        (["--setup", "Nope"], 78, "there are no hooks of Nope below"),
        (["--setup", "no event"], 78, "'no event' is no event"),
        (["--setup", "Page"], 78, "Page cannot set up itself"),
        (["--setup", "SiteSetup", "--no-setup"], 2, "say --setup EVENT or --no-setup, not both"),
        (["--setup", "SiteSetup", "--plugins", "title"], 78, "there are no hooks of SiteSetup below"),
    ],
)
def test_a_setup_that_cannot_be_is_refused(
    qwf: Callable[..., Said],
    conn: psycopg.Connection[Any],
    site: Path,
    *,
    asked: list[str],
    status: int,
    said: str,
) -> None:
    """And nothing is started."""
    assert said in qwf("hooks", "run", "Page", "--dir", site, *asked, status=status).stderr
    assert conn.execute("SELECT FROM workflow_runs").fetchall() == []


def test_a_setup_in_hooks_toml_that_is_no_event_is_refused(qwf: Callable[..., Said], site: Path) -> None:
    """With the file and the key."""
    (site / "hooks.toml").write_text("setup = 5")
    for verb in ("list", "run"):
        said = qwf("hooks", verb, "Page", "--dir", site, status=78).stderr
        assert (
            f"{site}/hooks.toml: setup must be the name of an event, in letters and digits, or false, not 5"
            in said
        )


def test_a_host_that_is_gone_is_named_and_given_up(
    qwf: Callable[..., Said], plugins: Path, conn: psycopg.Connection[Any]
) -> None:
    """`explain` says where the run's files are, and `unpin` lets it go on elsewhere."""
    run_id = qwf("hooks", "run", "Page", "--dir", plugins).stdout.strip()
    settle(dispatcher(conn))
    assert " seal" in qwf("run", "show", run_id).stdout
    repository = HookJobRepository.at("far")(conn)
    (listener,) = repository.claim_background(worker_id="far:w", lease_s=60, limit=1)
    repository.tell_ready(listener.fence)
    settle(dispatcher(conn))
    ((job_id,),) = conn.execute("SELECT id FROM workflow_node_jobs WHERE NOT background").fetchall()
    HeartbeatRepository(conn).beat("near:w", host_label="near", queue="hooks", pid=7, state="idle")
    told = json.loads(qwf("explain", f"node:{job_id}", "--json").stdout)
    (gone,) = [reason for reason in told["reasons"] if reason["code"] == "host_gone"]
    assert gone["text"] == (
        "its run began on far, where its files are, and no worker of hooks lives there: start one, or"
        f" `qwf run unpin {run_id}` lets it go on elsewhere"
    )
    said = qwf("run", "unpin", run_id, "--actor", "ann", "--reason", "the disk is gone")
    assert said.stdout == f"{run_id}: no longer far's: the next worker that claims from it has it\n"
    told = json.loads(qwf("explain", f"node:{job_id}", "--json").stdout)
    assert "host_gone" not in [reason["code"] for reason in told["reasons"]]
    assert qwf("run", "unpin", run_id, status=1).stdout == f"{run_id}: was no host's\n"


def test_only_hooks_that_come_first_on_their_host_are_before_a_hook(
    qwf: Callable[..., Said], plugins: Path, conn: psycopg.Connection[Any]
) -> None:
    """Not those of other hosts, nor those that stand beside the others in the background."""
    for _ in range(4):
        qwf("hooks", "run", "Page", "--dir", plugins, "--plugins", "title")
        qwf("hooks", "run", "Page", "--dir", plugins, "--plugins", "listen")
    settle(dispatcher(conn))

    def before(job_id: int) -> int:
        reasons = json.loads(qwf("explain", f"node:{job_id}", "--json").stdout)["reasons"]
        return sum(reason["data"]["ahead"] for reason in reasons if reason["code"] == "behind")

    hooks = "SELECT id FROM workflow_node_jobs WHERE {} background ORDER BY position"
    first, second, third, last = [row[0] for row in conn.execute(hooks.format("NOT")).fetchall()]
    assert [before(one) for one in (first, second, third, last)] == [0, 1, 2, 3]
    for job_id, host in ((first, "near"), (second, "far"), (last, "far")):
        conn.execute("UPDATE workflow_node_jobs SET pinned_host = %s WHERE id = %s", [host, job_id])
    assert [before(one) for one in (first, second, third, last)] == [0, 0, 0, 1]
    conn.execute("UPDATE workflow_node_jobs SET priority = 9 WHERE id = %s", [third])
    assert [before(one) for one in (first, second, third, last)] == [1, 1, 0, 2]


def test_what_hooks_have_said_is_listed(
    qwf: Callable[..., Said], plugins: Path, conn: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """A run's records with their warnings, by type and plugin, a page at a time."""
    run_id = qwf("hooks", "run", "Page", "--dir", plugins, "--plugins", "title").stdout.strip()
    settle(dispatcher(conn))
    (job,) = HookJobRepository.at("here")(conn).claim("hooks", worker_id="w", lease_s=60, limit=1)
    (tmp_path / "title.html").write_text("x")
    printed = tmp_path / "printed"
    lines = [
        '{"type": "Result", "status": "succeeded", "output_str": "Canals\\u001b"}',
        "{oops",
        '{"type": "Tag"}',
    ]
    printed.write_text("\n".join(lines))
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "a.txt").write_text("a")
    output = read_output(tmp_path / "left", printed, beneath=tmp_path)
    store_and_process(conn, job.fence, output, host_label="here")
    said = qwf("hooks", "records", run_id[:8])
    cells = [line.split(None, 5) for line in said.stdout.splitlines()]
    assert [one[1:] for one in cells] == [
        ["HOOK", "ATTEMPT", "LINE", "TYPE", "WHAT"],
        ["title/on_Page__30_title.sh", "1", "0", "Files", "1: a.txt"],
        ["title/on_Page__30_title.sh", "1", "1", "Result", "succeeded Canals?"],
        ["title/on_Page__30_title.sh", "1", "2", "Warning", cells[3][5]],
        ["title/on_Page__30_title.sh", "1", "3", "Tag", "warning: Tag: a tag has a name"],
    ]
    assert cells[3][5].startswith("warning: ")
    page = qwf("hooks", "records", run_id, "--limit", "1")
    assert page.stderr == f"the first 1; --after {cells[1][0]} goes on, --limit shows more\n"
    rest = json.loads(qwf("hooks", "records", run_id, "--after", cells[1][0], "--json").stdout)
    assert [(one["line_no"], one["type"]) for one in rest] == [(1, "Result"), (2, "Warning"), (3, "Tag")]
    assert rest[2]["payload"] == {"type": "Tag"}
    warned = json.loads(qwf("hooks", "records", run_id, "--warnings", "--json").stdout)
    assert [one["line_no"] for one in warned] == [2, 3]
    assert len(json.loads(qwf("hooks", "records", run_id, "--type", "Result", "--json").stdout)) == 1
    assert qwf("hooks", "records", run_id, "--plugin", "listen").stderr == "no record matches\n"
    for unknown in ("0" * 8, str(uuid.UUID(int=0))):
        assert "there is no run" in qwf("hooks", "records", unknown, status=2).stderr


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["run", "Page"], 2, "where are the plugins?"),
        (["list", "Page", "--dir", "nowhere"], 78, "nowhere: No such file or directory"),
        (["run", "Nothing", "--dir", "PLUGINS"], 78, "there are no hooks of Nothing below"),
        (["run", "../x", "--dir", "PLUGINS"], 78, "is no event"),
        (
            ["run", "Page", "--dir", "PLUGINS", "--plugins", "titel"],
            2,
            "no plugin titel; there are listen, title",
        ),
        (["run", "Page", "--dir", "PLUGINS", "--sequential", "12"], 2, "steps are from 0 to 9"),
        (["run", "Page", "--dir", "PLUGINS", "--sequential", "²"], 2, "steps are from 0 to 9"),
        (["run", "Page", "--dir", "PLUGINS", "--plugins", ","], 2, "--plugins names none"),
        (["run", "Page", "--dir", "PLUGINS", "--input", "config=x"], 2, "no object of plugins' values"),
        (["run", "Page", "--dir", "PLUGINS", "--input", "url"], 2, "write name=text"),
        (["run", "Page", "--dir", "PLUGINS", "--input", "a b=1"], 2, "cannot be the name of an argument"),
        (
            ["run", "Page", "--dir", "PLUGINS", "--input", "a_b=1", "--input", "a-b=1"],
            2,
            "would both be --a-b",
        ),
        (["run", "Page", "--dir", "PLUGINS", "--input", "a:=NaN"], 2, "payload at $.a: nan is not JSON"),
        (["records", "0" * 8, "--after", str(2**63)], 2, "is not in the range"),
    ],
)
def test_bad_input_is_one_line(
    qwf: Callable[..., Said], plugins: Path, arguments: list[str], status: int, words: str
) -> None:
    """With what to do, and the exit code of its kind."""
    given = [str(plugins) if word == "PLUGINS" else word for word in arguments]
    said = qwf("hooks", *given, status=status)
    (line,) = [line for line in said.stderr.splitlines() if words in line]
    assert not said.stdout
    assert "Traceback" not in said.stderr
    assert line


def test_a_hook_that_cannot_be_run_is_told_before_anything_starts(
    qwf: Callable[..., Said], plugins: Path, conn: psycopg.Connection[Any]
) -> None:
    """And nothing is started."""
    (plugins / "title" / "on_Page__40_odd.xyz").write_text("")
    said = qwf("hooks", "run", "Page", "--dir", plugins, status=78)
    assert "on_Page__40_odd.xyz is not executable, and .xyz names no interpreter" in said.stderr
    assert said.stderr.count("\n") == 1
    assert conn.execute("SELECT count(*) FROM workflow_runs").fetchone() == (0,)


def started(qwf: Callable[..., Said], conn: psycopg.Connection[Any], *command: object) -> Any:
    """The row of a run that a command starts."""
    run_id = json.loads(qwf(*command, "--json").stdout)["run"]
    row = RunRepository(conn).fetch(uuid.UUID(run_id))
    assert row is not None
    return row


def test_how_many_runs_of_a_tree_may_be_open_is_said_by_the_command_or_the_document(
    qwf: Callable[..., Said], conn: psycopg.Connection[Any], plugins: Path, tmp_path: Path
) -> None:
    """The command comes before what stands in a document or a directory."""
    document = tmp_path / "one.yaml"
    document.write_text("{name: one, max_open_runs: 4, nodes: [{id: a, type: task, module: a}]}")
    (plugins / "hooks.toml").write_text("max_open_runs = 4")
    for command in (("hooks", "run", "Page", "--dir", plugins), ("run", "start", document)):
        assert started(qwf, conn, *command).max_open_runs == 4
        assert started(qwf, conn, *command, "--max-open-runs", "2").max_open_runs == 2


def test_whether_a_run_waits_for_those_below_it_is_said_by_the_command(
    qwf: Callable[..., Said], conn: psycopg.Connection[Any], plugins: Path
) -> None:
    """By the option, whatever the directory says: if it has begun any, always, or not at all."""

    def waits(*options: str) -> list[bool]:
        nodes = started(qwf, conn, "hooks", "run", "Page", "--dir", plugins, *options).spec["nodes"]
        return [node.get("always", False) for node in nodes if node["id"] == "descendants"]

    assert (waits(), waits("--descendants", "wait"), waits("--descendants", "leave")) == ([False], [True], [])
    (plugins / "hooks.toml").write_text('descendants = "leave"')
    assert (waits(), waits("--descendants", "wait")) == ([], [True])


def test_a_run_whose_directory_is_shared_says_so_in_its_jobs(
    qwf: Callable[..., Said], conn: psycopg.Connection[Any], plugins: Path
) -> None:
    """By the option, and the other way round where the directory has it so."""
    command = ("hooks", "run", "PageEnd", "--dir", plugins)

    def shared(*options: str) -> bool:
        return "'shared_directory': True" in str(started(qwf, conn, *command, *options).spec)

    assert not shared()
    assert shared("--shared-directory")
    (plugins / "hooks.toml").write_text("shared_directory = true")
    assert shared()
    assert not shared("--no-shared-directory")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--descendants", "both"), ("--max-open-runs", "0"), ("--max-open-runs", "many")],
)
def test_what_a_run_of_hooks_cannot_be_told_is_refused(
    qwf: Callable[..., Said], conn: psycopg.Connection[Any], plugins: Path, option: str, value: str
) -> None:
    """With the option's name, and nothing is started."""
    refused = qwf("hooks", "run", "Page", "--dir", plugins, option, value, status=2)
    assert option in refused.stderr
    if option == "--max-open-runs":
        assert option in qwf("run", "start", "one.yaml", option, value, status=2).stderr
    assert conn.execute("SELECT FROM workflow_runs").fetchall() == []
