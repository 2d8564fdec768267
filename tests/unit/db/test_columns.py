"""What is known of the tables without SQLAlchemy is what the models say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULE = "src/queue_workflows/models/columns.py"


def test_the_committed_columns_are_those_of_the_models() -> None:
    """Whoever changes a model runs `make docs`."""
    command = [sys.executable, ROOT / "scripts" / "columns.py", "--check"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("old", "new"), [('"at_most_once": "BOOLEAN"', '"at_most_once": "TEXT"'), ("ingest_jobs", "jobs")]
)
def test_stale_columns_are_named_and_then_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    """--check names the module, changes nothing and fails; without it the module is as it was."""
    good = (ROOT / MODULE).read_text(encoding="utf-8")
    path = tmp_path / MODULE
    path.parent.mkdir(parents=True)
    spoilt = good.replace(old, new, 1)
    assert spoilt != good
    path.write_text(spoilt, encoding="utf-8")
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import columns

    monkeypatch.setattr(sys, "argv", ["columns.py", "--check", "--root", str(tmp_path)])
    assert (columns.main(), capsys.readouterr().out) == (1, f"columns: {MODULE} stale, run `make docs`\n")
    assert path.read_text(encoding="utf-8") == spoilt

    monkeypatch.setattr(sys, "argv", ["columns.py", "--root", str(tmp_path)])
    assert columns.main() == 0
    assert path.read_text(encoding="utf-8") == good


def test_the_models_are_all_there_with_the_first_of_them() -> None:
    """`Base.metadata` is whole for a host app's foreign keys, however it was come by."""
    script = (
        "import sys, queue_workflows.models as models\n"
        "assert 'sqlalchemy' not in sys.modules\n"
        "from queue_workflows.models.columns import TYPES\n"
        "assert set(models.Base.metadata.tables) == set(TYPES)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
