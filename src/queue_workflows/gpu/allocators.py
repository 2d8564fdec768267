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
