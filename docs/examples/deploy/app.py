"""The wiring of a host app that tries out pages on servers of this machine: `qwf --app app …`."""

import urllib.request
from pathlib import Path

import servers

import queue_workflows as qwf

# All that the janitor has to know: names that match the pattern are ours, and who holds such a lock is live.
qwf.register_resource_kind(
    qwf.ResourceKind(
        "server", r"demo-[a-z]+", servers.discover, servers.teardown, verify=servers.is_gone, deadline_s=600
    )
)


def try_out(inputs, ctx):
    """Own a server for as long as it takes; the document says that this job holds the lock of its name.

    A job that comes before the janitor finds what its predecessor left, and ends that first.
    """
    name = inputs["name"]
    servers.teardown(name)
    try:
        url = servers.deploy(name, inputs["page"])
        with urllib.request.urlopen(url, timeout=10) as page:  # noqa: S310 - our own server
            answer = page.read().decode()
        (ctx.workspace().path / f"{name}.html").write_text(answer)
        ctx.sleep(inputs["seconds"])
    finally:
        servers.teardown(name)
    return {"answer": answer}


qwf.set_workflow_dir(Path(__file__).parent)
qwf.set_node_resolver({"try_out": try_out}.get)
