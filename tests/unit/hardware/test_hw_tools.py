"""What the vendors' tools print, and how little of it may be trusted; stand-ins are real programs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import psutil
import pytest
from support.processes.vendor_tools import HEAD, VendorTools, card, uuid_of

from queue_workflows.telemetry.hw.amd import AmdReader
from queue_workflows.telemetry.hw.commands import Asker, ToolAbsent, ToolFailed, ToolSilent
from queue_workflows.telemetry.hw.device import Device, megabytes, number
from queue_workflows.telemetry.hw.machine import MachineReader
from queue_workflows.telemetry.hw.nvidia import FIELDS, read_nvidia
from queue_workflows.telemetry.hw.reading import DeviceReader, payloads

PATIENCE_S = 150
H100 = Device("nvidia", 0, uuid_of(0), "NVIDIA H100 80GB HBM3", 7.0, 81559, 3, 31.0, 69.97, 700.0)
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
LOST = "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost."


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VendorTools:
    """No tool but what the test puts there, and the shell's own."""
    made = VendorTools(tmp_path / "bin")
    monkeypatch.setenv("PATH", made.path)
    return made


def nvidia() -> list[Device]:
    return read_nvidia(Asker(PATIENCE_S))


# NVIDIA


def test_a_card_is_read_by_its_headings(tools: VendorTools) -> None:
    """Every figure of the usual answer, with its unit left out or in."""
    tools.cards(card(0))
    assert nvidia() == [H100]
    assert tools.asked("nvidia-smi") == [f"--query-gpu={','.join(FIELDS)} --format=csv,nounits"]
    tools.cards(card(0).replace(" 81559,", " 81559 MiB,").replace(" 7,", " 7 %,").replace("69.97", "69.97 W"))
    assert nvidia() == [H100]


def test_columns_may_come_in_another_order_and_be_more_or_fewer(tools: VendorTools) -> None:
    """A driver of tomorrow, and one of yesterday."""
    tools.says(
        "nvidia-smi",
        "--query-gpu",
        f"memory.used [MiB], novelty, uuid\n3, what, {uuid_of(0)}\n4, ever, {uuid_of(1)}\n",
    )
    assert nvidia() == [
        Device("nvidia", uuid=uuid_of(0), memory_used_mb=3),
        Device("nvidia", uuid=uuid_of(1), memory_used_mb=4),
    ]


def test_a_field_that_the_driver_does_not_know_is_asked_for_no_more(tools: VendorTools) -> None:
    """It refuses all fields for the sake of one, and names it."""
    tools.script(
        "nvidia-smi",
        """#!/bin/sh
case "$1" in *mig.mode*) echo 'Field "mig.mode.current" is not a valid field to query.'; echo; exit 2;; esac
case "$1" in *power.limit*) echo 'Field "power.limit" is not a valid field to query.'; echo; exit 2;; esac
echo 'index, uuid, name, memory.used [MiB]'
echo '0, GPU-1, Tesla K80, 12'
""",
    )
    assert nvidia() == [Device("nvidia", 0, "GPU-1", "Tesla K80", memory_used_mb=12)]


@pytest.mark.parametrize(
    "word", ["[N/A]", "[Not Supported]", "N/A", "[Unknown Error]", "[GPU requires reset]", "ERR!", ""]
)
def test_what_is_not_told_is_none(tools: VendorTools, word: str) -> None:
    """The other figures of that card stay what they are."""
    tools.cards(card(0, used_mb=word), card(1))
    first, second = nvidia()
    assert (first.memory_used_mb, first.memory_total_mb, second.memory_used_mb) == (None, 81559, 3)


def test_no_cards_is_an_answer(tools: VendorTools) -> None:
    """A driver without a card says so in words, and ends with 6."""
    tools.says("nvidia-smi", "--query-gpu", "No devices were found\n", 6)
    assert nvidia() == []


@pytest.mark.parametrize(
    ("text", "status", "shown"),
    [
        (
            NO_DRIVER + "\n",
            9,
            "nvidia-smi said (it ended with 9): " + NO_DRIVER,
        ),
        ("\x00\x1b[31m garbage\n" * 3, 0, "nvidia-smi said: ??[31m garbage"),
        ("", 0, "nvidia-smi said: nothing"),
        (HEAD + "\n", 0, f"nvidia-smi said: {HEAD}"),
        ("x" * 200_000, 0, f"nvidia-smi said: {'x' * 159}…"),
        (HEAD + "\n1, 2\n", 0, f"nvidia-smi said: {HEAD}"),
        (
            LOST + "\n",
            15,
            "nvidia-smi said (it ended with 15): " + LOST,
        ),
    ],
)
def test_anything_else_is_a_failure_in_one_line(
    tools: VendorTools, text: str, status: int, shown: str
) -> None:
    """With the tool's own words, and nothing that could steer a terminal."""
    tools.says("nvidia-smi", "--query-gpu", text, status)
    with pytest.raises(ToolFailed) as caught:
        nvidia()
    assert str(caught.value) == shown


