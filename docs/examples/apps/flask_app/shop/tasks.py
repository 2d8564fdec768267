"""What is done after the answer was sent."""

from __future__ import annotations

from pathlib import Path

from flask import current_app

from queue_workflows import configure, ingest_task, set_node_module_package, set_workflow_dir  # qwf
from shop.database import Order, session

configure(db_url_env="DATABASE_URL", ingest_queues={"mail"})  # qwf
set_workflow_dir(Path(__file__).parent / "workflows")  # qwf
set_node_module_package("shop.nodes")  # qwf


@ingest_task("send_receipt", queue="mail", max_attempts=5)  # qwf
def send_receipt(order_id: int) -> dict[str, str]:
    """Send it, and note that it was sent; a shop that mails would do so here."""
    with session.begin():
        order = session.get_one(Order, order_id)
        order.receipt = f"{order.item} for {order.email}"
        current_app.logger.info("sent the receipt of order %s", order_id)
        return {"to": order.email}
