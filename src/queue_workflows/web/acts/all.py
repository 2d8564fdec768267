"""Every act by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queue_workflows.engine.operate.many_jobs import Verb
from queue_workflows.web.acts.act import Act
from queue_workflows.web.acts.jobs import job_act

ACTS: Final[Mapping[str, Act]] = {
    act.name: act
    for act in (
        job_act(Verb.CANCEL),
        job_act(Verb.RETRY),
    )
}
