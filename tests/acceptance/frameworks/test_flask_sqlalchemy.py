"""Flask-SQLAlchemy: its `db.session` is a connection as any other, and the one that jobs have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url
from support.processes.environments import environment_without
from support.processes.programs import SOURCE

pytestmark = pytest.mark.slow

SHOP = """
import os
from flask import Flask, abort, current_app, request
from flask_sqlalchemy import SQLAlchemy
from queue_workflows import configure, ingest_task
from queue_workflows.flask import init_app

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["DATABASE_URL"]
db = SQLAlchemy(app)
configure(db_url=lambda: app.config["SQLALCHEMY_DATABASE_URI"], ingest_queues={"mail"})
init_app(app)

class Order(db.Model):
    id = db.Column(db.Integer, primary_key=True)
    item = db.Column(db.String)
    receipt = db.Column(db.String)

@ingest_task("send_receipt", queue="mail")
def send_receipt(order_id: int):
    db.session.get(Order, order_id).receipt = current_app.name
    db.session.commit()

@app.post("/orders")
def take_order():
    order = Order(item=request.json["item"])
    db.session.add(order)
    db.session.flush()
    send_receipt.enqueue({"order_id": order.id}, conn=db.session)
    if order.item == "unicorn":
        abort(409)
    db.session.commit()
    return {"id": order.id}
"""
USED = """
import shop
from queue_workflows.testing import all_enqueued, drain

client = shop.app.test_client()
with shop.app.app_context():
    shop.db.create_all()
print(*(client.post("/orders", json={"item": item}).status_code for item in ("map", "unicorn")))
with shop.app.app_context():
    session = shop.db.session
    print(len(all_enqueued("send_receipt", conn=session)), *(job.status for job in drain(conn=session)))
print(client.post("/orders", json={"item": "globe"}).status_code)
"""
SEEN = """
import shop
with shop.app.app_context():
    orders = shop.db.session.query(shop.Order).order_by(shop.Order.id)
    print(*((order.item, order.receipt) for order in orders))
"""


def test_jobs_are_in_its_session(qwf_new_database, tmp_path: Path) -> None:
    """Enqueued in the request's transaction, run in a test's, and by a worker with a session of its own."""
    pytest.importorskip("flask_sqlalchemy", reason="Flask-SQLAlchemy is not installed")
    url = make_url(qwf_new_database()).set(drivername="postgresql+psycopg")
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    environment = {
        **environment_without("QWF_", "AI_LEADS_", "PG", locks=tmp_path / "locks"),
        "DATABASE_URL": url.render_as_string(hide_password=False),
        "PYTHONPATH": os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }

    def python(*words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert python("-c", USED).splitlines() == ["200 409", "1 completed", "200"]
    python("-m", "queue_workflows", "--app", "shop", "worker", "--queue", "mail", "--drain")
    assert python("-c", SEEN) == "('map', 'shop') ('globe', 'shop')\n"
