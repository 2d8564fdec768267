"""What the machines are at, as their supervisors saw them last."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Float, func
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
