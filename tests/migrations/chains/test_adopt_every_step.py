"""Taking over the older chain at each of its steps, with every table as its owner has made it his own."""

from __future__ import annotations

import pytest
from support.rows.older_chain import VERSIONS, add_own, by_hand, rename_all, turn_columns_round
from support.rows.schemas import catalog, query

from queue_workflows.db import bootstrap, migrations
from queue_workflows.db.migrations.chain.chains import engine_chain
from queue_workflows.errors import SchemaDrift

# The first, the last and one between them; the others by night.
GATED = (VERSIONS[0], VERSIONS[4], VERSIONS[-1])
OTHERS = [pytest.param(each, marks=pytest.mark.nightly) for each in VERSIONS if each not in GATED]
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("version", [*GATED, *OTHERS])]


def mend(dsn: str) -> list[str]:
    """Run what the refusal prints, and return it."""
    with pytest.raises(SchemaDrift) as caught:
        migrations.adopt(dsn, dry_run=True)
    query(dsn, ";\n".join(caught.value.statements))
    return list(caught.value.statements)


def test_another_order_other_names_and_own_columns_in_every_table(empty: str, version: int) -> None:
    """The order is taken as it is; the rest is mended by the statements that the refusal prints."""
    by_hand(empty, version)
    turn_columns_round(empty)
    assert migrations.adopt(empty, dry_run=True).revision == f"{version:04d}"
    before = catalog(empty)
    rename_all(empty)
    renamed = mend(empty)
    assert catalog(empty) == before
    assert all(" RENAME " in statement for statement in renamed)
    rename_all(empty)
    add_own(empty)
    mend(empty)
    assert migrations.adopt(empty).revision == f"{version:04d}"
    bootstrap(empty)
    assert migrations.check(empty, chain=engine_chain()).status == "current"
