"""A GPU has one worker at a time, and the next one only when it is proved that the last one left it free."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.programs import gone, linux_only
from support.processes.supervised import HOST, Supervised, over_stand_ins
from support.processes.vendor_tools import VendorTools, card, uuid_of
from support.processes.workers import until

from queue_workflows.repositories.workers.quarantine import QuarantineRepository

pytestmark = linux_only

READY = r"ready (\S+) (\d+)"
FULL_MB = 40_000


class Fleet:
    """Two cards whose memory the test fills and frees, and supervisors of stand-ins on them."""

    def __init__(self, tmp_path: Path, dsn: str, conn: psycopg.Connection) -> None:
        self.tools = VendorTools(tmp_path / "bin")
        self.locks = tmp_path / "locks"
        self.dsn = dsn
        self.quarantines = QuarantineRepository(conn)
        self.use()

    def use(self, first: object = 3, second: object = 3) -> None:
        """From now on so much of the memory of each is in use."""
        self.tools.cards(card(0, used_mb=first), card(1, used_mb=second))

    def supervisor(
        self, *others: str, env: Mapping[str, str] | None = None, patience_s: float = 0.5
    ) -> Supervised:
        """A worker on each; `patience_s` is how long a release may take."""
        settings = {
            "PATH": self.tools.path,
            "QWF_LOCK_DIR": str(self.locks),
            "QWF_HW_SAMPLE_S": "0.2",
            "QWF_GPU_RELEASE_S": str(patience_s),
            **(env or {}),
        }
        return over_stand_ins(self.dsn, "gpu:each", *others, env=settings)

    def quarantined(self) -> dict[str, str]:
        """The reasons by the cards' numbers."""
        numbers = {uuid_of(number): str(number) for number in (0, 1)}
        return {numbers[one.device]: one.reason for one in self.quarantines.of(HOST, "gpu")}

    def switch_on(self) -> None:
        """What `qwf workers on` does for devices."""
        assert self.quarantines.clear(HOST, "gpu", actor="me")


@pytest.fixture
def fleet(tmp_path: Path, qwf_dsn: str) -> Iterator[Fleet]:
    with own_connection(qwf_dsn) as conn:
        conn.execute("TRUNCATE worker_heartbeats, audit_log")
        yield Fleet(tmp_path, qwf_dsn, conn)


def started(supervisor: Supervised, number: int) -> int:
    """The pid of the next worker that is started on a card."""
    return int(supervisor.until(rf"gpu/nvidia{number}: started, pid (\d+)")[1])


def both_ready(supervisor: Supervised) -> list[int]:
    """The workers of both cards, once they have begun."""
    pids = [started(supervisor, number) for number in (0, 1)]
    assert {int(supervisor.until(READY)[2]) for _ in pids} == set(pids)
    return pids


def starts(supervisor: Supervised, number: int) -> int:
    return sum(f"gpu/nvidia{number}: started" in line for line in supervisor.said)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_card_that_does_not_give_its_memory_back_gets_no_other_worker(fleet: Fleet) -> None:
    """It is quarantined, in the database, until `on` has it tried again and it is free; the other goes on."""
    with fleet.supervisor() as supervisor:
        first, second = both_ready(supervisor)
        seen = {supervisor.until(r"(\S+) sees (\S+)")[2] for _ in (0, 1)}
        assert seen == {uuid_of(0), uuid_of(1)}
        fleet.use(FULL_MB, FULL_MB)
        kill(first)
        supervisor.until(f"device {uuid_of(0)} is quarantined: 40,000 MB of its memory are in use")
        until(lambda: set(fleet.quarantined()) == {"0"})
        assert "3 MB were before it began" in fleet.quarantined()["0"]

        fleet.switch_on()
        supervisor.until(f"device {uuid_of(0)} is quarantined: 40,000 MB")
        until(lambda: set(fleet.quarantined()) == {"0"})
        assert starts(supervisor, 0) == 1

        fleet.use(3, FULL_MB)
        fleet.switch_on()
        again = started(supervisor, 0)
        supervisor.until(READY)
        assert psutil.Process(second).is_running()
        assert starts(supervisor, 1) == 1

        kill(again)
        started(supervisor, 0)
        assert fleet.quarantined() == {}


