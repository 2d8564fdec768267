"""Which devices are ours to give, how a process is given one, and when one counts as free again."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.processes.programs import environment
from support.processes.vendor_tools import VendorTools, card, uuid_of

from queue_workflows.errors import ConfigurationError, ExitCode, NoDevices
from queue_workflows.gpu.devices import ALONE, environment_for, find_devices, usable
from queue_workflows.gpu.release import LOOK_WITHIN_S, Bounds, Occupancy, Proof, Sight, prove
from queue_workflows.host.locks.flock import lock_directory, try_lock
from queue_workflows.telemetry.hw.device import Device

PATIENCE_S = 150
NVIDIA = [Device("nvidia", number, f"GPU-{number}a") for number in (0, 1, 2)]
SPLIT = [
    Device("nvidia", 3, "GPU-3a", is_split=True),
    Device("nvidia", uuid="MIG-1", card="GPU-3a"),
    Device("nvidia", uuid="MIG-2", card="GPU-3a"),
]
AMD = [Device("amd", 0, "GPU-de8287300da37c72"), Device("amd", 1)]


def ids(devices: list[Device], **environ: str) -> list[str]:
    return [one.id for one in usable(devices, environ)]


def test_every_card_and_every_slice_is_ours() -> None:
    """But no card that is split: its slices have it."""
    everything = [*NVIDIA, *SPLIT, *AMD]
    assert ids(everything) == ["GPU-0a", "GPU-1a", "GPU-2a", "MIG-1", "MIG-2", AMD[0].id, "amd:1"]


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ("1", ["GPU-1a"]),
        ("2,0", ["GPU-2a", "GPU-0a"]),
        (" GPU-1 , 1,0", ["GPU-1a", "GPU-0a"]),
        ("MIG-2", ["MIG-2"]),
        ("0,7,1", ["GPU-0a"]),
        ("GPU-", []),
        ("-1,0", []),
        ("", []),
        ("GPU-3a", []),
    ],
)
def test_what_the_operator_left_visible_is_all_that_is_ours(told: str, left: list[str]) -> None:
    """Numbers, UUIDs and their beginnings, up to the first that fits nothing or several."""
    assert ids([*NVIDIA, *SPLIT], CUDA_VISIBLE_DEVICES=told) == left


def test_what_is_left_of_amds_cards() -> None:
    """ROCr's variable comes first; HIP's counts what that one has left, and else stands in for CUDA's."""
    assert ids(AMD, ROCR_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="0") == ["amd:1"]
    assert ids(AMD, HIP_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="0") == ["amd:1"]
    assert ids(AMD, CUDA_VISIBLE_DEVICES="0") == [AMD[0].id]
    assert ids(AMD, ROCR_VISIBLE_DEVICES="GPU-de8287300da37c72") == [AMD[0].id]


