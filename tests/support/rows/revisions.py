"""The engine chain's newest revision, so that a new one does not touch every test that ends there."""

from __future__ import annotations

from queue_workflows.db import migrations
from queue_workflows.db.migrations.chain.chains import engine_chain

REVISIONS = [line.revision for line in migrations.history([engine_chain()])]
HEAD, BEFORE_HEAD = REVISIONS[-1], REVISIONS[-2]