def test_warnings_may_stand_before_the_answer(tools: VendorTools) -> None:
    """Of a card that is otherwise well; in AMD's tool one may look like the beginning of the answer."""
    warning = "WARNING: infoROM is corrupted at gpu 0000:3B:00.0"
    tools.says("nvidia-smi", "--query-gpu", f"{warning}\n\n{HEAD}\n{card(0)}\n")
    assert nvidia() == [H100]
    tools.says("amd-smi", "metric", "[WARNING] old firmware\n{no\n" + json.dumps([metric(0)]))
    tools.says("amd-smi", "list", "[WARNING] old firmware\n" + json.dumps(LISTED))
    tools.says("amd-smi", "static", json.dumps(ASIC))
    assert AmdReader(Asker(PATIENCE_S)).read() == [MI300X]


def test_an_answer_that_nobody_foresaw_leaves_the_others_devices(tools: VendorTools, monkeypatch) -> None:
    """Whatever goes wrong in reading one tool's answer is that vendor's trouble alone."""
    tools.cards(card(0))
    reader = DeviceReader(PATIENCE_S)

    def odd() -> list[Device]:
        raise OverflowError("cannot convert float infinity to integer")

    monkeypatch.setitem(reader._read, "amd", odd)
    seen = reader.look()
    assert seen.found == (H100,)
    assert "OverflowError('cannot convert" in seen.troubles["amd"]


MIG_LIST = f"""GPU 0: NVIDIA A100-SXM4-40GB (UUID: {uuid_of(0)})
  MIG 3g.20gb     Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)
  MIG 3g.20gb     Device  1: (UUID: MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: {uuid_of(1)})
"""
MIG_XML = f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <gpu id="00000000:15:00.0">
    <mig_mode><current_mig>Enabled</current_mig></mig_mode>
    <mig_devices>
      <mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id>
        <fb_memory_usage><total>20096 MiB</total><used>1200 MiB</used></fb_memory_usage></mig_device>
      <mig_device><index>1</index><gpu_instance_id>2</gpu_instance_id>
        <fb_memory_usage><total>20096 MiB</total><used>N/A</used></fb_memory_usage></mig_device>
    </mig_devices>
    <uuid>{uuid_of(0)}</uuid>
  </gpu>
  <gpu id="00000000:16:00.0">
    <mig_devices>None</mig_devices><uuid>{uuid_of(1)}</uuid>
  </gpu>
</nvidia_smi_log>
"""


def test_a_split_card_is_followed_by_its_slices(tools: VendorTools) -> None:
    """Each with its own memory and the card's temperature; the other card is whole."""
    tools.cards(card(0, used_mb="[N/A]", mig="Enabled"), card(1))
    tools.says("nvidia-smi", "-L", MIG_LIST)
    tools.says("nvidia-smi", "-q", MIG_XML)
    whole, first, second, other = nvidia()
    assert (whole.is_split, other.is_split) == (True, False)
    assert first == Device(
        "nvidia",
        uuid="MIG-c7384736-a75d-5afc-978f-d2f1294409fd",
        name="MIG 3g.20gb",
        memory_total_mb=20096,
        memory_used_mb=1200,
        temperature_c=31.0,
        card=uuid_of(0),
    )
    assert (second.id, second.memory_used_mb) == ("MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d", None)


def test_a_report_of_slices_that_is_none_is_a_failure(tools: VendorTools) -> None:
    """Garbage, and a document that would make itself long."""
    tools.cards(card(0, mig="Enabled"))
    tools.says("nvidia-smi", "-L", MIG_LIST)
    for text in ("<gpu>", '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'):
        tools.says("nvidia-smi", "-q", text)
        with pytest.raises(ToolFailed, match="nvidia-smi -q -x said something that is no"):
            nvidia()


# AMD


