"""What is done after the answer was sent. Workers are started with `--app shop.tasks`."""

from __future__ import annotations

from pathlib import Path

from queue_workflows import configure, ingest_task, set_node_module_package, set_workflow_dir  # qwf
from shop.database import Order, sessions

configure(db_url_env="DATABASE_URL", ingest_queues={"mail"})  # qwf
set_workflow_dir(Path(__file__).parent / "workflows")  # qwf
set_node_module_package("shop.nodes")  # qwf


@ingest_task("send_receipt", queue="mail", max_attempts=5)  # qwf
async def send_receipt(order_id: int) -> dict[str, str]:
    """Send it, and note that it was sent; a shop that mails would do so here."""
    async with sessions.begin() as session:
        order = await session.get_one(Order, order_id)
        order.receipt = f"{order.item} for {order.email}"
        return {"to": order.email}
