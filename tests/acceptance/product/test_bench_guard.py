"""The regression guard tells a slower commit from one that is not, and refuses what it cannot compare."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.suite.missing import missing

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "scripts"))

from bench.guarding.verdict import Word, judge  # noqa: E402

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of its own with this commit, which a test may change."""
    if not (ROOT / ".git").exists():
        missing("commits are compared, and this copy has no history")
    target = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", target], check=True)
    for part in ("src", "scripts", "alembic"):
        subprocess.run(["cp", "-r", ROOT / part, target], check=True)
    subprocess.run([*GIT, "-C", target, "add", "-A"], check=True)
    subprocess.run(
        [*GIT, "-C", target, "commit", "--quiet", "--allow-empty", "--no-verify", "-m", "as it is"],
        check=True,
    )
    return target


def guard(clone: Path, *arguments: str, directory: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(clone / "scripts" / "bench" / "guard"), *arguments],
        env=os.environ | {"TMPDIR": str(directory or clone.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its status, and its last line."""
    out, err = process.communicate(timeout=500)
    return process.returncode, (out or err).splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_costs_more_is_called_slower(clone: Path, qwf_dsn: str) -> None:
    """Each enqueue is made to wait; six pairs are enough to be sure of that much."""
    verb = clone / "src" / "queue_workflows" / "repositories" / "jobs" / "enqueue.py"
    text = verb.read_text()
    slower = "    import time\n\n    time.sleep(0.02)\n"
    body = text.index('    """', text.index("def enqueue_ingest_job("))
    end = text.index('"""\n', body + 7) + 4
    verb.write_text(text[:end] + slower + text[end:])
    found = said(guard(clone, "HEAD", "--quick", "--rounds", "6", "--only", "enqueue", "--dsn", qwf_dsn))
    assert (found[0], found[1].split(": ")[-1]) == (1, "SLOWER"), found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_measures_come_to_a_verdict(clone: Path, qwf_dsn: str) -> None:
    """In a quick look at a commit beside itself: each kind of measure still runs."""
    names = ["bulk", "drain-two", "wake", "nodes"]
    only = [word for name in names for word in ("--only", name)]
    process = guard(clone, "HEAD", "HEAD", "--anyway", "--quick", "--rounds", "6", *only, "--dsn", qwf_dsn)
    out, err = process.communicate(timeout=500)
    assert [line.split()[0] for line in out.splitlines()[1:]] == names, err
    assert process.returncode in (0, 1, 3), err


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (["nothing-of-that-name"], 2, "there is no commit 'nothing-of-that-name' here"),
        (["HEAD"], 2, "HEAD and the working tree have the same package"),
        (["HEAD", "HEAD", "--anyway", "--dsn", "postgresql://localhost:1/x"], 69, "cannot be used"),
        (["HEAD", "--rounds", "2"], 2, "at least 6"),
    ],
    ids=["unknown", "the same", "no server", "too few"],
)
def test_what_cannot_be_compared_is_said_in_a_line(
    clone: Path, arguments: list[str], status: int, line: str
) -> None:
    """No traceback, and a status that tells it from a commit that is slower."""
    found = said(guard(clone, *arguments))
    assert found[0] == status
    assert line in found[1]


@pytest.fixture
def measuring(clone: Path, qwf_dsn: str) -> Iterator[subprocess.Popen[str]]:
    """A guard in the middle of its rounds."""
    process = guard(
        clone,
        "HEAD",
        "HEAD",
        "--anyway",
        "--quick",
        "--rounds",
        "9999",
        "--only",
        "enqueue",
        "--dsn",
        qwf_dsn,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("enqueue: 1 of 9999")
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_leaves_nothing(
    measuring: subprocess.Popen[str], clone: Path, number: int, status: int
) -> None:
    """Another copy is refused meanwhile; then the processes end, and the trees are gone."""
    assert said(guard(clone, "HEAD", "HEAD", "--anyway")) == (
        4,
        f"guard: another copy measures on this machine (process {measuring.pid}): wait for it",
    )
    measuring.send_signal(number)
    _, err = measuring.communicate(timeout=120)
    assert (measuring.returncode, "nothing is left behind" in err.splitlines()[-1]) == (status, True), err
    assert [path.name for path in clone.parent.glob("qwf-guard-*/")] == []


@pytest.mark.parametrize(
    ("after", "word"),
    [
        ([1.2, 1.21, 1.19, 1.22, 1.18, 1.2], Word.SLOWER),
        ([1.0, 1.01, 0.99, 1.02, 0.98, 1.0], Word.NO_SLOWER),
        ([0.7, 1.5, 1.0, 1.2, 0.8, 1.1], Word.UNDECIDED),
        ([1.2, 1.2, 1.2], Word.UNDECIDED),
    ],
    ids=["slower", "as it was", "noise", "too few"],
)
def test_a_verdict_says_how_sure_it_is(after: list[float], word: Word) -> None:
    """Slower only where the whole interval is beyond the limit; what noise hides is undecided, not green."""
    found = judge([1.0] * len(after), after, limit=1.05, confidence=0.95)
    assert found.word is word
    assert found.low <= found.ratio <= found.high


def test_the_interval_is_that_of_signed_ranks() -> None:
    """Of ten pairs the eight lowest and highest middles lie outside, as tables of the test have it."""
    found = judge([1.0] * 10, [float(number) for number in range(1, 11)], limit=1.05, confidence=0.95)
    assert round(found.confidence, 3) == 0.951
