"""AMD's cards, as `amd-smi` tells of them, or the older `rocm-smi` where that is all there is."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from queue_workflows.telemetry.hw.commands import (
    Asker,
    ToolAbsent,
    ToolFailed,
    ToolSilent,
    first_of,
    not_understood,
)
from queue_workflows.telemetry.hw.device import Device, megabytes, number, whole, without_doubles, words

TOOL: Final = "amd-smi"
OLDER_TOOL: Final = "rocm-smi"
_METRICS: Final = ("metric", "--usage", "--mem-usage", "--temperature", "--power", "--json")
_LISTED: Final = ("list", "-e", "--json")
_ASIC: Final = ("static", "--asic", "--json")
_OLDER: Final = (
    "--showuse",
    "--showmeminfo",
    "vram",
    "--showtemp",
    "--showpower",
    "--showmaxpower",
    "--showproductname",
    "--showuniqueid",
    "--json",
)
_OF_RUNTIME: Final = re.compile(r"GPU-[0-9a-f]{16}")
# Which card is which changes with the hardware; the tool is a Python program and takes its time.
_KNOWN_FOR_S: Final = 60.0
_MOST_BEGINNINGS: Final = 16


@dataclass
class AmdReader:
    """Asks whichever tool there is; what a card is called is asked anew once a minute, or when one is new.

    A card must not change its name while a worker is on it: it would pass for another card, and a free one.
    So the tool that has answered once is the one that is asked, and what it has said of a card stands until
    it says something else.
    """

    asker: Asker
    now: Callable[[], float] = time.monotonic
    _known: dict[int, dict[str, Any]] = field(default_factory=dict)
    _known_at: float = -_KNOWN_FOR_S
    _has_listed: bool = False
    _tool: str | None = None

    def read(self) -> list[Device]:
        """Its devices now."""
        if self._tool == OLDER_TOOL:
            return self._by_rocm_smi()
        try:
            return self._by_amd_smi()
        except (ToolAbsent, ToolFailed) as failed:
            if self._tool is not None:
                raise
            try:
                return self._by_rocm_smi()
            except ToolAbsent:
                raise failed from None

    def _by_amd_smi(self) -> list[Device]:
        told = of_gpus(_json(TOOL, *self.asker.ask(TOOL, *_METRICS)))
        if set(told) != set(self._known) or self.now() - self._known_at >= _KNOWN_FOR_S:
            self._known, self._known_at = self._identities(told), self.now()
        self._tool = TOOL
        return without_doubles([_device(gpu, told[gpu], self._known.get(gpu, {})) for gpu in sorted(told)])

    def _identities(self, told: Mapping[int, object]) -> dict[int, dict[str, Any]]:
        """What a tool never tells is not missed: a card then goes by its number.

        What it told before is kept for the same cards; where they are others by now, it has to tell again.
        """
        are_same = self._known.keys() == told.keys()
        known = {gpu: dict(self._known[gpu]) if are_same else {} for gpu in told}
        for arguments in (_LISTED, _ASIC):
            try:
                answer = of_gpus(_json(TOOL, *self.asker.ask(TOOL, *arguments)))
            except ToolFailed as failed:
                is_telling = self._has_listed or isinstance(failed, ToolSilent)
                if arguments == _LISTED and is_telling and not are_same:
                    raise
                continue
            self._has_listed |= arguments == _LISTED
            for gpu in known.keys() & answer.keys():
                known[gpu].update(
                    {name: what for name, what in answer[gpu].items() if first_of([what]) is not None}
                )
        return known

    def _by_rocm_smi(self) -> list[Device]:
        devices = without_doubles(parse_rocm_smi(*self.asker.ask(OLDER_TOOL, *_OLDER)))
        self._tool = OLDER_TOOL
        return devices


def _json(tool: str, status: int, text: str) -> Any:
    """Warnings may stand before it, some of which begin as JSON does."""
    for begin in islice(re.finditer(r"^\s*([\[{])", text, re.MULTILINE), _MOST_BEGINNINGS):
        with suppress(ValueError, RecursionError):
            return json.JSONDecoder().raw_decode(text, begin.start(1))[0]
    raise not_understood(tool, status, text)


def of_gpus(answer: object) -> dict[int, dict[str, Any]]:
    """The entries of an answer by their numbers; newer versions wrap the list."""
    if isinstance(answer, dict):
        answer = answer.get("gpu_data", [answer])
    entries = [entry for entry in answer if isinstance(entry, dict)] if isinstance(answer, list) else []
    numbered = {whole(entry.get("gpu")): entry for entry in entries}
    found = {gpu: entry for gpu, entry in numbered.items() if gpu is not None}
    if entries and not found:
        raise ToolFailed(f"{TOOL} said JSON in which no GPU has a number")
    return found


def _device(gpu: int, told: Mapping[str, Any], known: Mapping[str, Any]) -> Device:
    usage, memory, heat, power = (
        _part(told, name) for name in ("usage", "mem_usage", "temperature", "power")
    )
    of_runtime = whole(known.get("hip_id"))
    watts = first_of([power.get(f"{kind}socket_power") for kind in ("", "current_", "average_")])
    return Device(
        "amd",
        number=gpu if of_runtime is None else of_runtime,
        uuid=_uuid(known.get("hip_uuid")),
        name=words(_part(known, "asic").get("market_name")),
        utilisation_percent=number(usage.get("gfx_activity")),
        memory_total_mb=megabytes(memory.get("total_vram")),
        memory_used_mb=megabytes(memory.get("used_vram")),
        temperature_c=number(first_of([heat.get(place) for place in ("hotspot", "edge", "mem")])),
        power_w=number(watts),
        power_limit_w=number(power.get("power_limit")),
    )


def _part(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = entry.get(name)
    return part if isinstance(part, dict) else {}


def _uuid(told: object) -> str | None:
    """As ROCm's runtime takes it; a machine that hides it gives zeros."""
    text = told.strip() if isinstance(told, str) else ""
    text = text[:4] + text[4:].lower()
    return text if _OF_RUNTIME.fullmatch(text) and text.strip("GPU-0") else None


