"""An app that runs Alembic itself: by two lines its `env.py` keeps to its own tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg
import pytest
from support.apps.shops import ALEMBIC, APPS, Shop

from queue_workflows.db import include_name
from queue_workflows.models import Base

pytestmark = pytest.mark.slow

BOTH = ("fastapi_app", "flask_app")


@pytest.fixture(params=BOTH)
def shop(request: pytest.FixtureRequest, qwf_new_database, tmp_path: Path) -> Shop:
    """A copy of the app on an empty database."""
    copy = tmp_path / "app"
    shutil.copytree(APPS / request.param, copy)
    return Shop(request.param, qwf_new_database(template=False), tmp_path, copy)


def tables(shop: Shop) -> set[str]:
    """What there is in the database."""
    url = shop.env["DATABASE_URL"].replace("+asyncpg", "").replace("+psycopg", "")
    with psycopg.connect(url) as conn:
        return {
            name for (name,) in conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        }


def test_the_two_chains_leave_each_other_alone(shop: Shop) -> None:
    """Whichever comes first; each is at its end, finds no difference, and goes back without the other."""
    shop.runs([*ALEMBIC, "upgrade", "head"])
    assert tables(shop) == {"orders", "alembic_version"}
    shop.runs([*shop.qwf, "db", "upgrade"])
    assert tables(shop) > set(Base.metadata.tables) | {"orders", "alembic_version"}
    assert "No new upgrade operations" in shop.runs([*ALEMBIC, "check"])
    assert "no difference" in shop.runs([*shop.qwf, "db", "check"])
    shop.runs([*ALEMBIC, "downgrade", "base"])
    assert "orders" not in tables(shop)
    assert "no difference" in shop.runs([*shop.qwf, "db", "check"])
    shop.runs([*ALEMBIC, "upgrade", "head"])
    shop.runs([*shop.qwf, "db", "downgrade", "base", "--yes"])
    assert tables(shop) == {"orders", "alembic_version"}
    assert "0001 (head)" in shop.runs([*ALEMBIC, "current"])


def test_what_autogenerate_writes(shop: Shop) -> None:
    """What the app adds, and nothing of ours; without the two lines it would drop our tables."""
    shop.migrate()
    models = shop.directory / "shop" / "database.py"
    models.write_text(
        models.read_text().replace("receipt: Mapped", "note: Mapped[str | None]\n    receipt: Mapped")
    )
    shop.runs([*ALEMBIC, "revision", "--autogenerate", "-m", "notes"])
    (written,) = (shop.directory / "migrations" / "versions").glob("*_notes.py")
    changes = [line.strip() for line in written.read_text().splitlines() if line.strip().startswith("op.")]
    assert changes == [
        "op.add_column('orders', sa.Column('note', sa.String(), nullable=True))",
        "op.drop_column('orders', 'note')",
    ]
    written.unlink()
    environment = shop.directory / "migrations" / "env.py"
    lines = environment.read_text().splitlines(keepends=True)
    ours = [line for line in lines if line.endswith("# qwf\n")]
    assert len(ours) == 2
    environment.write_text("".join(line for line in lines if line not in ours))
    assert "ingest_jobs" in shop.runs([*ALEMBIC, "check"], status=255)


def test_what_the_filter_leaves_out() -> None:
    """Our tables and their ledgers, and no columns, schemas or tables of others."""
    ours = [*Base.metadata.tables, "queue_schema_version", "queue_schema_version_legacy"]
    asked = {"schema_name": None}
    assert [name for name in ours if include_name(name, "table", asked)] == []
    assert include_name("orders", "table", asked)
    assert include_name("ingest_jobs", "table", {"schema_name": "elsewhere"})
    assert include_name("status", "column", {**asked, "table_name": "ingest_jobs"})
    assert include_name(None, "schema", {})