@pytest.mark.slow
def test_a_card_that_an_operator_splits_has_no_worker_beside_those_of_its_slices(fleet: Fleet) -> None:
    """The worker that has it ends before the first of theirs begins: they would meet on a slice."""
    with fleet.supervisor() as supervisor:
        first, second = both_ready(supervisor)
        fleet.tools.says(
            "nvidia-smi", "-L", f"GPU 0: H100 (UUID: {uuid_of(0)})\n  MIG 3g.20gb  Device 0: (UUID: MIG-5)\n"
        )
        fleet.tools.says("nvidia-smi", "-q", "<nvidia_smi_log/>")
        fleet.tools.cards(card(0, used_mb=FULL_MB, mig="Enabled"), card(1))
        supervisor.until(rf"gpu/nvidia0: killing pid {first}: {uuid_of(0)} has been split")
        supervisor.until(r"gpu/MIG-5: started, pid")
        assert gone(first)
        assert psutil.Process(second).is_running()
        supervisor.until(READY)
        assert starts(supervisor, 0) == 1
        assert fleet.quarantined() == {}


@pytest.mark.slow
def test_a_card_is_given_on_as_soon_as_its_memory_is_back(fleet: Fleet) -> None:
    """However long it may take: the next worker waits for that and for nothing else."""
    with fleet.supervisor(patience_s=3600) as supervisor:
        first, _ = both_ready(supervisor)
        fleet.use(FULL_MB)
        kill(first)
        supervisor.until(rf"gpu/nvidia0: pid {first} killed by SIGKILL")
        asked = len(fleet.tools.asked("nvidia-smi"))
        until(lambda: len(fleet.tools.asked("nvidia-smi")) > asked + 3)
        assert starts(supervisor, 0) == 1
        fleet.use(200)
        supervisor.until(rf"device {uuid_of(0)}: free after")
        started(supervisor, 0)
        assert fleet.quarantined() == {}


@pytest.mark.slow
def test_what_a_worker_left_is_remembered_when_the_supervisor_is_killed(fleet: Fleet) -> None:
    """The next one asks for the same proof, and what was quarantined stays so."""
    with fleet.supervisor() as supervisor:
        pids = both_ready(supervisor)
        fleet.use(FULL_MB)
        kill(supervisor.pid)
        until(lambda: all(map(gone, pids)))
    with fleet.supervisor() as supervisor:
        supervisor.until(f"device {uuid_of(0)} is quarantined: 40,000 MB")
        started(supervisor, 1)
        until(lambda: set(fleet.quarantined()) == {"0"})
        kill(supervisor.pid)
    fleet.use()
    with fleet.supervisor() as supervisor:
        pid = started(supervisor, 1)
        until(lambda: int(supervisor.until(READY)[2]) == pid)
        assert starts(supervisor, 0) == 0
        fleet.switch_on()
        started(supervisor, 0)


@pytest.mark.slow
def test_two_supervisors_never_have_two_workers_on_one_card(fleet: Fleet) -> None:
    """The second waits for the first, and for a worker of it that outlives it."""
    with fleet.supervisor() as first:
        pids = both_ready(first)
        with fleet.supervisor() as second:
            for number in (0, 1):
                second.until(
                    f"device {uuid_of(number)} is another supervisor's, or of a worker that outlived"
                )
            os.kill(pids[0], signal.SIGSTOP)
            kill(first.pid)
            until(lambda: gone(pids[1]))
            started(second, 1)
            assert starts(second, 0) == 0
            kill(pids[0])
            until(lambda: gone(pids[0]))
            started(second, 0)


@pytest.mark.slow
def test_a_tool_that_hangs_leaves_the_card_alone_and_the_supervisor_well(fleet: Fleet) -> None:
    """Nobody knows whether the memory is free, so nothing is started there; other workers are replaced."""
    with fleet.supervisor("fetch", env={"QWF_HW_TOOL_TIMEOUT_S": "8"}) as supervisor:
        fetch = int(supervisor.until(r"fetch/1: started, pid (\d+)")[1])
        first = started(supervisor, 0)
        fleet.tools.hangs("nvidia-smi")
        supervisor.until("nvidia-smi gave no answer within 8 s")
        kill(first)
        supervisor.until(f"device {uuid_of(0)} is quarantined: nvidia-smi gave no answer")
        kill(fetch)
        supervisor.until(r"fetch/1: started, pid")
        assert starts(supervisor, 0) == 1
        fleet.tools.hangs("nvidia-smi", really=False)
        supervisor.until("the tool for nvidia answers again")
        until(lambda: set(fleet.quarantined()) == {"0"})
        fleet.switch_on()
        started(supervisor, 0)
