"""Every act by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queue_workflows.engine.operate.many_jobs import Verb
from queue_workflows.web.acts.act import Act
from queue_workflows.web.acts.answers import ANSWER
from queue_workflows.web.acts.jobs import job_act
from queue_workflows.web.acts.limits import LIMIT_ACTS
from queue_workflows.web.acts.runs import RUN_ACTS
from queue_workflows.web.acts.schedules import SCHEDULE_ACTS
from queue_workflows.web.acts.workers import WORKER_ACTS

ACTS: Final[Mapping[str, Act]] = {
    act.name: act
    for act in (
        job_act(Verb.CANCEL),
        job_act(Verb.RETRY),
        *RUN_ACTS,
        ANSWER,
        *WORKER_ACTS,
        *LIMIT_ACTS,
        *SCHEDULE_ACTS,
    )
}
