"""The example apps as their users have them: migrated, served, called by HTTP, with real workers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from support.apps.shops import NAMES, PYTHON, Shop
from support.processes.programs import Running
from support.processes.workers import patiently
from support.servers.cluster import free_port
from support.suite.warm_command import warm_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ORDER = {"item": "map", "email": "ada@example.org"}


@dataclass
class Served:
    """An app that is served, and a connection to its database."""

    shop: Shop
    server: Running
    client: httpx.Client
    conn: psycopg.Connection[Any]

    def sign_in(self) -> None:
        """As the staff."""
        password = self.shop.env["STAFF_PASSWORD"]
        if self.shop.name == "django_app":
            form = self.client.get("/sign-in/").text
            token = form.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
            said = {"username": "ada", "password": password, "csrfmiddlewaretoken": token}
            assert self.client.post("/sign-in/", data=said).headers["location"] == "/ops/"
        else:
            assert self.client.post("/sign-in", data={"password": password}).status_code == 204

    def ends_clean(self, process: Running, statuses: tuple[int, ...]) -> None:
        """It ends by SIGTERM, as it should, and without a traceback."""
        process.process.send_signal(signal.SIGTERM)
        assert process.status() in statuses
        assert "Traceback" not in said_by(process)


def said_by(process: Running) -> str:
    """All that it has written so far."""
    log: Path = process.log  # type: ignore[attr-defined]
    return log.read_text()


def answers(client: httpx.Client) -> bool:
    """Whether the service does."""
    try:
        return client.get("/orders/0").status_code == 404
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module", params=NAMES)
def served(request: pytest.FixtureRequest, qwf_server: Any, tmp_path_factory: Any) -> Iterator[Served]:
    """Each app on a database of its own, which its own commands have migrated."""
    with qwf_server.database(template=False) as dsn:
        shop = Shop(request.param, dsn, tmp_path_factory.mktemp("home"))
        shop.migrate()
        if shop.name == "django_app":
            superuser = ["createsuperuser", "--noinput", "--username", "ada", "--email", "a@example.org"]
            shop.runs([PYTHON, "manage.py", *superuser], DJANGO_SUPERUSER_PASSWORD=shop.env["STAFF_PASSWORD"])
        port = free_port()
        with (
            psycopg.connect(dsn, autocommit=True) as conn,
            shop.served(port) as server,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=150) as client,
        ):
            patiently(lambda: answers(client) or server.process.poll() is not None)
            assert server.process.poll() is None, said_by(server)
            yield Served(shop, server, client, conn)


@pytest.mark.nightly
def test_a_worker_does_what_a_request_has_enqueued(served: Served) -> None:
    """The receipt is seen through the app, and a worker that is alone ends by SIGTERM."""
    order = served.client.post("/orders", json=ORDER)
    assert order.status_code == 201, order.text
    where = f"/orders/{order.json()['id']}"
    assert served.client.get(where).json() == {"item": "map", "receipt": None}
    with served.shop.started([*served.shop.qwf, "worker", "--queue", "mail"]) as worker:
        seen = patiently(lambda: (now := served.client.get(where).json())["receipt"] and now)
        assert seen == {"item": "map", "receipt": "map for ada@example.org"}
        served.ends_clean(worker, (0,))


def test_a_request_that_is_rolled_back_leaves_no_job(served: Served) -> None:
    """Neither its order nor the job of it, though both were made before it was refused."""
    counted = "SELECT (SELECT count(*) FROM ingest_jobs), (SELECT max(id) FROM ingest_jobs)"
    before = served.conn.execute(counted).fetchone()
    assert served.client.post("/orders", json={**ORDER, "item": "unicorn"}).status_code == 409
    assert served.conn.execute(counted).fetchone() == before


def test_a_workflow_that_a_request_has_begun(served: Served) -> None:
    """`up` has all roles that it needs, and all of it ends by SIGTERM.

    What they did is seen through the app: the report, and the receipt of an order that was made before.
    """
    order = served.client.post("/orders", json={**ORDER, "item": "globe"})
    assert order.status_code == 201, order.text
    ordered = f"/orders/{order.json()['id']}"
    assert served.client.get(ordered).json() == {"item": "globe", "receipt": None}
    run = served.client.post("/reports", params={"title": "Today"})
    assert run.status_code == 202, run.text
    where = f"/reports/{run.json()['id']}"
    up = ["up", "--no-web", "--worker", "cpu", "--worker", "mail"]
    with served.shop.started([*served.shop.qwf, *up]) as roles:
        report = patiently(lambda: (now := served.client.get(where).json())["outputs"] and now)
        assert report["status"] == "completed"
        assert report["outputs"]["text"].splitlines()[:2] == ["Today", "globe: 1"]
        seen = patiently(lambda: (now := served.client.get(ordered).json())["receipt"] and now)
        assert seen == {"item": "globe", "receipt": "globe for ada@example.org"}
        # In another terminal the same project is meant.
        typed = "python manage.py qwf" if served.shop.name == "django_app" else "  qwf"
        assert f"{typed} run list" in said_by(roles)
        served.ends_clean(roles, (0,))


def test_the_operators_page_is_for_the_staff(served: Served) -> None:
    """Who is not signed in sees nothing of it, and the staff sees the jobs."""
    assert served.client.get("/ops/jobs").status_code == 401
    served.sign_in()
    page = served.client.get("/ops/jobs.json")
    assert page.status_code == 200, page.text
    assert "send_receipt" in page.text


def test_the_service_ends_clean(served: Served) -> None:
    """With all that the package has open in it; the last test of an app."""
    if served.shop.name == "flask_app":
        served.server.process.send_signal(signal.SIGTERM)
        assert served.server.status() in (0, -signal.SIGTERM)
    else:
        served.ends_clean(served.server, (0, -signal.SIGTERM))


@pytest.mark.parametrize("name", NAMES)
def test_the_apps_own_tests(name: str, qwf_new_database: Any, tmp_path: Path) -> None:
    """As its author runs them, on the server that this run is on."""
    dsn = qwf_new_database(template=False)
    shop = Shop(name, dsn, tmp_path)
    if name == "django_app":
        said = shop.runs([PYTHON, "manage.py", "test", "--noinput"])
        assert "Ran 3 tests" in said
    else:
        tests = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "."]
        assert "3 passed" in shop.runs(tests, QWF_TEST_DB_URL=dsn)


EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "web"
LOADED = {"fastapi_app": "shop.main", "django_app": "config.asgi", "flask_app": "shop.wsgi"}


@pytest.mark.parametrize("name", NAMES)
def test_loading_the_app_starts_nothing(name: str, tmp_path: Path) -> None:
    """Servers load it twice to watch its code, or before they fork: no thread is there, no connection."""
    shop = Shop(name, "postgresql://nobody@127.0.0.1:1/nowhere", tmp_path)
    load = f"import threading, {LOADED[name]}; print(*(thread.name for thread in threading.enumerate()))"
    assert shop.runs([PYTHON, "-c", load]).splitlines() == ["MainThread"]


@pytest.mark.parametrize("name", ["fastapi_app", "starlette_app", "django_asgi", "flask_app"])
def test_loading_an_example_with_the_page_starts_nothing(name: str) -> None:
    """As loading a whole app does."""
    load = f"import threading, {name}; print(*(thread.name for thread in threading.enumerate()))"
    done = subprocess.run(
        [warm_python(), "-c", load],
        cwd=EXAMPLES,
        env={**os.environ, "SECRET_KEY": "k", "QWF_DB_URL": "postgresql://nobody@127.0.0.1:1/nowhere"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["MainThread"]), done.stderr
