"""The map of warm models: on which host and GPU each is loaded, and how many queued jobs want it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from queue_workflows.config import GPU_QUEUE
from queue_workflows.repositories.reports.model_demand import ModelDemand, ModelDemandRepository
from queue_workflows.repositories.workers.hardware import HardwareRepository, HostReading
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.model_memory import ModelMemoryRepository, ModelMemoryRow
from queue_workflows.repositories.workers.obedience import Standing

_MEMORY: Final = ("memory_used_mb", "memory_total_mb")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as its supervisor sees it; None for what no supervisor that lives reports."""

    id: str | None = None
    name: str | None = None
    memory_used_mb: int | None = None
    memory_total_mb: int | None = None


@dataclass(frozen=True, slots=True)
class WarmWorker:
    """A live worker that may have models loaded, on its device."""

    worker: Standing
    device: Device

    @property
    def models(self) -> list[str]:
        """What it has loaded."""
        return [str(model) for model in self.worker.cached_models]


@dataclass(frozen=True, slots=True)
class WantedModel:
    """A model that is loaded somewhere or wanted by a job, and the live workers that have it."""

    model: str
    queued: int
    held: int
    at_least: bool
    loaded_by: list[str]

    @property
    def is_cold(self) -> bool:
        """Whether jobs want it and nobody has it."""
        return not self.loaded_by and self.queued + self.held > 0


@dataclass(frozen=True, slots=True)
class ModelMap:
    """Workers by host, device and name, and the models, the most wanted first."""

    workers: Sequence[WarmWorker]
    models: Sequence[WantedModel]
    # What each model took of each kind of device.
    memory: Sequence[ModelMemoryRow] = ()


def read_models(connection: psycopg.Connection[Any], *, stale_s: float) -> ModelMap:
    """What is loaded by the last beats of workers that are heard of, beside what queued jobs want."""
    found = HeartbeatRepository(connection).standing()
    readings = HardwareRepository(connection).readings()
    seen = mapped(found, readings, ModelDemandRepository(connection).read(), stale_s=stale_s)
    return replace(seen, memory=ModelMemoryRepository(connection).read())


def mapped(
    workers: Sequence[Standing],
    readings: Sequence[HostReading],
    demand: Sequence[ModelDemand],
    *,
    stale_s: float,
) -> ModelMap:
    """Put together what was read: pure."""
    devices = _devices(readings, stale_s)
    warm = [
        WarmWorker(one, devices.get(one.worker_id, Device()))
        for one in workers
        if (one.queue == GPU_QUEUE or one.cached_models) and one.age_s <= stale_s and not one.is_quarantined
    ]
    warm.sort(key=lambda one: (one.worker.host_label, one.device.id or "", one.worker.worker_id))
    wanted = {one.model: one for one in demand}
    loaded = {model for one in warm for model in one.models}
    models = []
    for model in loaded | wanted.keys():
        asked = wanted.get(model, ModelDemand(model, 0, 0, at_least=False))
        by = [one.worker.worker_id for one in warm if model in one.models]
        models.append(WantedModel(model, asked.queued, asked.held, asked.at_least, by))
    return ModelMap(warm, sorted(models, key=lambda one: (-one.queued - one.held, one.model)))


def _devices(readings: Sequence[HostReading], stale_s: float) -> Mapping[str, Device]:
    """The device of each worker that a supervisor has put on one; memory only as it is now."""
    return {
        device["worker"]: Device(
            device["id"],
            device.get("name"),
            *((None, None) if one.is_stale(stale_s) else map(device.get, _MEMORY)),
        )
        for one in readings
        for device in one.reading["devices"]
        if "worker" in device
    }


def json_of(seen: ModelMap) -> dict[str, Any]:
    """What `qwf models --json` prints."""
    queued = {one.model: one for one in seen.models}
    return {
        "workers": [
            {
                "host_label": one.worker.host_label,
                "device": one.device.id,
                "device_name": one.device.name,
                "memory_used_mb": one.device.memory_used_mb,
                "memory_total_mb": one.device.memory_total_mb,
                "worker_id": one.worker.worker_id,
                "queue": one.worker.queue,
                "state": one.worker.state,
                "current_model": one.worker.current_model,
                "models": [
                    {"model": model, "queued": queued[model].queued, "at_least": queued[model].at_least}
                    for model in one.models
                ],
            }
            for one in seen.workers
        ],
        "models": [
            {
                "model": one.model,
                "queued": one.queued,
                "held": one.held,
                "at_least": one.at_least,
                "loaded_by": one.loaded_by,
            }
            for one in seen.models
        ],
        "cold": [one.model for one in seen.models if one.is_cold],
        "memory": [memory_json(one) for one in seen.memory],
    }


def memory_json(one: ModelMemoryRow) -> dict[str, Any]:
    """What a model took of a kind of device, in MB: loaded, with a job, and what it says of itself."""
    return {
        "model": one.model,
        "device": one.device,
        "held_mb": one.held_mb,
        "used_mb": one.used_mb,
        "loads": one.loads,
        "declared_mb": one.declared_mb,
        "last_seen": one.last_seen,
    }


def command_of() -> str:
    """The command that shows this map."""
    return "qwf models"
