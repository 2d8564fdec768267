"""The two migration chains and the verbs on them."""

from queue_workflows.db.migrations.adoption import Adoption, adopt
from queue_workflows.db.migrations.authoring import RevisionInfo, check, history, merge, offline_sql, revision
from queue_workflows.db.migrations.state import ChainState, current
from queue_workflows.db.migrations.steps import Progress
from queue_workflows.db.migrations.verbs import bootstrap, downgrade, downgrade_chain, upgrade
from queue_workflows.db.migrations.waiting import wait_for_schema
from queue_workflows.db.shipped_chain import chain_directory

__all__ = [
    "Adoption",
    "ChainState",
    "Progress",
    "RevisionInfo",
    "adopt",
    "bootstrap",
    "chain_directory",
    "check",
    "current",
    "downgrade",
    "downgrade_chain",
    "history",
    "merge",
    "offline_sql",
    "revision",
    "upgrade",
    "wait_for_schema",
]