def metric(gpu: int, used: int = 283) -> dict[str, object]:
    return {
        "gpu": gpu,
        "usage": {"gfx_activity": {"value": 12, "unit": "%"}, "vcn_activity": ["N/A"]},
        "power": {"socket_power": {"value": 141, "unit": "W"}, "power_management": "ENABLED"},
        "temperature": {
            "edge": "N/A",
            "hotspot": {"value": 40, "unit": "C"},
            "mem": {"value": 33, "unit": "C"},
        },
        "mem_usage": {
            "total_vram": {"value": 196592, "unit": "MB"},
            "used_vram": {"value": used, "unit": "MB"},
            "free_vram": {"value": 196592 - used, "unit": "MB"},
        },
    }


LISTED = [
    {
        "gpu": 0,
        "bdf": "0000:05:00.0",
        "uuid": "f3ff74a1-0000-1000-8082-87300da37c72",
        "hip_id": 1,
        "hip_uuid": "GPU-de8287300da37c72",
    },
    {
        "gpu": 1,
        "bdf": "0000:26:00.0",
        "uuid": "66ff74a1-0000-1000-8013-1baed74cdf8a",
        "hip_id": 0,
        "hip_uuid": "N/A",
    },
]
ASIC = [{"gpu": gpu, "asic": {"market_name": "AMD Instinct MI300X"}} for gpu in (0, 1)]
MI300X = Device("amd", 1, "GPU-de8287300da37c72", "AMD Instinct MI300X", 12.0, 196592, 283, 40.0, 141.0)


@pytest.mark.parametrize("wrap", [lambda entries: entries, lambda entries: {"gpu_data": entries}])
def test_amd_smi_of_either_generation(tools: VendorTools, wrap) -> None:
    """Known by the number and the UUID of ROCm's runtime, which are not the tool's own."""
    tools.says("amd-smi", "metric", "WARNING: old firmware\n" + json.dumps(wrap([metric(0), metric(1, 9)])))
    tools.says("amd-smi", "list", json.dumps(wrap(LISTED)))
    tools.says("amd-smi", "static", json.dumps(wrap(ASIC)))
    first, second = AmdReader(Asker(PATIENCE_S)).read()
    assert first == MI300X
    assert (second.id, second.number, second.memory_used_mb) == ("amd:0", 0, 9)


def test_who_is_who_is_asked_once_until_a_card_is_new(tools: VendorTools) -> None:
    """The tool is slow, and a card that appears must have its name."""
    tools.says("amd-smi", "metric", json.dumps([metric(0)]))
    tools.says("amd-smi", "list", json.dumps(LISTED))
    tools.says("amd-smi", "static", json.dumps(ASIC))
    reader = AmdReader(Asker(PATIENCE_S), now=lambda: 0.0)
    assert [one.id for one in reader.read() + reader.read()] == ["GPU-de8287300da37c72"] * 2
    tools.says("amd-smi", "metric", json.dumps([metric(0), metric(1)]))
    assert [one.id for one in reader.read()] == ["GPU-de8287300da37c72", "amd:0"]
    words = [line.split()[0] for line in tools.asked("amd-smi")]
    assert words == ["metric", "list", "static", "metric", "metric", "list", "static"]


def test_a_card_keeps_its_name_when_its_tool_fails(tools: VendorTools) -> None:
    """Under another it would pass for another card, which nobody has; the next answer counts again."""
    at = 0.0
    tools.says("amd-smi", "metric", json.dumps([metric(0)]))
    tools.says("amd-smi", "list", json.dumps(LISTED))
    tools.says("amd-smi", "static", json.dumps(ASIC))
    reader = AmdReader(Asker(PATIENCE_S), now=lambda: at)
    (card,) = reader.read()
    for answer in ("no", json.dumps([{"gpu": 0, "hip_id": "N/A", "hip_uuid": "N/A"}]), "[]"):
        at += 61.0
        tools.says("amd-smi", "list", answer)
        tools.says("amd-smi", "static", "no", 1)
        assert reader.read() == [card]
    tools.says("rocm-smi", "--showuse", json.dumps({"card0": {"Unique ID": "N/A"}}))
    tools.says("amd-smi", "metric", "no")
    with pytest.raises(ToolFailed, match=r"^amd-smi said"):
        reader.read()
    tools.says("amd-smi", "metric", json.dumps([metric(0), metric(1)]))
    tools.says("amd-smi", "list", "no")
    with pytest.raises(ToolFailed, match=r"^amd-smi said"):
        reader.read()
    tools.says("amd-smi", "list", json.dumps([{**LISTED[0], "gpu": 1}]))
    assert [one.id for one in reader.read()] == ["amd:0", card.id]


