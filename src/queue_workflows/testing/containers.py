"""A Postgres container that the processes of one test run share.

testcontainers removes a container when the process that started it ends. So that process is the last to
leave: it waits until nobody holds the shared lock on the `.users` file any more, and stops the container
under the lock of the `.lock` file, beneath which newcomers look for it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from queue_workflows.errors import DatabaseUnreachable

_LEAVE_TIMEOUT_S = 600.0
# Tests lose nothing with the machine, and many of them share the server.
_COMMAND = "-c fsync=off -c full_page_writes=off -c max_connections=300"


@contextmanager
def shared_container(directory: Path, image: str, engine: str) -> Iterator[str]:
    """The DSN of the run's container of that image, started by the first process that asks."""
    name = image.replace("/", "-").replace(":", "-")
    note, users_path = directory / f"{name}.dsn", directory / f"{name}.users"
    container: Any = None
    with _locked(directory / f"{name}.lock"):
        if not note.exists():
            container = _start(image, engine)
            note.write_text(container.get_connection_url(driver=None))
        dsn = note.read_text()
        users = os.open(users_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(users, fcntl.LOCK_SH)
    try:
        yield dsn
    finally:
        os.close(users)
        if container is not None:
            _stop_last(container, directory / f"{name}.lock", users_path, note)


def _start(image: str, engine: str) -> Any:
    os.environ.setdefault("DOCKER_HOST", engine)
    where = "testcontainers.community.postgres"
    try:
        found = find_spec(where)
    except ModuleNotFoundError:  # a release before that package
        found = None
    module = import_module(where if found else "testcontainers.postgres")
    container = module.PostgresContainer(image, username="postgres", password="postgres", dbname="qwf")  # noqa: S106
    try:
        return container.with_command(_COMMAND).start()
    except (
        Exception
    ) as error:  # docker's errors share no base with requests', and an image may just not be there
        raise DatabaseUnreachable(
            f"the container {image} for the tests did not start: {' '.join(str(error).split())}",
            advice="set QWF_DISABLE_TESTCONTAINERS=1 for the embedded server, or QWF_TEST_DB_URL",
        ) from error


def _stop_last(container: Any, lock: Path, users_path: Path, note: Path) -> None:
    deadline = time.monotonic() + _LEAVE_TIMEOUT_S
    while True:
        with _locked(lock), users_path.open() as users:
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                free = time.monotonic() > deadline
            else:
                free = True
            if free:
                note.unlink()
                container.stop()
                return
        time.sleep(0.1)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits, which `host/locks/flock` does not; these files stay as long as the run's directory."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