def parse_rocm_smi(status: int, text: str) -> list[Device]:
    """Cards from its JSON; the keys are headings that change their words from version to version."""
    answer = _json(OLDER_TOOL, status, text)
    if not isinstance(answer, dict):
        raise not_understood(OLDER_TOOL, status, text)
    cards = {
        int(found[1]): told
        for name, told in answer.items()
        if (found := re.fullmatch("card([0-9]+)", name)) and isinstance(told, dict)
    }
    if answer and not cards:
        raise not_understood(OLDER_TOOL, status, text)
    return [_older(card, cards[card]) for card in sorted(cards)]


def _older(card: int, told: Mapping[str, Any]) -> Device:
    def of(*patterns: str) -> object:
        """What stands under the first heading that is like one of these."""
        found = (value for like in patterns for name, value in told.items() if re.fullmatch(like, name, re.I))
        return first_of(list(found))

    unique = of("unique id")
    serial = unique.removeprefix("0x") if isinstance(unique, str) else ""
    return Device(
        "amd",
        number=card,
        uuid=_uuid(f"GPU-{serial.rjust(16, '0')}"),
        name=words(of("card series", "device name", "card model")),
        utilisation_percent=number(of(r"gpu use \(%\)")),
        memory_total_mb=megabytes(of(r"vram total memory \(b\)"), "b"),
        memory_used_mb=megabytes(of(r"vram total used memory \(b\)"), "b"),
        temperature_c=number(of(r"temperature \(sensor junction\) \(c\)", r"temperature .*\(c\)")),
        power_w=number(of(r"(average|current).*package power \(w\)")),
        power_limit_w=number(of(r"max graphics package power \(w\)")),
    )
