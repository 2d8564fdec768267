"""Puts this directory on the import path, for `support`; the fixtures are the package's own plugin's."""

from __future__ import annotations

import functools
import gc
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from support.suite.order import rank
from support.suite.processor_use import STAT, ProcessorUse
from support.suite.run_report import NAME, RunReport, line_writer
from support.suite.time_limits import TimeLimits
from support.suite.warm_starts import COLD

# A busy machine may leave any example alone for longer than the usual deadline.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.register_profile("a quarter", deadline=None, max_examples=25)
hypothesis.settings.load_profile("unhurried")

HERE = Path(__file__).parent
# How scripts/test asks for the tests that are not slow; these try a quarter of the examples.
WITHOUT_SLOW = "not slow and not nightly"
# They wait for real processes on a machine that may be busy. What is said of rows, and of who holds a lock,
# must hold every time, and so must what passed again and again on a machine that was; a test elsewhere that
# names a time on the clock carries the marker `timed`. Of the invariants the slow ones get a second try, for
# they start many processes; the closing lines name each test that needed it.
MAY_BE_TRIED_TWICE = ("acceptance", "browser", "concurrency", "integration", "migrations")
EVERY_TIME = (
    "test_claiming_",
    "test_run_reader",
    "test_repositories_",
    "test_payload_",
    "test_job_listing",
    "test_obedience",
    "test_run_verbs",
    "test_run_retry",
    "test_host_locks",
    "test_cgroups",
    "test_lease_timer",
    "test_default_lock_directory",
    "test_hook_process",
    "test_janitor.",
    "test_lifetime",
    "test_lock_checks",
    "test_missing_locks",
    "test_orphans",
    "test_spawner",
)


def pytest_configure(config: pytest.Config) -> None:
    """Ignore no signal, though nohup or a background shell had us do so: our processes inherit that."""
    if config.option.markexpr == WITHOUT_SLOW:
        hypothesis.settings.load_profile("a quarter")
    config.pluginmanager.register(TimeLimits(config), "suite_time_limits")
    if getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(RunReport(line_writer(config)), NAME)
        if STAT.exists():
            config.pluginmanager.register(ProcessorUse(), "suite_processor_use")
    if not hasattr(config, "workerinput"):
        from support.servers.places import remove_left_behind

        remove_left_behind()
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long, and try a test of real processes twice; the closing line counts reruns."""
    long = {item.path for item in items if is_long(item)}
    items.sort(key=lambda item: (rank(item.path.name), item.path not in long))
    for item in items:
        if is_tried_twice(item):
            item.add_marker(pytest.mark.flaky(reruns=1))


def is_tried_twice(item: pytest.Item) -> bool:
    """Whether a busy machine may make the test fail though the product does as it should."""
    if item.get_closest_marker("timed"):
        return True
    place = place_of(item.path)
    if place == "invariants":
        return is_long(item)
    return place in MAY_BE_TRIED_TWICE and not item.path.name.startswith(EVERY_TIME)


def is_long(item: pytest.Item) -> bool:
    """Whether the default suite leaves it out."""
    return any(item.get_closest_marker(marker) is not None for marker in ("slow", "nightly"))


@functools.cache
def place_of(path: Path) -> str:
    """The directory of the tests that a file stands in."""
    return path.relative_to(HERE).parts[0] if path.is_relative_to(HERE) else ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector pass over the thousands of tests, which live to the end of the run.

    While they are made it would look at all of them again and again, and find nothing; what is dropped
    meanwhile is too little to look for.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests out by file, so that each file needs one database."""
    if config.getvalue("dist") != "loadfile":
        return None
    from support.suite.distribution import FileScheduling

    return FileScheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def nothing_of_this_run_outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, nor a process that it starts, takes locks where the programs of this machine meet, or leaves a
    server that waits for another user.

    A test that is about that place, or that wait, says where or how long it is.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("QWF_LOCK_DIR", str(tmp_path_factory.mktemp("locks")))
        patched.setenv("QWF_EMBEDDED_LINGER_S", "0")
        yield


@pytest.fixture
def cold_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process of `qwf` that the test starts is a new interpreter, as it is for a user."""
    monkeypatch.setenv(COLD, "1")


@pytest.fixture(scope="module")
def qwf_dsn(qwf_dsn: str) -> Iterator[str]:
    """As the plugin gives it, without sessions that are kept when it is dropped."""
    from support.connections.kept import close_kept

    yield qwf_dsn
    close_kept()
