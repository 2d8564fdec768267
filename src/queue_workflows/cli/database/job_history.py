"""`qwf db history --partitioned` and `--plain`: where ingest jobs that are over lie."""

from __future__ import annotations

from typing import Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import operators_connection, print_json
from queue_workflows.errors import HistoryRefused

MOVES: Final = (
    "ingest jobs that are completed, skipped or cancelled move to monthly partitions,"
    " history_after_days after they ended;"
)
STAYS: Final = (
    "failed jobs, those with a dedupe key or of a schedule, and runs with all their jobs stay in their tables"
)
COMES_BACK: Final = (
    "what had moved comes back, a batch at a time, and each partition is dropped once it is empty"
)


def set_history(invocation: Invocation, *, by_months: bool, as_json: bool) -> None:
    """Say whether history is by months, and what there is of it; orchestrators do the rest."""
    from queue_workflows.repositories.history import HistoryRepository

    with operators_connection(invocation) as connection:
        repository = HistoryRepository(connection)
        if by_months and (keys := repository.references()):
            raise HistoryRefused([f"{key.table} ({key.name})" for key in keys])
        # Plain is how it is where nobody has ever asked.
        is_change = (by_months or repository.mode() is not None) and repository.set_by_months(by_months)
        months = repository.months()
    if as_json:
        print_json(
            {
                "partitioned": by_months,
                "changed": is_change,
                "months": [{"month": one.name.replace("_", "-"), "jobs": one.jobs} for one in months],
            }
        )
        return
    click.echo(f"history is {'by partitions' if by_months else 'plain'}{'' if is_change else ', as it was'}")
    if by_months:
        click.echo(f"{MOVES}\n{STAYS}")
    elif months:
        click.echo(COMES_BACK)
    for month in months:
        click.echo(f"{month.name.replace('_', '-')}  about {month.jobs:,} jobs")
