"""Every page with its address; the first that fits is shown."""

from __future__ import annotations

from typing import Final

from queue_workflows.web.page import Address
from queue_workflows.web.pages import (
    hooks,
    jobs,
    limits,
    operations,
    overview,
    queues,
    runs,
    workers,
    workflows,
)

ADDRESSES: Final = (
    Address("/", overview.overview, "overview"),
    Address("/queues", queues.queues, "queues"),
    Address("/queues/{queue}", queues.one_queue, "queues"),
    Address("/waits", queues.all_waits, "queues"),
    Address("/jobs", jobs.jobs, "jobs"),
    Address("/jobs/{job}", jobs.one_job, "jobs"),
    Address("/jobs/{job}/explain", jobs.explained, "jobs"),
    Address("/failures", jobs.failed, "failures"),
    Address("/runs", runs.runs, "runs"),
    Address("/runs/{run}", runs.one_run, "runs"),
    Address("/runs/{run}/explain", runs.explained, "runs"),
    Address("/runs/{run}/children", runs.children, "runs"),
    Address("/runs/{run}/nodes/{node}", runs.node, "runs"),
    Address("/runs/{run}/answer/{node}", runs.answer, "runs"),
    Address("/workflows", workflows.workflows, "workflows"),
    Address("/workflows/{workflow}", workflows.workflow, "workflows"),
    Address("/workers", workers.workers, "workers"),
    Address("/workers/{worker}", workers.one_worker, "workers"),
    Address("/hosts", workers.hosts, "hosts"),
    Address("/hosts/{host}", workers.one_host, "hosts"),
    Address("/models", workers.models, "models"),
    Address("/limits", limits.limits, "limits"),
    Address("/limits/{key:path}", limits.one_limit, "limits"),
    Address("/rates", limits.all_rates, "rates"),
    Address("/schedules", operations.schedules, "schedules"),
    Address("/schedules/{schedule}", operations.schedule, "schedules"),
    Address("/hooks", hooks.hooks, "hooks"),
    Address("/binaries", operations.binaries, "binaries"),
    Address("/audit", operations.audit, "audit"),
    Address("/doctor", operations.doctor, "doctor", is_alone=True),
)
