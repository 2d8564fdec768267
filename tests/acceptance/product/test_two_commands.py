"""The two commands, for real, in a fresh copy of this checkout: as root, and as an ordinary user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.processes.environments import environment_without
from support.reference.demo_picture import is_shown, readme_picture
from support.servers.places import held_directory, remove

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
STEPS = ["== ruff check", "== ruff format", "== mypy", "== import-linter", "== pytest"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def environ(home: Path, **changes: str) -> dict[str, str]:
    """Ours, without what belongs to the test run around this one."""
    ours = ("QWF_", "AI_LEADS_", "QUEUE_WORKFLOWS_", "PYTEST", "PYTHON", "VIRTUAL_ENV")
    kept = environment_without(*ours, locks=home / "locks")
    # Each process that shares the tests of a run imports what they import, and here there are a handful. Most
    # modules of the packages are never imported, so none is compiled before it is.
    few = {"QWF_TEST_WORKERS": "1", "PIP_NO_COMPILE": "1"}
    return kept | {"HOME": str(home)} | few | changes


def fill(checkout: Path) -> None:
    """What git would hand to somebody who clones, with what is not committed yet.

    And what mypy found out about these files, if it has run: nothing else takes as long in a new copy.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so there is nothing to clone")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    if (ROOT / ".mypy_cache").is_dir():
        shutil.copytree(ROOT / ".mypy_cache", checkout / ".mypy_cache")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips, by name, where the packages cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest"]
    probe = subprocess.run(
        [*command, tmp_path_factory.mktemp("probe"), "iniconfig"], capture_output=True, timeout=300
    )
    if probe.returncode != 0:
        pytest.skip("no package registry answers")


@pytest.fixture(scope="module")
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter, which pytest's own are not; two environments are large."""
    held = held_directory(gib=6)
    base = held / "two copies"
    base.mkdir()
    for directory in (held, base):
        directory.chmod(0o755)
    try:
        yield base
    finally:
        remove(held)


@pytest.fixture(scope="module")
def clone(registry: None, open_directory: Path) -> Path:
    """A fresh copy, not set up yet; of an ordinary user, if root runs the tests."""
    path = open_directory / "home" / "a fresh clone"
    path.mkdir(parents=True)
    fill(path)
    if os.geteuid() == 0:
        give(path.parent, NOBODY)
    return path


def give(path: Path, user: int) -> None:
    """Let all of it belong to that user."""
    subprocess.run(["chown", "-R", f"{user}:{user}", path], check=True)


def why_no_other_user(clone: Path) -> str | None:
    """Why an ordinary user cannot be had beside the one who runs the tests."""
    if os.geteuid() != 0:
        return "not root, so this run itself is the ordinary user's"
    if shutil.which("setpriv") is None:
        return "this machine has no setpriv"
    pythons = ("python3", "python3.13", "python3.12", "python3.11")
    if any(as_nobody(clone, name, "-c", "import ensurepip, tomllib").returncode == 0 for name in pythons):
        return None
    return "an ordinary user finds no Python 3.11 or newer on this machine"


@pytest.fixture(scope="module")
def users_checkout(clone: Path) -> Path:
    """The copy while it belongs to the ordinary user, not set up yet."""
    reason = why_no_other_user(clone)
    if reason is not None:
        pytest.skip(reason)
    return clone


@pytest.fixture(scope="module")
def checkout(clone: Path) -> Path:
    """The copy, set up by whoever runs the tests; root takes over what an ordinary user has set up.

    One environment is enough on each change: root makes one by night, and for its run around this one.
    """
    runner = run
    if why_no_other_user(clone) is None:
        runner = as_nobody
        give(clone, NOBODY)
    ended = runner(clone, "./scripts/setup")
    assert ended.returncode == 0, ended.stdout
    if os.geteuid() == 0:
        give(clone, 0)
        shutil.rmtree(clone / ".qwf", ignore_errors=True)
    return clone


