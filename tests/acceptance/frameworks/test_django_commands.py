"""`manage.py` of a project with the Django app: what it makes of its database, and `manage.py qwf`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from support.apps.shops import APPS, PYTHON, Shop
from support.processes.snippets import find_snippets
from support.processes.workers import patiently
from support.servers.cluster import free_port

pytestmark = pytest.mark.slow

MANAGE = [PYTHON, "manage.py"]
PAGES = APPS.parents[1] / "how-to" / "frameworks"


@pytest.fixture
def shop(qwf_new_database: Any, tmp_path: Path) -> Shop:
    """A copy of the example on an empty database."""
    copy = tmp_path / "project"
    shutil.copytree(APPS / "django_app", copy)
    return Shop("django_app", qwf_new_database(template=False), tmp_path, copy)


def test_migrate_makes_our_tables_first(shop: Shop) -> None:
    """Those of the project may refer to them; a second time nothing is done, at verbosity 0 no word said."""
    migrations = shop.directory / "shop" / "migrations"
    (migrations / "0002_run.py").write_text(
        "from django.db import migrations\n"
        "class Migration(migrations.Migration):\n"
        "    dependencies = [('shop', '0001_orders')]\n"
        "    there = 'ALTER TABLE shop_order ADD run uuid REFERENCES workflow_runs'\n"
        "    operations = [migrations.RunSQL(there, 'ALTER TABLE shop_order DROP run')]\n"
    )
    said = shop.runs([*MANAGE, "migrate"])
    assert (
        said.index("Applied engine 0001") < said.index("Applying shop.0001_orders") < said.index("0002_run")
    )
    assert "Applied engine" not in shop.runs([*MANAGE, "migrate"])
    assert "no difference" in shop.runs([*MANAGE, "qwf", "db", "check"])
    shop.runs([*MANAGE, "migrate", "shop", "zero"])
    shop.runs([*MANAGE, "qwf", "db", "downgrade", "base", "--yes"])
    assert shop.runs([*MANAGE, "migrate", "--verbosity", "0"]) == ""
    assert "No changes detected" in shop.runs([*MANAGE, "makemigrations", "--check"])


def test_what_is_in_the_way_of_our_tables(shop: Shop) -> None:
    """It is said in a line, with what to do and the exit code that it has."""
    shop.runs([*MANAGE, "migrate"])
    with psycopg.connect(shop.dsn) as conn:
        conn.execute("UPDATE queue_schema_version SET version_num = '9999'")
    said = shop.runs([*MANAGE, "migrate"], status=79)
    assert "CommandError: " in said
    assert "9999" in said
    assert "Traceback" not in said


def test_qwf_by_manage_py(shop: Shop) -> None:
    """Its exit codes are those of `qwf`, and from Python what fails is a CommandError."""
    said = shop.runs([*MANAGE, "qwf", "db", "check"], status=79)
    assert "run `qwf db upgrade`" in said
    assert "No such command 'nonsense'" in shop.runs([*MANAGE, "qwf", "nonsense"], status=2)
    assert shop.env["DB_NAME"] in shop.runs([*MANAGE, "qwf", "db", "url"])
    call = "from django.core.management import call_command, CommandError\n"
    check = f"{call}try: call_command('qwf', 'db', 'check')\nexcept CommandError as e: print(e.returncode)"
    assert "79" in shop.runs([*MANAGE, "shell", "-v", "0", "-c", check]).splitlines()
    upgrade = f"{call}call_command('qwf', 'db', 'upgrade', '--chain', 'engine')"
    shop.runs([*MANAGE, "shell", "-v", "0", "-c", upgrade])
    shop.runs([*MANAGE, "qwf", "db", "check"])


def test_the_project_without_manage_py(shop: Shop) -> None:
    """`--app` names it too; what is missing of Django's settings is said with what to do."""
    qwf = [PYTHON, "-m", "queue_workflows", "--app", "queue_workflows.django.wiring"]
    said = shop.runs([*qwf, "db", "current"], status=78)
    assert "DJANGO_SETTINGS_MODULE is not set" in said
    assert "python manage.py qwf" in said
    named = {"DJANGO_SETTINGS_MODULE": "config.settings"}
    assert "not migrated" in shop.runs([*qwf, "db", "current"], **named)
    settings = shop.directory / "config" / "settings.py"
    settings.write_text(settings.read_text().replace('    "queue_workflows.django",  # qwf\n', ""))
    assert "add 'queue_workflows.django' to INSTALLED_APPS" in shop.runs(
        [*qwf, "db", "current"], status=78, **named
    )


