"""What is done after the answer was sent. Django imports this module of each app by itself."""

from pathlib import Path

from queue_workflows import configure, ingest_task, set_node_module_package, set_workflow_dir  # qwf
from shop.models import Order

configure(ingest_queues={"mail"})  # qwf
set_workflow_dir(Path(__file__).parent / "workflows")  # qwf
set_node_module_package("shop.nodes")  # qwf


@ingest_task("send_receipt", queue="mail", max_attempts=5)  # qwf
def send_receipt(order_id: int) -> dict[str, str]:
    """Send it, and note that it was sent; a shop that mails would do so here."""
    order = Order.objects.get(id=order_id)
    order.receipt = f"{order.item} for {order.email}"
    order.save(update_fields=["receipt"])
    return {"to": order.email}
