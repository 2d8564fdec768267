"""The regression guard tells a slower commit from one that is not, and refuses what it cannot compare."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "scripts"))

from bench.guarding.verdict import Word, judge  # noqa: E402

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose one commit has what is measured and what measures; each test leaves it so."""
    target = tmp_path_factory.mktemp("guarded") / "clone"
    for part in ("src", "scripts", "alembic"):
        shutil.copytree(ROOT / part, target / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("alembic.ini", "pyproject.toml"):
        shutil.copy(ROOT / name, target)
    subprocess.run([*GIT, "init", "--quiet", target], check=True)
    subprocess.run([*GIT, "-C", target, "add", "-A"], check=True)
    subprocess.run([*GIT, "-C", target, "commit", "--quiet", "--no-verify", "-m", "as it is"], check=True)
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
@pytest.mark.parametrize(
    "others",
    [["bulk", "nodes"], pytest.param(["drain-two", "wake"], marks=pytest.mark.nightly)],
    ids="+".join,
)
def test_what_costs_more_is_called_slower(clone: Path, qwf_dsn: str, others: list[str]) -> None:
    """Each enqueue is made to wait; six pairs are enough to be sure of that much.

    What of the others is called is the machine's affair, but each kind of measure comes to a verdict.
    """
    verb = clone / "src" / "queue_workflows" / "repositories" / "jobs" / "enqueue.py"
    text = verb.read_text()
    slower = "    import time\n\n    time.sleep(0.02)\n"
    body = text.index('    """', text.index("def enqueue_ingest_job("))
    end = text.index('"""\n', body + 7) + 4
    verb.write_text(text[:end] + slower + text[end:])
    only = [word for name in ["enqueue", *others] for word in ("--only", name)]
    try:
        process = guard(clone, "HEAD", "--quick", "--rounds", "6", *only, "--dsn", qwf_dsn)
        out, err = process.communicate(timeout=500)
    finally:
        verb.write_text(text)
    verdicts = {line.split()[0]: line.split(": ")[-1] for line in out.splitlines()[1:]}
    assert list(verdicts) == ["enqueue", *others], err
    assert (process.returncode, verdicts["enqueue"]) == (1, "SLOWER"), out


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
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.nightly)],
)
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