def test_a_process_sees_its_device_and_no_other() -> None:
    """By UUID where there is one; what was set before is gone."""
    before = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "HIP_VISIBLE_DEVICES": "1",
        "ROCR_VISIBLE_DEVICES": "1",
        "A": "b",
    }
    kept = {"A": "b", ALONE: "1"}
    order = {**kept, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert environment_for(NVIDIA[1], before) == {**order, "CUDA_VISIBLE_DEVICES": "GPU-1a"}
    assert environment_for(SPLIT[1], before) == {**order, "CUDA_VISIBLE_DEVICES": "MIG-1"}
    assert environment_for(Device("nvidia", 4), before) == {**order, "CUDA_VISIBLE_DEVICES": "4"}
    assert environment_for(AMD[0], before) == {
        **kept,
        "ROCR_VISIBLE_DEVICES": "GPU-de8287300da37c72",
        "HIP_VISIBLE_DEVICES": "0",
    }
    assert environment_for(AMD[1], before) == {**kept, "HIP_VISIBLE_DEVICES": "1"}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VendorTools:
    made = VendorTools(tmp_path / "bin")
    monkeypatch.setenv("PATH", made.path)
    return made


def test_no_devices_are_one_line_and_a_status(tools: VendorTools) -> None:
    """78 for what stays so until somebody does something, 1 for what may mend itself."""

    def refused(**environ: str) -> tuple[str, ExitCode]:
        with pytest.raises(NoDevices) as caught:
            find_devices(PATIENCE_S, environ)
        return str(caught.value), caught.value.exit_code

    said, status = refused()
    assert said == (
        "no GPU was found: nvidia-smi, amd-smi or rocm-smi are not on the PATH"
        " — install the driver's tools, or ask for gpu:N, which does not look at devices"
    )
    assert status == ExitCode.CONFIGURATION
    tools.says("nvidia-smi", "--query-gpu", "No devices were found\n", 6)
    assert refused() == (
        "no GPU was found: the driver lists none — is a card there, and its driver loaded?",
        ExitCode.FAILED,
    )
    tools.says("nvidia-smi", "--query-gpu", "broken\n", 9)
    assert refused() == (
        "no GPU was found: nvidia-smi said (it ended with 9): broken — is the driver loaded and well?",
        ExitCode.FAILED,
    )
    tools.cards(card(0), card(1))
    said, status = refused(CUDA_VISIBLE_DEVICES="7")
    assert said.startswith("CUDA_VISIBLE_DEVICES leaves none of this machine's 2 GPUs — unset it")
    assert status == ExitCode.CONFIGURATION
    assert len(find_devices(PATIENCE_S, {"CUDA_VISIBLE_DEVICES": "1"})) == 1


def test_cards_that_wait_for_their_slices_are_asked_for_again(tools: VendorTools) -> None:
    """At boot the mode may be there before the slices: 1, so that a service manager tries again."""

    def refused(**environ: str) -> tuple[str, ExitCode]:
        with pytest.raises(NoDevices) as caught:
            find_devices(PATIENCE_S, environ)
        return str(caught.value), caught.value.exit_code

    tools.cards(card(0, mig="Enabled"))
    tools.says("nvidia-smi", "-q", "<nvidia_smi_log/>")
    tools.says("nvidia-smi", "-L", f"GPU 0: NVIDIA H100 (UUID: {uuid_of(0)})\n")
    for environ in ({}, {"CUDA_VISIBLE_DEVICES": "0"}):
        said, status = refused(**environ)
        assert said.startswith(
            f"no GPU was found but cards in MIG mode that have no slices: {uuid_of(0)} — make some with"
        )
        assert status == ExitCode.FAILED
    tools.says("nvidia-smi", "-L", "Failed to initialize NVML: Unknown Error\n", 255)
    said, status = refused()
    assert said.startswith(
        "no GPU was found: nvidia-smi -L said (it ended with 255): Failed to initialize NVML"
    )
    assert status == ExitCode.FAILED


# Release

BOUNDS = Bounds(patience_s=30.0, tolerance_mb=256)
LEFT = Occupancy("h1:gpu:5f0c", 500)
CARD = replace(NVIDIA[0], memory_used_mb=500)


def judged(
    seen: Device | None,
    *,
    asked_at: float = 100.0,
    now: float = 101.0,
    left: Occupancy = LEFT,
    **troubles: str,
):
    devices = {seen.id: seen} if seen is not None else {}
    return prove(CARD, left, Sight(asked_at, devices, troubles), since=100.0, now=now, bounds=BOUNDS)


@pytest.mark.parametrize(
    ("used", "proof"),
    [(0, Proof.FREE), (500, Proof.FREE), (756, Proof.FREE), (757, Proof.OPEN), (None, Proof.OPEN)],
)
def test_free_is_no_more_than_before_and_a_little(used: int | None, proof: Proof) -> None:
    """The tolerance is for what a driver keeps for itself."""
    assert judged(replace(CARD, memory_used_mb=used))[0] is proof


def test_a_look_that_began_before_the_end_proves_nothing() -> None:
    """It may have seen the device before its worker was on it."""
    assert judged(CARD, asked_at=99.9)[0] is Proof.OPEN
    assert judged(CARD, asked_at=99.9, now=130.0)[0] is Proof.OPEN
    proof, reason = judged(CARD, asked_at=99.9, now=130.0 + LOOK_WITHIN_S)
    assert proof is Proof.STUCK
    assert reason == (
        "nobody has looked 150 s after h1:gpu:5f0c had ended, so nobody knows whether its memory is free"
    )


@pytest.mark.parametrize(
    ("seen", "troubles", "reason"),
    [
        (replace(CARD, memory_used_mb=41000), {}, "41,000 MB of its memory are in use"),
        (None, {}, "it is not listed any more"),
        (None, {"nvidia": "nvidia-smi gave no answer within 10 s"}, "nvidia-smi gave no answer within 10 s"),
        (replace(CARD, memory_used_mb=None), {}, "how much of its memory is in use was not told any more"),
    ],
)
def test_what_is_not_proved_in_time_is_stuck_and_says_why(seen, troubles, reason) -> None:
    """Before that it is open."""
    assert judged(seen, now=129.9, **troubles)[0] is Proof.OPEN
    proof, said = judged(seen, now=130.0, **troubles)
    assert proof is Proof.STUCK
    assert said.startswith(reason)
    assert "30 s after h1:gpu:5f0c had ended" in said


def test_a_device_that_never_told_its_memory_has_none_to_prove() -> None:
    """The end of the worker's tree has to do."""
    silent = Occupancy("h1:gpu:5f0c", None)
    assert judged(replace(CARD, memory_used_mb=None), left=silent)[0] is Proof.FREE
    assert judged(None, left=silent)[0] is Proof.OPEN


@pytest.mark.parametrize("plain", [None, [], {}, {"worker_id": 7}, "words"])
def test_what_was_not_written_by_us_is_nobodys(plain: object) -> None:
    """A lock file with other words in it."""
    assert Occupancy.of(plain) is None


def test_what_was_written_down_is_read_again() -> None:
    """With or without a figure."""
    for one in (LEFT, Occupancy("h1:gpu:5f0c", None)):
        assert Occupancy.of(one.plain()) == one


# Locks

HOLDS = "import os, sys, time; os.fstat(int(sys.argv[1])); print('has it', flush=True); sys.stdin.read()"


def test_a_lock_is_held_by_whoever_inherits_it_and_ends_with_the_last(tmp_path: Path) -> None:
    """So a worker that outlives its supervisor still has its device."""
    path = tmp_path / "device.lock"
    mine = try_lock(path)
    assert mine is not None
    assert try_lock(path) is None
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(mine)],
        pass_fds=[mine],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert child.stdout
    assert child.stdout.readline() == b"has it\n"
    os.close(mine)
    assert try_lock(path) is None
    child.communicate()
    again = try_lock(path)
    assert again is not None
    os.close(again)