def test_a_card_whose_name_was_not_answered_is_not_there_yet(tools: VendorTools) -> None:
    """That a tool cannot say it is one thing, that it says nothing another."""
    tools.says("amd-smi", "metric", json.dumps([metric(0)]))
    tools.says("amd-smi", "static", json.dumps(ASIC))

    class Silent(Asker):
        def ask(self, tool: str, *arguments: str) -> tuple[int, str]:
            if arguments[0] == "list":
                raise ToolSilent(f"{tool} gave no answer")
            return super().ask(tool, *arguments)

    with pytest.raises(ToolSilent):
        AmdReader(Silent(PATIENCE_S)).read()


def test_the_older_tool_is_kept_to_where_it_was_the_one_that_answered(tools: VendorTools) -> None:
    """It may call the same card by another name."""
    tools.says("rocm-smi", "--showuse", json.dumps({"card0": {"Unique ID": "N/A"}}))
    tools.says("amd-smi", "metric", "no")
    reader = AmdReader(Asker(PATIENCE_S))
    assert [one.id for one in reader.read()] == ["amd:0"]
    tools.says("amd-smi", "metric", json.dumps([metric(0)]))
    tools.says("amd-smi", "list", json.dumps(LISTED))
    assert [one.id for one in reader.read()] == ["amd:0"]


ROCM = {
    "card0": {
        "Unique ID": "0xde8287300da37c72",
        "Temperature (Sensor edge) (C)": "35.0",
        "Temperature (Sensor junction) (C)": "36.0",
        "Average Graphics Package Power (W)": "19.0",
        "Max Graphics Package Power (W)": "560.0",
        "GPU use (%)": "3",
        "VRAM Total Memory (B)": "34208743424",
        "VRAM Total Used Memory (B)": "29225381888",
        "Card Series": "Radeon RX 7900 XT",
    },
    "card1": {
        "Current Socket Graphics Package Power (W)": "12.134",
        "GPU use (%)": "0",
        "VRAM Total Memory (B)": 4294967296,
        "Card Series": "N/A",
        "Card Model": "0x15bf",
    },
    "system": {"Driver version": "6.7.0"},
}


def test_rocm_smi_where_it_is_all_there_is(tools: VendorTools) -> None:
    """Bytes become MiB, and a card's UUID is the one that `amd-smi` would give."""
    tools.says("rocm-smi", "--showuse", json.dumps(ROCM))
    assert AmdReader(Asker(PATIENCE_S)).read() == [
        Device("amd", 0, MI300X.uuid, "Radeon RX 7900 XT", 3.0, 32624, 27871, 36.0, 19.0, 560.0),
        Device("amd", 1, None, "0x15bf", 0.0, 4096, power_w=12.134),
    ]


@pytest.mark.parametrize("text", ["", "[1, 2", '[{"usage": {}}]', "{" * 100_000, '"words"', '{"a": 1}'])
def test_garbage_of_amds_tools_is_a_failure(tools: VendorTools, text: str) -> None:
    """Of both; the one that is newer is blamed where there is no other."""
    tools.says("amd-smi", "metric", text)
    with pytest.raises(ToolFailed, match=r"^amd-smi said"):
        AmdReader(Asker(PATIENCE_S)).read()
    tools.says("rocm-smi", "--showuse", text)
    with pytest.raises(ToolFailed, match=r"^rocm-smi said"):
        AmdReader(Asker(PATIENCE_S)).read()


def test_a_uuid_that_two_share_names_neither(tools: VendorTools) -> None:
    """As with partitions of a card, where a process told one would get the other."""
    tools.says("amd-smi", "metric", json.dumps([metric(0), metric(1)]))
    twice = [{**LISTED[0], "gpu": gpu, "hip_id": gpu} for gpu in (0, 1)]
    tools.says("amd-smi", "list", json.dumps(twice))
    tools.says("amd-smi", "static", "no", 1)
    assert [one.id for one in AmdReader(Asker(PATIENCE_S)).read()] == ["amd:0", "amd:1"]


# All of them


