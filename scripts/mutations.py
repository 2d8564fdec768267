"""The ways in which the engine is broken on purpose, each beside the test that has to notice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# The fence of each row of a batch, and that of rows that are alike.
_FENCES: Final = (
    "job.id = ANY (%(ids)s::bigint[]) AND job.id = given.id\n    AND ",
    'FENCE_OF_ALL: Final = """job.id = ANY (%(ids)s::bigint[])\n    AND ',
)
_WITH_ATTEMPT: Final = """(job.attempt, job.claimed_by, job.status)
        IS NOT DISTINCT FROM (given.attempt, given.claimed_by, given.held)"""
_WITHOUT_ATTEMPT: Final = """(job.claimed_by, job.status)
        IS NOT DISTINCT FROM (given.claimed_by, given.held)"""
_STATEMENT: Final = "*ending.end_statement(self._family, endings)"
_END: Final = f"""rows = self._sql.ask({_STATEMENT})
        return lambda: accepted_of(endings, rows())"""
_LATE_EVENTS: Final = f'''params = ending.end_params(self._family, endings)
        ended = self._sql.rows({_STATEMENT})
        if self._family.emits_events:
            self._sql.rows(
                """
                INSERT INTO workflow_dispatch_events (run_id, node_job_id, generation, attempt, kind)
                SELECT run_id, id, generation, attempt, status FROM workflow_node_jobs
                WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NOT NULL RETURNING id
                """,
                params,
            )
        return lambda: accepted_of(endings, ended)'''


@dataclass(frozen=True)
class Edit:
    """One place in one module."""

    module: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """What is broken, and which test says so."""

    name: str
    what: str
    test: str
    edits: Sequence[Edit]

    def apply(self, package: Path) -> None:
        """Break this copy of the package; a place that is not there any more is an error."""
        for edit in self.edits:
            file = package / edit.module
            text = file.read_text(encoding="utf-8")
            if text.count(edit.old) != 1:
                raise SystemExit(f"the mutant {self.name!r} does not apply: {edit.module} has changed")
            file.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


MUTANTS: Final = (
    Mutant(
        "fence",
        "the attempt is not compared",
        "tests/invariants/claims/test_claim_and_finish_are_fenced.py",
        [
            Edit("repositories/sql/families.py", before + _WITH_ATTEMPT, before + _WITHOUT_ATTEMPT)
            for before in _FENCES
        ],
    ),
    Mutant(
        "claim",
        "the rows to claim are a subquery that the planner may run again",
        "tests/invariants/claims/test_a_claim_takes_what_it_asked_for.py",
        [
            Edit(
                "repositories/claims/claim.py",
                "WHERE job.id = ANY (ARRAY(SELECT id FROM next))",
                "WHERE job.id IN (" + "SELECT id FROM {table} WHERE status = 'queued'"
                " AND queue = %(queue)s::text ORDER BY priority DESC, position"
                " LIMIT %(limit)s::bigint FOR NO KEY UPDATE SKIP LOCKED)",
            )
        ],
    ),
    Mutant(
        "event",
        "a node's event is written after its end, in a transaction of its own",
        "tests/invariants/runs/test_a_node_and_its_event_are_one.py"
        "::test_without_the_event_the_node_has_not_ended",
        [
            Edit(
                "repositories/claims/end.py",
                "END_ALIKE: Final = per_family(_END, ",
                'END_ALIKE: Final = per_family(_END.replace("{events}", ""), ',
            ),
            Edit(
                "repositories/claims/repository.py",
                _END,
                _LATE_EVENTS,
            ),
        ],
    ),
    Mutant(
        "timer",
        "no kernel timer, only the thread that needs the GIL",
        "tests/invariants/wakes/test_a_woken_worker_writes_nothing.py::test_the_kernel_ends_it_before_its_lease",
        [
            Edit(
                "host/processes/lease_timer.py",
                "        if not enabled:\n",
                "        if enabled or not enabled:\n",
            )
        ],
    ),
    Mutant(
        "marks",
        "a claim that came up short is not followed by one without marks",
        "tests/unit/worker/test_low_water_marks.py",
        [
            Edit(
                "repositories/sql/low_water_marks.py",
                "self._short = short and not self._asked_all",
                "self._short = False",
            )
        ],
    ),
    Mutant(
        "reclaim",
        "a sweep takes jobs whose lease holds",
        "tests/integration/claims/test_claiming_sweeps.py::test_a_lease_that_holds_is_left_alone",
        [
            Edit(
                "repositories/claims/sweep.py",
                'LAPSED: Final = "lease_expires_at < statement_timestamp()"',
                'LAPSED: Final = "true"',
            )
        ],
    ),
    Mutant(
        "wake",
        "an idle worker asks for no earlier writer",
        "tests/integration/db/test_listen.py",
        [
            Edit(
                "db/listen/listener.py",
                "if _oldest_running(wire) >= self._mark:",
                "if _oldest_running(wire) >= 0:",
            )
        ],
    ),
)
