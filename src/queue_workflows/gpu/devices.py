"""The devices of this machine that workers may have, and how a process is given one of them and no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from queue_workflows.errors import NoDevices
from queue_workflows.telemetry.hw.device import Device
from queue_workflows.telemetry.hw.reading import TOOLS, DeviceReader, Devices

CUDA: Final = "CUDA_VISIBLE_DEVICES"
HIP: Final = "HIP_VISIBLE_DEVICES"
ROCR: Final = "ROCR_VISIBLE_DEVICES"
# By PCI address, as `nvidia-smi` numbers them; CUDA's own order is by speed.
CUDA_ORDER: Final = "CUDA_DEVICE_ORDER"
# Says to a worker that nobody else of ours has its device.
ALONE: Final = "_QWF_ALONE_ON_DEVICE"


def find_devices(timeout_s: float, environ: Mapping[str, str]) -> list[Device]:
    """The devices of this machine that are ours to use, or an error that says why there are none."""
    seen = DeviceReader(timeout_s).look()
    ours = usable(seen.found, environ)
    if not ours:
        raise _none(seen, environ)
    return ours


def _none(seen: Devices, environ: Mapping[str, str]) -> NoDevices:
    whole = usable(seen.found, {})
    if whole:
        told = " and ".join(name for name in (CUDA, ROCR, HIP) if name in environ)
        return NoDevices(
            f"{told} leaves none of this machine's {len(whole)} GPUs",
            advice="unset it, or name some of those that `nvidia-smi -L` or `amd-smi list -e` shows",
            is_lasting=True,
        )
    if seen.found:
        cards = ", ".join(one.id for one in seen.found)
        return NoDevices(
            f"no GPU was found but cards in MIG mode that have no slices: {cards}",
            advice="make some with `nvidia-smi mig -cgi PROFILE -C`, or end it with `nvidia-smi -mig 0`",
        )
    if seen.troubles:
        return NoDevices(
            f"no GPU was found: {'; '.join(seen.troubles.values())}", advice="is the driver loaded and well?"
        )
    missing = ", ".join(TOOLS[vendor] for vendor in sorted(seen.absent, reverse=True))
    if len(seen.absent) == len(TOOLS):
        return NoDevices(
            f"no GPU was found: {missing} are not on the PATH",
            advice="install the driver's tools, or ask for gpu:N, which does not look at devices",
            is_lasting=True,
        )
    return NoDevices(
        "no GPU was found: the driver lists none", advice="is a card there, and its driver loaded?"
    )


def usable(devices: Sequence[Device], environ: Mapping[str, str]) -> list[Device]:
    """Whole cards and slices, as far as the variables that every runtime goes by leave them to us."""
    free = [one for one in devices if not one.is_split]
    nvidia = _left([one for one in free if one.vendor == "nvidia"], environ.get(CUDA), _number)
    amd = _left([one for one in free if one.vendor == "amd"], environ.get(ROCR), _number)
    # HIP counts those that ROCr has left, in its order.
    places = {one.id: place for place, one in enumerate(amd)}
    by_place = (lambda one: places[one.id]) if ROCR in environ else _number
    return [*nvidia, *_left(amd, environ.get(HIP, environ.get(CUDA)), by_place)]


def _number(device: Device) -> int | None:
    return device.number


def _left(
    devices: Sequence[Device], told: str | None, number: Callable[[Device], int | None]
) -> list[Device]:
    """The devices that a variable names, in its order; as in CUDA, the first unknown one ends the list."""
    if told is None:
        return list(devices)
    left: list[Device] = []
    for word in (part.strip() for part in told.split(",")):
        if word.isdecimal():
            fits = [one for one in devices if number(one) == int(word)]
        else:
            # A card that is split is named by its slices here.
            fits = [one for one in devices if word and (one.uuid or "").startswith(word)]
        if len(fits) != 1:
            break
        left += [one for one in fits if one not in left]
    return left


def environment_for(device: Device, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a process sees this device as its first and only one."""
    kept = {name: value for name, value in environ.items() if name not in (CUDA, HIP, ROCR)} | {ALONE: "1"}
    if device.vendor == "nvidia":
        return {**kept, CUDA: device.uuid or str(device.number), CUDA_ORDER: "PCI_BUS_ID"}
    if device.uuid:
        return {**kept, ROCR: device.uuid, HIP: "0"}
    return {**kept, HIP: str(device.number)}