def test_a_tool_that_hangs_is_given_up_and_killed_with_its_children(
    tools: VendorTools, tmp_path: Path
) -> None:
    """The question takes what it may, and nothing is left running."""
    pids = tmp_path / "pids"
    tools.script(
        "nvidia-smi", f"#!/bin/sh\nsleep 600 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait\n"
    )
    while not pids.exists():  # killed before it could say so
        with pytest.raises(ToolFailed, match=r"^nvidia-smi gave no answer within 1 s$"):
            read_nvidia(Asker(1.0))
    deadline = time.monotonic() + PATIENCE_S
    while any(_runs(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_tool_that_cannot_be_killed_is_not_started_again(tools: VendorTools) -> None:
    """In the kernel no signal reaches it: one is enough. It is asked again when it is gone."""
    tools.cards(card(0))
    asker = Asker(PATIENCE_S)

    class Stuck:
        pid = 4711
        status: int | None = None

        def poll(self) -> int | None:
            return self.status

    asker._stuck["nvidia-smi"] = stuck = Stuck()  # type: ignore[assignment]
    with pytest.raises(ToolFailed, match=r"^nvidia-smi hangs: process 4711 cannot be ended$"):
        read_nvidia(asker)
    assert tools.asked("nvidia-smi") == []
    stuck.status = -9
    assert read_nvidia(asker) == [H100]


def test_a_tool_that_never_ends_its_answer_is_cut(tools: VendorTools) -> None:
    """Its output is bounded too."""
    tools.script("nvidia-smi", "#!/bin/sh\nexec yes index\n")
    with pytest.raises(ToolFailed, match="gave no answer"):
        read_nvidia(Asker(PATIENCE_S))


def test_one_vendors_trouble_leaves_the_others_devices(tools: VendorTools) -> None:
    """A mixed machine; and one without any tool is no trouble at all."""
    tools.cards(card(0))
    tools.says("amd-smi", "metric", "no", 1)
    seen = DeviceReader(PATIENCE_S).look()
    assert seen.found == (H100,)
    assert seen.troubles == {"amd": "amd-smi said (it ended with 1): no"}
    for tool in ("nvidia-smi", "amd-smi"):
        (tools.directory / tool).unlink()
    seen = DeviceReader(PATIENCE_S).look()
    assert (seen.found, seen.troubles, seen.absent) == ((), {}, {"nvidia", "amd"})


def test_a_tool_that_may_not_be_run_is_absent(tools: VendorTools) -> None:
    """A file of that name is no tool."""
    (tools.directory / "nvidia-smi").write_text("text")
    with pytest.raises(ToolAbsent):
        nvidia()


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("37", 37.0),
        ("37 %", 37.0),
        (-3, -3.0),
        ({"value": "7", "unit": "W"}, 7.0),
        ("N/A", None),
        (True, None),
        (float("nan"), None),
        (None, None),
        ([1], None),
        ("1e999", None),
        pytest.param("9" * 400, None, id="a text of 400 digits"),
        pytest.param(10**400, None, id="a number of 400 digits"),
        ({"value": {"value": {}}}, None),
    ],
)
def test_numbers_of_untidy_tools(value: object, found: float | None) -> None:
    """What is no number is None, never an error."""
    assert number(value) == found


def test_sizes_in_other_units() -> None:
    """Whatever they come in, they are MiB."""
    assert [megabytes(size) for size in ("3", "3 MiB", "2 GB", {"value": 2048, "unit": "KB"}, -1)] == [
        3,
        3,
        2048,
        2,
        None,
    ]


# The machine, and the message


def test_the_machine_itself() -> None:
    """Its processors are told from the second look on, in percent of all of them."""
    reader = MachineReader()
    first = reader.look()
    assert first.cpu_percent is None
    assert first.cores == os.cpu_count()
    assert 0 < first.memory_used_mb <= first.memory_total_mb
    deadline = time.monotonic() + PATIENCE_S
    while (seen := reader.look().cpu_percent) is None:
        assert time.monotonic() < deadline
    assert 0 <= seen <= 100


@pytest.mark.parametrize("count", [0, 1, 8, 16, 64, 224])
def test_messages_stay_below_the_limit_and_lose_no_device(count: int) -> None:
    """Whatever the number of devices, each comes whole, in order, in one of the parts."""
    devices = [
        Device("amd", one, f"GPU-{one:016x}", "ÄMD " * 30, 99.9, 196592, 9, 40.0, 1.0, 2.0).plain()
        for one in range(count)
    ]
    plain = {"machine": {"cores": 8}, "containers": None, "devices": devices, "troubles": ["x" * 200] * 2}
    said = list(payloads({"host": "h" * 128, "at": 1763765432.123}, plain))
    assert all(len(one.encode()) <= 7900 for one in said)
    read = [json.loads(one) for one in said]
    assert [one for part in read for one in part["devices"]] == devices
    assert [(one["part"], one["parts"]) for one in read] == [(1 + at, len(said)) for at in range(len(said))]
    assert all(one["machine"] == {"cores": 8} and one["host"] == "h" * 128 for one in read)
