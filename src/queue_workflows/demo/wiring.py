"""What the demo's workers import first, as `qwf --app`: a host app's wiring in two lines."""

from queue_workflows import configure, register_ingest_task
from queue_workflows.demo.orders import QUEUE, TASK, describe_order

configure(ingest_queues={QUEUE})
register_ingest_task(TASK, describe_order)
