"""Memory of a card that a framework keeps for itself after the host app has let go of it.

PyTorch and CuPy give freed memory to the next that asks them, not back to the card, where another framework
would miss it. A model's own `unload` cannot have them give it back: the model is still there while that runs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

_log = logging.getLogger(__name__)


def _of_torch(torch: Any) -> None:
    # To ask one that has begun nothing would begin it, which takes hundreds of MB of the card.
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _of_cupy(cupy: Any) -> None:
    cupy.get_default_memory_pool().free_all_blocks()


_FRAMEWORKS: Final[Mapping[str, Callable[[Any], None]]] = MappingProxyType(
    {"torch": _of_torch, "cupy": _of_cupy}
)


def held_by_frameworks_mb() -> float | None:
    """What the frameworks that have begun hold of the card, free or not; None without any.

    What a process pays for its context alone is not in it.
    """
    held = [
        asked
        for name, ask in (("torch", _held_by_torch), ("cupy", _held_by_cupy))
        if (framework := sys.modules.get(name)) is not None and (asked := _asked(ask, framework)) is not None
    ]
    return sum(held) / (1 << 20) if held else None


def _asked(ask: Callable[[Any], int | None], framework: Any) -> int | None:
    try:
        return ask(framework)
    except Exception:
        # One that is half imported, or spoilt.
        return None


def _held_by_torch(torch: Any) -> int | None:
    return int(torch.cuda.memory_reserved()) if torch.cuda.is_initialized() else None


def _held_by_cupy(cupy: Any) -> int | None:
    return int(cupy.get_default_memory_pool().total_bytes()) or None


def empty_allocators() -> None:
    """Have the frameworks that this process has loaded give back to the card what nobody holds."""
    for name, give_back in _FRAMEWORKS.items():
        if (framework := sys.modules.get(name)) is None:
            continue
        try:
            give_back(framework)
        except Exception as exc:
            # One that is half imported, or spoilt: what it keeps is gone with the process at the latest.
            _log.warning("%s keeps the memory that it does not use: %s: %s", name, type(exc).__name__, exc)
