"""What the machines are at and were over the last hours, as their supervisors saw them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Float, Integer, func, text
from sqlalchemy.orm import Mapped, mapped_column

from queue_workflows.models.base import Base, store_with


class HostHardware(Base):
    """The last reading of a machine's processors, memory and GPUs."""

    __tablename__ = "host_hardware"

    host_label: Mapped[str] = mapped_column(primary_key=True)
    reading: Mapped[dict[str, Any]]
    # How often its supervisor looks, so that a reader knows when it is late.
    every_s: Mapped[float] = mapped_column(Float(53))
    sampled_at: Mapped[datetime] = mapped_column(server_default=func.now())


# Written every few seconds by every supervisor, as heartbeats are.
store_with(
    HostHardware,
    fillfactor=50,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_threshold=500,
)


class HostHardwareHistory(Base):
    """A machine's figures of one half minute; the places of the last hours are written again and again."""

    __tablename__ = "host_hardware_history"

    host_label: Mapped[str] = mapped_column(primary_key=True)
    # Which half minute of the hours that are kept; a later one in the same place replaces it.
    slot: Mapped[int] = mapped_column(Integer, primary_key=True)
    sampled_at: Mapped[datetime] = mapped_column(server_default=func.now())
    cpu_percent: Mapped[float | None] = mapped_column(Float(53))
    memory_used_mb: Mapped[int] = mapped_column(Integer)
    memory_total_mb: Mapped[int] = mapped_column(Integer)
    # Of each GPU its name, what it was busy with, and its memory.
    devices: Mapped[list[Any]]


# No index is on what changes, so a row that is written again stays on its page.
store_with(
    HostHardwareHistory,
    fillfactor=80,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_threshold=500,
)


class ModelMemory(Base):
    """What a model has taken of the memory of one kind of device, as the workers that loaded it saw."""

    __tablename__ = "model_memory"

    model: Mapped[str] = mapped_column(primary_key=True)
    # As the vendor calls it, with its slice.
    device: Mapped[str] = mapped_column(primary_key=True)
    # Of the last loads, and of the jobs with the highest peaks of each; in MB, the newest first.
    load_mb: Mapped[list[Any]] = mapped_column(server_default=text("'[]'::jsonb"))
    peak_mb: Mapped[list[Any]] = mapped_column(server_default=text("'[]'::jsonb"))
    loads: Mapped[int] = mapped_column(server_default=text("0"))
    # What it said of itself when it was loaded last.
    declared_mb: Mapped[float | None] = mapped_column(Float(53))
    first_seen: Mapped[datetime] = mapped_column(server_default=func.now())
    last_seen: Mapped[datetime] = mapped_column(server_default=func.now())
