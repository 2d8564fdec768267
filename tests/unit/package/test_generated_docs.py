"""The tables in docs/ are those of the code."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


Docs = Callable[..., tuple[int, str]]


@pytest.fixture
def docs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Docs:
    """The script in this process, for it imports everything: its exit status, and what it prints."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import docs as script

    def run(*arguments: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["docs.py", *map(str, arguments)])
        return script.main(), capsys.readouterr().out

    return run


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A copy of the pages, to spoil."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    return tmp_path


def test_the_committed_pages_are_up_to_date() -> None:
    """Whoever changes a table in the code runs `make docs`."""
    command = [sys.executable, ROOT / "scripts" / "docs.py", "--check"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("page", "old", "new"),
    [
        ("docs/reference/states.md", "queued --> running", "queued --> completed"),
        ("docs/reference/states.md", "| `failed` | yes |", "| `failed` |  |"),
        ("docs/reference/exit-codes.md", "| 79 |", "| 78 |"),
        ("docs/reference/telemetry.md", "`qwf_job_wait_duration_seconds`", "`qwf_job_wait`"),
        ("docs/reference/workflow.schema.json", "fail_fast", "fail_slow"),
        ("docs/reference/json.md", "| `workers[].knows` | array |", "| `workers[].knows` | null |"),
        ("docs/reference/json.md", "| `app_version` | text |", "| `app_version` | null |"),
        ("docs/reference/statements.md", "FOR NO KEY UPDATE SKIP LOCKED", "FOR UPDATE SKIP LOCKED"),
        ("docs/reference/statements.md", "- `claimed`: the next jobs", "- `claimed`: the last jobs"),
    ],
)
def test_a_stale_table_is_named_and_then_mended(
    docs: Docs, pages: Path, page: str, old: str, new: str
) -> None:
    """--check names the page, changes nothing and fails; without it the page is as it was."""
    good = (pages / page).read_text(encoding="utf-8")
    assert old in good
    spoilt = good.replace(old, new, 1)
    (pages / page).write_text(spoilt, encoding="utf-8")

    assert docs("--check", "--root", pages) == (1, f"docs: {page} stale, run `make docs`\n")
    assert (pages / page).read_text(encoding="utf-8") == spoilt

    assert docs("--root", pages) == (0, f"docs: {page} written anew\n")
    assert (pages / page).read_text(encoding="utf-8") == good


def test_a_page_that_lost_its_marker_is_refused(docs: Docs, pages: Path) -> None:
    """A table that nobody can find must not pass for one that is up to date."""
    page = pages / "docs/reference/exit-codes.md"
    page.write_text(
        page.read_text(encoding="utf-8").replace("<!-- end of exit codes -->", ""), encoding="utf-8"
    )
    with pytest.raises(SystemExit, match="exactly one block"):
        docs("--check", "--root", pages)
