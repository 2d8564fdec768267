"""Statements can be read: of one level of fragments, each part with its sentence, on a page as a whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
LEVELS = ROOT / "tests/support/reference/statement_levels.py"
MANY = 350


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What the page of statements is made by."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import statements as found

    return found


PLANTED = """
from queue_workflows.repositories.sql.families import per_family

LEAF = "status = 'queued' AND NOT suspect"
FRAGMENT = f"queue = 'cpu' AND {LEAF}"
WITH_A_MARK = "queue = 'cpu' AND {leaf}"
FLAT = f"SELECT id FROM jobs WHERE {LEAF}"
OF_NAMES = "SELECT id FROM {table}".replace("{table}", "jobs")
NESTED = f"SELECT id FROM jobs WHERE {FRAGMENT}"
LATE = "SELECT id FROM jobs WHERE {mark}".replace("{mark}", WITH_A_MARK).replace("{leaf}", LEAF)
PER_FAMILY = per_family("SELECT id FROM {table} WHERE {mark}", mark=WITH_A_MARK, leaf=LEAF)
"""


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The level of each statement, and of those that are planted."""
    planted = tmp_path_factory.mktemp("statements") / "planted.py"
    planted.write_text(PLANTED)
    command = [sys.executable, str(LEVELS), str(planted)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_fragment_is_not_made_of_fragments(levels: dict[str, int]) -> None:
    """A statement's parts are looked up once; names and numbers are no fragments."""
    ours = {name: level for name, level in levels.items() if not name.startswith("planted.")}
    assert {name: level for name, level in ours.items() if level > 1} == {}
    assert len(ours) > MANY
    assert 1 in ours.values()


def test_a_second_level_is_seen_however_it_is_made(levels: dict[str, int]) -> None:
    """Put together by f-strings, by marks that are filled in late, or by a function of the package."""
    found = {name.removeprefix("planted."): levels[name] for name in levels if name.startswith("planted.")}
    assert found == {
        "FLAT": 1,
        "OF_NAMES": 0,
        "NESTED": 2,
        "LATE": 2,
        "PER_FAMILY[node]": 2,
        "PER_FAMILY[ingest]": 2,
    }


def test_each_part_of_a_hot_statement_has_its_sentence(statements: ModuleType) -> None:
    """And none of a statement that has none."""
    for one in statements.statements():
        named = re.findall(r"(?:\bWITH|,) (\w+) AS (?:MATERIALIZED )?\(", one.sql)
        assert set(named) <= statements.sentences(one).keys(), one.title


def test_a_part_without_a_sentence_is_refused(
    statements: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with its statement, and no page is written."""
    (tmp_path / "planted.py").write_text(
        '''
# first: what comes first.
SQL = """WITH first AS (SELECT 1), second AS MATERIALIZED (SELECT 2) SELECT * FROM first, second"""
'''
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import planted

    with pytest.raises(SystemExit, match=r"no sentence for second beside planted\.SQL"):
        statements.sentences(statements.Statement("Claim", "a claim", planted.SQL, "planted", "SQL"))


def test_only_the_space_between_words_differs_on_the_page(statements: ModuleType) -> None:
    """Everything else stands there as it is sent."""
    page = statements.page({})
    for one in statements.statements():
        printed = statements.indented(one.sql)
        assert printed.split() == one.sql.split()
        assert f"### {one.title}\n" in page
        assert f"```plpgsql\n{printed}\n```" in page


def test_what_the_claim_says_is_what_others_ask_by() -> None:
    """`qwf explain` and the indexes use words that a fragment has to write out."""
    from queue_workflows.models.limits import IS_PATTERN
    from queue_workflows.repositories.claims import claim
    from queue_workflows.repositories.claims.sweep import SHARED_BEFORE
    from queue_workflows.repositories.jobs import hooks, nodes
    from queue_workflows.repositories.limits import lane_turns, lanes, overview, rates

    assert all(claim.CLAIMABLE in one for one in claim.NEXT.values())
    assert " ".join(SHARED_BEFORE.split()) in " ".join(hooks.CLAIM_BEHIND.split())
    assert IS_PATTERN in rates.TAKE
    for words in (lanes.IN_LANE, lane_turns.IN_FRONT):
        assert words in nodes._KEYED_BULK.source
        assert words in overview.ONE