def run(checkout: Path, *command: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """One command in the copy, both streams together as a terminal shows them."""
    return subprocess.run(
        command,
        cwd=checkout,
        env=environ(checkout.parents[1], **changes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )


def as_nobody(checkout: Path, *command: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """One command as a user who owns nothing else and sees no interpreter below root's home."""
    switch = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    home = {"HOME": str(checkout.parent), "QWF_LOCK_DIR": str(checkout.parent / "locks")}
    plain = {"PATH": "/usr/local/bin:/usr/bin:/bin"} | home | changes
    return run(checkout, *switch, *command, **plain)


def left_behind(checkout: Path, mark: str) -> list[str]:
    """Every process that runs from the copy, works on it, or was started from a process with that mark."""
    found = []
    for process in psutil.process_iter():
        try:
            traces = [process.exe(), process.cwd(), *process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if any(str(checkout) in trace or mark in trace for trace in traces):
            found.append(process)
    # What is already on its way out may take a moment; what is not has been left behind.
    _, alive = psutil.wait_procs(found, timeout=150)
    return [str(process) for process in alive]


def check_demo(checkout: Path, runner: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """It prints what README shows, and nothing runs on afterwards; test_demo.py has more of it."""
    mark = f"mark-{uuid.uuid4()}"
    ended = runner(checkout, "./scripts/demo", QWF_HOST_LABEL=mark)
    assert ended.returncode == 0, ended.stdout
    assert is_shown(readme_picture(), ended.stdout), ended.stdout
    assert left_behind(checkout, mark) == []
    assert (checkout / ".qwf").is_dir()


def closing_line(ended: subprocess.CompletedProcess[str]) -> str:
    return ended.stdout.rstrip("\n").rpartition("\n")[2]


def test_an_ordinary_user_sets_up_tests_and_runs_the_demo(users_checkout: Path) -> None:
    """Then somebody takes the right to write away, and checking still works."""
    # What a first try may have left.
    give(users_checkout.parent, NOBODY)
    caches = users_checkout.parent / "caches"
    shutil.rmtree(caches, ignore_errors=True)
    ended = as_nobody(users_checkout, "./scripts/test", "tests/unit/package/test_errors.py")
    assert ended.returncode == 0, ended.stdout
    check_demo(users_checkout, as_nobody)
    # The server is the user's own.
    assert (users_checkout / ".qwf").stat().st_uid == NOBODY

    give(users_checkout, 0)
    kept = caches / f"queue-workflows-checks-{NOBODY}"
    # Nothing takes as long as mypy does that knows nothing yet.
    shutil.copytree(users_checkout / ".mypy_cache", kept / ".mypy_cache")
    give(caches, NOBODY)
    ended = as_nobody(
        users_checkout, "./scripts/test", "tests/unit/package/test_errors.py", TMPDIR=str(caches)
    )
    assert ended.returncode == 0, ended.stdout
    assert f"caches go to {kept}" in ended.stdout
    assert {".mypy_cache", ".ruff_cache", ".import_linter_cache"} <= {each.name for each in kept.iterdir()}


def test_a_checkout_one_may_not_write_says_so(users_checkout: Path, open_directory: Path) -> None:
    """Before it is set up, that is: one line with what to do, and 78."""
    path = open_directory / "home" / "of root"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    shutil.copytree(ROOT / "scripts", path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, path / name)
    ended = as_nobody(path, "./scripts/setup")
    assert (ended.returncode, ended.stdout.count("\n")) == (78, 1)
    assert "may not write" in ended.stdout


def test_set_up_once_and_it_neither_works_nor_speaks_again(checkout: Path) -> None:
    """And it does not ask the network: no index is allowed here."""
    assert run(checkout, "./scripts/setup", PIP_NO_INDEX="1", PIP_FIND_LINKS="").stdout == ""


def test_a_changed_pyproject_is_installed_without_the_network(checkout: Path) -> None:
    """Once the lock's packages are there, everything else is local."""
    with (checkout / "pyproject.toml").open("a", encoding="utf-8") as pyproject:
        pyproject.write("\n# changed\n")
    ended = run(checkout, "./scripts/setup", PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert (ended.returncode, ended.stdout.count("\n")) == (0, 1)
    assert "setup: ready" in ended.stdout


def test_the_installed_command_is_this_checkouts(checkout: Path) -> None:
    """Editable, from a path with spaces, with the chains of the checkout and no copy of them."""
    python = str(checkout / ".venv/bin/python")
    where = run(checkout.parent, python, "-c", "import queue_workflows; print(queue_workflows.__file__)")
    assert where.stdout == f"{checkout}/src/queue_workflows/__init__.py\n"
    assert list((checkout / ".venv").rglob("_alembic")) == []
    for script in ("qwf", "queue-orchestrator", "queue-claim-worker", "queue-scheduler"):
        assert run(checkout.parent, str(checkout / ".venv/bin" / script), "--help").returncode == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root runs it below a directory that only root may enter")
def test_the_demo_leaves_nothing_running(checkout: Path) -> None:
    """`./scripts/demo` as whoever runs the tests."""
    check_demo(checkout, run)


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's is made for the other tests")
def test_root_sets_up_a_clone_of_its_own(registry: None, open_directory: Path) -> None:
    """With nothing there that another user has made; and it runs."""
    path = open_directory / "roots home" / "a fresh clone"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    fill(path)
    ended = run(path, "./scripts/setup")
    assert ended.returncode == 0, ended.stdout
    check_demo(path, run)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: below such a directory nobody else comes")
def test_both_work_below_a_directory_that_only_root_may_enter(checkout: Path, open_directory: Path) -> None:
    """As after `git clone` in root's home: the server's account can run nothing of the checkout."""
    data = checkout / ".qwf"
    shutil.rmtree(data, ignore_errors=True)
    open_directory.chmod(0o700)
    try:
        check_demo(checkout, run)
        shutil.rmtree((data / "WHERE").read_text(encoding="utf-8").splitlines()[0])
        tests = ("tests/integration/db/test_embedded.py", "-k", "kill_during_start")
        tested = run(checkout, "./scripts/test", *tests)
    finally:
        open_directory.chmod(0o755)
        shutil.rmtree(data, ignore_errors=True)
    assert tested.returncode == 0, tested.stdout
    assert "1 passed" in closing_line(tested)


def test_a_clean_run_of_every_check_ends_with_pytests_closing_line(checkout: Path) -> None:
    """`.ci/run`: each step is named in order, what was skipped is named with its reason, and it succeeds."""
    planted = checkout / "tests/unit/test_planted.py"
    planted.write_text(PLANTED.format(slow="assert True"), encoding="utf-8")
    ended = run(checkout, "./.ci/run", "tests/unit/test_planted.py")
    planted.unlink()
    assert ended.returncode == 0, ended.stdout
    assert [line for line in ended.stdout.splitlines() if line.startswith("== ")] == STEPS
    assert "no such thing here" in ended.stdout
    assert "2 passed, 1 skipped" in closing_line(ended)


def test_a_failure_anywhere_fails_the_whole_and_is_named(checkout: Path) -> None:
    """Later steps still run; --all includes what is slow and the default not; neither has what is nightly."""
    planted = checkout / "tests/unit/test_planted.py"
    planted.write_text("import os\n" + PLANTED.format(slow="assert not planted"), encoding="utf-8")
    default = run(checkout, "./scripts/test", "tests/unit/test_planted.py")
    everything = run(checkout, "./scripts/test", "tests/unit/test_planted.py", "--all")
    planted.unlink()
    assert (default.returncode, everything.returncode) == (1, 1)
    assert closing_line(default) == "test: failed: ruff check, ruff format"
    assert closing_line(everything) == "test: failed: ruff check, ruff format, pytest"
    assert "1 passed, 1 skipped" in default.stdout
    assert "1 failed, 1 passed, 1 skipped" in everything.stdout


def test_a_missing_step_before_the_checks_stops_them(checkout: Path) -> None:
    """Without an environment there is nothing to check, and the set-up's own line and code come through."""
    ended = run(checkout, "./scripts/test", QWF_PYTHON="/no/such/python")
    assert (ended.returncode, ended.stdout) == (78, "setup: QWF_PYTHON=/no/such/python does not run\n")


PLANTED = '''"""Planted."""

import pytest

planted = True


def test_quick() -> None:
    """Quick."""
    assert planted


def test_skipped() -> None:
    """Skipped."""
    pytest.skip("no such thing here")


@pytest.mark.slow
def test_slow() -> None:
    """Slow."""
    {slow}


@pytest.mark.nightly
def test_nightly() -> None:
    """By night alone."""
    assert not planted
'''
