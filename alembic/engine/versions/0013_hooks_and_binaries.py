"""Hook records, machines and their binaries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "hook_records",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("node_job_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("plugin", sa.Text(), nullable=False),
        sa.Column("hook", sa.Text(), nullable=False),
        sa.Column("line_no", sa.Integer(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("payload", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("warning", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["node_job_id"], ["workflow_node_jobs.id"], name="fk_hook_records_node_job_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["workflow_runs.id"], name="fk_hook_records_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_hook_records"),
        sa.UniqueConstraint("node_job_id", "attempt", "line_no", name="uq_hook_records_line"),
    )
    op.create_index("ix_hook_records_run", "hook_records", ["run_id", "type"], unique=False)
    op.create_table(
        "machines",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("host_label", sa.Text(), nullable=False),
        sa.Column("facts", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_machines"),
        sa.UniqueConstraint("host_label", name="uq_machines_host_label"),
    )
    op.create_table(
        "binaries",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("machine_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default="queued", nullable=False),
        sa.Column("abspath", sa.Text(), nullable=True),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("provider", sa.Text(), nullable=True),
        sa.Column("overrides", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "status <> 'installed' OR abspath IS NOT NULL", name=op.f("ck_binaries_installed_has_path")
        ),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'installed', 'failed')", name=op.f("ck_binaries_status")
        ),
        sa.ForeignKeyConstraint(
            ["machine_id"], ["machines.id"], name="fk_binaries_machine_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_binaries"),
        sa.UniqueConstraint("machine_id", "name", name="uq_binaries_machine_id_name"),
    )


def downgrade() -> None:
    op.drop_table("binaries", if_exists=True)
    op.drop_table("machines", if_exists=True)
    op.drop_table("hook_records", if_exists=True)
