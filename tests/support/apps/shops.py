"""The apps of docs/examples/apps, each as its user runs it: its migrations, its server, its workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL
from support.processes.environments import environment_without
from support.processes.programs import SOURCE, Running
from support.suite.warm_command import warm_python

from queue_workflows.db.connections.dsn import parse_dsn

APPS: Final = Path(__file__).parents[3] / "docs" / "examples" / "apps"
NAMES: Final = ("fastapi_app", "django_app", "flask_app")
PATIENCE_S: Final = 300
PYTHON: Final = sys.executable
QWF: Final = {
    "fastapi_app": [PYTHON, "-m", "queue_workflows"],
    "django_app": [PYTHON, "manage.py", "qwf"],
    "flask_app": [PYTHON, "-m", "queue_workflows"],
}
SERVED: Final = {
    "fastapi_app": [PYTHON, "-m", "uvicorn", "shop.main:app", "--port"],
    "django_app": [PYTHON, "-m", "uvicorn", "config.asgi:application", "--port"],
    "flask_app": [PYTHON, "-m", "flask", "--app", "shop.wsgi", "run", "--port"],
}
ALEMBIC: Final = [PYTHON, "-m", "alembic"]


class Shop:
    """One of the apps on a database of a test's, in its own directory or in a copy of it."""

    def __init__(self, name: str, dsn: str, place: Path, directory: Path | None = None) -> None:
        self.name, self.dsn = name, dsn
        self.directory = directory or APPS / name
        self.qwf = QWF[name]
        self.env = {
            **environment_without(
                "QWF_", "AI_LEADS_", "PG", "PYTEST_", "PYTHON", "DJANGO_", locks=place / "locks"
            ),
            **addresses(name, dsn),
            "HOME": str(place),
            "PYTHONPATH": str(SOURCE),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "QWF_DATA_DIR": str(place / "data"),
            "SECRET_KEY": "a secret of this test",
            "STAFF_PASSWORD": "a password of this test",
        }

    def runs(self, command: list[str], *, status: int = 0, **environ: str) -> str:
        """What a command says that ends as it should.

        What it needs of others is imported already; a run of pytest wants to import for itself.
        """
        is_warm = command[0] == PYTHON and "pytest" not in command
        ended = subprocess.run(
            [str(warm_python()), *command[1:]] if is_warm else command,
            cwd=self.directory,
            env={**self.env, **environ},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        said = ended.stdout + ended.stderr
        assert ended.returncode == status, said
        return said

    def migrate(self) -> None:
        """All tables, ours and the app's, as the app's page says."""
        if self.name == "django_app":
            self.runs([PYTHON, "manage.py", "migrate"])
        else:
            self.runs([*self.qwf, "db", "upgrade"])
            self.runs([*ALEMBIC, "upgrade", "head"])

    @contextmanager
    def served(self, port: int) -> Iterator[Running]:
        """The service, as a process of its own."""
        with self.started([*SERVED[self.name], str(port)]) as server:
            yield server

    @contextmanager
    def started(self, command: list[str]) -> Iterator[Running]:
        """A command that goes on; what it says goes to a file."""
        log = Path(self.env["HOME"]) / f"{os.urandom(4).hex()}.log"
        with (
            log.open("w") as out,
            Running(
                command, env=self.env, cwd=self.directory, stdout=out, stderr=subprocess.STDOUT
            ) as running,
        ):
            running.log = log  # type: ignore[attr-defined]
            yield running


def addresses(name: str, dsn: str) -> Mapping[str, str]:
    """The database as the app is told of it."""
    if name == "django_app":
        params = conninfo_to_dict(dsn)
        return {
            f"DB_{ours}": str(params[word])
            for ours, word in (
                ("NAME", "dbname"),
                ("USER", "user"),
                ("PASSWORD", "password"),
                ("HOST", "host"),
                ("PORT", "port"),
            )
            if params.get(word)
        }
    given = parse_dsn(dsn)
    driver = "asyncpg" if name == "fastapi_app" else "psycopg"
    url = URL.create(
        f"postgresql+{driver}",
        username=given.pop("user", None),
        password=given.pop("password", None),
        database=given.pop("dbname"),
        query={word: given[word] for word in ("host", "port") if given.get(word)},
    )
    return {"DATABASE_URL": url.render_as_string(False)}
