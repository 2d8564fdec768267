"""What the demo's processes import first, as `qwf --app`: a host app's wiring, whole."""

from pathlib import Path

from queue_workflows import configure, register_ingest_task, set_node_module_package, set_workflow_dir
from queue_workflows.demo.ticking import QUEUE, TICK, tick

configure(ingest_queues={QUEUE})
register_ingest_task(TICK, tick, queue=QUEUE)
set_node_module_package("queue_workflows.demo.nodes")
set_workflow_dir(Path(__file__).parent)
