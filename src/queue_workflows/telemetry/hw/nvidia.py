"""NVIDIA's cards and their MIG slices, as `nvidia-smi` tells of them.

Columns are found by their headings, so that a driver may leave out, add or reorder them; a field that it does
not know it names, and is asked for again without.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from queue_workflows.telemetry.hw.commands import Asker, ToolFailed, not_understood
from queue_workflows.telemetry.hw.device import Device, megabytes, number, whole, words

TOOL: Final = "nvidia-smi"
FIELDS: Final = (
    "index",
    "uuid",
    "name",
    "utilization.gpu",
    "memory.total",
    "memory.used",
    "temperature.gpu",
    "power.draw",
    "power.limit",
    "mig.mode.current",
)
_NONE: Final = "no devices were found"
_UNKNOWN_FIELD: Final = re.compile(r'Field "([^"]+)" is not a valid field')
_CARD: Final = re.compile(r"GPU\s+([0-9]+): .*\(UUID: (GPU-[0-9A-Za-z-]+)\)")
_SLICE: Final = re.compile(r"\s+(MIG .*?)\s+Device\s+([0-9]+): \(UUID: (MIG-[0-9A-Za-z/-]+)\)")


def read_nvidia(asker: Asker) -> list[Device]:
    """Its devices now; a card in MIG mode is followed by its slices."""
    cards, modes = _cards(asker)
    if "Enabled" not in modes.values():
        return cards
    status, text = asker.ask(TOOL, "-L")
    if status:
        raise not_understood(f"{TOOL} -L", status, text)
    slices = list_slices(text)
    memory = slice_memory(asker.ask(TOOL, "-q", "-x")[1])
    devices = []
    for card in cards:
        is_split = modes.get(card.id) == "Enabled"
        devices.append(replace(card, is_split=is_split))
        for place, one in slices.get(card.uuid or "", {}).items() if is_split else ():
            total, used = memory.get((card.uuid or "", place), (None, None))
            devices.append(
                replace(one, memory_total_mb=total, memory_used_mb=used, temperature_c=card.temperature_c)
            )
    return devices


def _cards(asker: Asker) -> tuple[list[Device], dict[str, str]]:
    fields = list(FIELDS)
    while True:
        status, text = asker.ask(TOOL, f"--query-gpu={','.join(fields)}", "--format=csv,nounits")
        unknown = _UNKNOWN_FIELD.search(text)
        if unknown is None or unknown[1] not in fields:
            break
        fields.remove(unknown[1])
    return parse_cards(status, text)


def parse_cards(status: int, text: str) -> tuple[list[Device], dict[str, str]]:
    """The cards, and the MIG mode of each by its id."""
    if _NONE in text.lower():
        return [], {}
    try:
        rows = list(csv.reader(text.splitlines(), skipinitialspace=True))
    except csv.Error as exc:
        raise not_understood(TOOL, status, text) from exc
    # Warnings may stand before the headings.
    heads = [[cell.partition(" [")[0].strip() for cell in row] for row in rows]
    at = next((at for at, head in enumerate(heads) if {"uuid", "index"}.intersection(head)), len(rows))
    cards, modes = [], {}
    for row in rows[at + 1 :]:
        head = heads[at]
        cells = dict(zip(head, map(str.strip, row), strict=False))
        card = _card(cells)
        if len(row) == len(head) and (card.uuid or card.number is not None):
            cards.append(card)
            modes[card.id] = cells.get("mig.mode.current", "")
    if not cards:
        raise not_understood(TOOL, status, text)
    return cards, modes


def _card(cells: Mapping[str, str]) -> Device:
    uuid = words(cells.get("uuid"))
    return Device(
        "nvidia",
        number=whole(cells.get("index")),
        uuid=uuid if uuid and uuid.startswith("GPU-") else None,
        name=words(cells.get("name")),
        utilisation_percent=number(cells.get("utilization.gpu")),
        memory_total_mb=megabytes(cells.get("memory.total")),
        memory_used_mb=megabytes(cells.get("memory.used")),
        temperature_c=number(cells.get("temperature.gpu")),
        power_w=number(cells.get("power.draw")),
        power_limit_w=number(cells.get("power.limit")),
    )


def list_slices(text: str) -> dict[str, dict[int, Device]]:
    """The slices of each card by their place on it, from `nvidia-smi -L`."""
    slices: dict[str, dict[int, Device]] = {}
    card = ""
    for line in text.splitlines():
        if found := _CARD.match(line):
            card = found[2]
        elif (found := _SLICE.match(line)) and card:
            one = Device("nvidia", uuid=found[3], name=words(found[1]), card=card)
            slices.setdefault(card, {})[int(found[2])] = one
    return slices


def slice_memory(text: str) -> dict[tuple[str, int], tuple[int | None, int | None]]:
    """How much memory each slice has and uses, by its card and its place there, from `nvidia-smi -q -x`."""
    if "<!ENTITY" in text:
        raise ToolFailed(f"{TOOL} -q -x said something that is no report")
    from xml.etree import ElementTree  # for those alone that have slices

    try:
        log = ElementTree.fromstring(text)  # noqa: S314
    except ElementTree.ParseError as exc:
        raise ToolFailed(f"{TOOL} -q -x said something that is no XML: {exc}") from exc
    found = {}
    for card in log.iter("gpu"):
        uuid = (card.findtext("uuid") or "").strip()
        for one in card.iter("mig_device"):
            place = whole(one.findtext("index"))
            if place is not None:
                memory = [megabytes(one.findtext(f"fb_memory_usage/{name}")) for name in ("total", "used")]
                found[(uuid, place)] = (memory[0], memory[1])
    return found
