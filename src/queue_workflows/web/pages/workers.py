"""Workers, the hosts they are on, and the models that are warm there."""

from __future__ import annotations

from collections import Counter

from queue_workflows.views import models as models_view
from queue_workflows.views.hosts import hardware as hardware_view
from queue_workflows.views.hosts import history as history_view
from queue_workflows.views.hosts import host as host_view
from queue_workflows.views.workers import listing, worker
from queue_workflows.web.page import Look, Shown
from queue_workflows.web.rendering.pictures import curve_picture, model_map_picture


def workers(look: Look) -> Shown:
    """Every worker, what it is at, and how it obeys."""
    host, queue = look.word("host", "*"), look.word("queue", "*")
    everyone, stale_s = look.is_set("all"), look.settings.stale_heartbeat_s
    seen = listing.read_workers(look.conn, stale_s=stale_s, host=host, queue=queue, everyone=everyone)
    return Shown(
        title="Workers",
        template="workers.html",
        command=listing.command_of(host=host, queue=queue, everyone=everyone),
        data={"seen": seen, "host": host, "queue": queue, "everyone": everyone},
        json=listing.json_of(seen),
    )


def one_worker(look: Look) -> Shown:
    """One worker with its jobs and the wishes that hold for it."""
    worker_id = look.parts["worker"]
    seen = worker.worker(look.conn, worker_id, stale_s=look.settings.stale_heartbeat_s)
    return Shown(
        title=worker_id,
        template="worker.html",
        command=worker.command_of(worker_id),
        data={"seen": seen, "told": listing.worker_json(seen.worker, seen.stale_s, seen.code)},
        json=worker.json_of(seen),
    )


def hosts(look: Look) -> Shown:
    """Every machine as its supervisor saw it last."""
    everyone = look.is_set("all")
    seen = hardware_view.read_hardware(look.conn, stale_s=look.settings.stale_heartbeat_s, everyone=everyone)
    told = hardware_view.json_of(seen)
    there = listing.read_workers(look.conn, stale_s=look.settings.stale_heartbeat_s)
    labels = sorted({one.host_label for one in there.workers} | {one["host_label"] for one in told["hosts"]})
    return Shown(
        title="Hosts",
        template="hosts.html",
        command=hardware_view.command_of(everyone=everyone),
        data={
            "told": {one["host_label"]: one for one in told["hosts"]},
            "labels": labels,
            "workers": Counter(one.host_label for one in there.workers),
            "everyone": everyone,
        },
        json=told,
    )


def one_host(look: Look) -> Shown:
    """All that is on one machine."""
    label = look.parts["host"]
    seen = host_view.host(look.conn, label, stale_s=look.settings.stale_heartbeat_s)
    told = host_view.json_of(seen)
    every_s = 0.0 if seen.reading is None else seen.reading.every_s
    curves = history_view.curves_of(history_view.HostHistory(label, every_s, seen.history))
    return Shown(
        title=label,
        template="host.html",
        command=host_view.command_of(label),
        data={
            "seen": seen,
            "told": told,
            "curves": [(one, curve_picture(one)) for one in curves] if seen.history else [],
        },
        json=told,
    )


def models(look: Look) -> Shown:
    """Which models are loaded where, and which jobs want them."""
    seen = models_view.read_models(look.conn, stale_s=look.settings.stale_heartbeat_s)
    return Shown(
        title="Models",
        template="models.html",
        command=models_view.command_of(),
        data={"seen": seen, "picture": model_map_picture(seen, look.prefix)},
        json=models_view.json_of(seen),
    )