def test_another_database_in_the_environment(shop: Shop, qwf_dsn: str) -> None:
    """The project's settings decide, in its tests too, though QWF_DB_URL names another one."""
    elsewhere = {"QWF_DB_URL": qwf_dsn}
    shop.runs([*MANAGE, "test", "--noinput"], **elsewhere)
    shop.runs([*MANAGE, "migrate"], **elsewhere)
    shop.runs([*MANAGE, "qwf", "queue", "enqueue", "send_receipt", "--args", '{"order_id": 1}'], **elsewhere)
    with psycopg.connect(qwf_dsn) as conn:
        assert conn.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (0,)
    assert "send_receipt" in shop.runs([*MANAGE, "qwf", "job", "list"], **elsewhere)


def test_runserver_loads_the_project_anew(shop: Shop) -> None:
    """When code changes, as often as it does; the tasks are known each time, and nothing of ours is left."""
    shop.runs([*MANAGE, "migrate", "--verbosity", "0"])
    port, orders = free_port(), 0
    with (
        shop.started([*MANAGE, "runserver", str(port)]) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=150) as client,
    ):
        for changes in (1, 2):
            patiently(lambda changes=changes: server.log.read_text().count("Quit the server") == changes)
            patiently(lambda: answers(client) or server.process.poll() is not None)
            assert client.post("/orders", json={"item": "map", "email": "a@example.org"}).status_code == 201
            orders += 1
            tasks = shop.directory / "shop" / "tasks.py"
            tasks.write_text(tasks.read_text() + "# changed\n")
    assert shop.runs([*MANAGE, "qwf", "worker", "--queue", "mail", "--drain"]).count(" completed ") == orders


def answers(client: httpx.Client) -> bool:
    """Whether the service does."""
    try:
        return client.get("/orders/0").status_code == 404
    except httpx.TransportError:
        return False


def test_pytest_django(shop: Shop) -> None:
    """Its tests and our fixture `qwf_jobs` are on the one database that it makes, in a transaction or not."""
    plugin = pytest.importorskip("pytest_django", reason="pytest-django is not installed")
    paths = [shop.env["PYTHONPATH"], str(Path(plugin.__file__).parents[1])]
    fixture = find_snippets((PAGES / "django.md").read_text(), "django.md")[-1].body
    (shop.directory / "conftest.py").write_text(fixture)
    (shop.directory / "test_shop.py").write_text(PYTEST_DJANGO)
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:rerunfailures"]
    command = [
        PYTHON,
        "-m",
        "pytest",
        "-q",
        "--ds",
        "config.settings",
        *options,
        "test_shop.py",
        "shop/tests.py",
    ]
    assert "6 passed" in shop.runs(command, PYTHONPATH=os.pathsep.join(paths))


PYTEST_DJANGO = """
import pytest
from django.db import connection
from shop.models import Order
from queue_workflows.testing import assert_enqueued, drain

ORDER = {"item": "map", "email": "ada@example.org"}

@pytest.mark.django_db
def test_in_a_transaction(client):
    order = client.post("/orders", ORDER, "application/json").json()["id"]
    assert_enqueued("send_receipt", args={"order_id": order}, conn=connection)
    assert [job.status for job in drain(conn=connection)] == ["completed"]

@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("time", [1, 2])
def test_committed(client, qwf_jobs, time):
    client.post("/orders", ORDER, "application/json")
    qwf_jobs.assert_enqueued("send_receipt")
    assert [job.status for job in qwf_jobs.drain()] == ["completed"]
    assert Order.objects.get().receipt == "map for ada@example.org"
"""
