"""The host app's tables, on its own base."""

from __future__ import annotations

import uuid

from sqlalchemy import ForeignKey, Index, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from queue_workflows.models import WorkflowRun


class HostBase(DeclarativeBase):
    """The host app's metadata."""


class Studio(HostBase):
    """Refers to nothing of the engine's."""

    __tablename__ = "studios"
    __table_args__ = (Index("ix_studios_name", "name", unique=True, postgresql_where=text("name <> ''")),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(Text, server_default="")


class Film(HostBase):
    """Refers to the run that makes it, and to its studio."""

    __tablename__ = "films"

    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(Text)
    studio_id: Mapped[int] = mapped_column(ForeignKey(Studio.id))
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey(WorkflowRun.id, ondelete="CASCADE"))