def test_a_lock_on_a_file_that_was_replaced_is_none(tmp_path: Path) -> None:
    """Who has the old file has nothing, and no link is followed to another."""
    path = tmp_path / "device.lock"
    old = try_lock(path)
    assert old is not None
    path.unlink()
    new = try_lock(path)
    assert new is not None
    assert os.fstat(old).st_ino != os.fstat(new).st_ino
    os.close(old)
    os.close(new)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        try_lock(path)


def test_nobody_locks_where_the_others_do_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users would have two locks on one device: who cannot write at the meeting place is told so."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr("queue_workflows.host.locks.flock.SHARED", shared)
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != shared)
    with pytest.raises(
        ConfigurationError, match=r"live in .*/shared, where this user cannot write — .*LOCK_DIR"
    ):
        lock_directory(None, {"XDG_RUNTIME_DIR": str(tmp_path / "run")})
    assert lock_directory(tmp_path / "chosen") == tmp_path / "chosen"


def test_where_locks_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """Where the setting says; else where all of the machine meet, or the user's own where that is none."""
    assert lock_directory(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()
    monkeypatch.setattr("queue_workflows.host.locks.flock.SHARED", tmp_path / "shared")
    assert lock_directory(None, {}) == tmp_path / "shared"
    monkeypatch.setattr("queue_workflows.host.locks.flock.SHARED", tmp_path / "none" / "shared")
    assert lock_directory(None, {"XDG_RUNTIME_DIR": str(tmp_path / "run")}) == tmp_path / "run" / "qwf"
    assert f"locks live in {tmp_path / 'run' / 'qwf'}, as" in caplog.text
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigurationError, match=r"locks cannot live in .* — name a directory with QWF_LOCK_DIR"
    ):
        lock_directory(tmp_path / "file")
