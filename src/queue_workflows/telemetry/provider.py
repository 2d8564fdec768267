"""Whether this process has an OpenTelemetry SDK, and what it gives; None where there is none to feed."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Tracer

_SCOPE: Final = "queue_workflows"
# What stands for a provider where there is none is of the API's own modules.
_STAND_INS: Final = ("opentelemetry.trace", "opentelemetry.metrics")


class _Silence:
    """Whether a worker found nobody to tell anything when it began."""

    is_settled = False


_silence = _Silence()


def settle() -> None:
    """Decide for this process, as its wiring is done: where nobody listens, nobody is looked for any more."""
    _silence.is_settled = not is_configured()


def is_silent() -> bool:
    """Whether it is certain, at the cost of a look, that nobody listens."""
    return _silence.is_settled or "opentelemetry" not in sys.modules


def tracer() -> Tracer | None:
    """What makes spans."""
    provider = _provider("opentelemetry.trace", "get_tracer_provider")
    return None if provider is None else _tracer_of(provider)


def meter() -> Meter | None:
    """What makes instruments; the same object for the same SDK."""
    provider = _provider("opentelemetry.metrics", "get_meter_provider")
    return None if provider is None else _meter_of(provider)


def is_configured() -> bool:
    """Whether anything is told to anybody."""
    return tracer() is not None or meter() is not None


def flush(within_s: float) -> None:
    """Have what was told so far exported, and wait for it no longer than said.

    From a thread of its own, as exporters keep to no time limit themselves when nobody answers them.
    """
    providers = [
        _provider("opentelemetry.trace", "get_tracer_provider"),
        _provider("opentelemetry.metrics", "get_meter_provider"),
    ]
    flushes = [flushed for each in providers if (flushed := getattr(each, "force_flush", None)) is not None]
    threads = [threading.Thread(target=_quietly, args=[each], daemon=True) for each in flushes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(within_s / len(threads))


def _quietly(flushed: Any) -> None:
    with suppress(Exception):
        flushed()


def _provider(module: str, getter: str) -> Any:
    """The SDK's own provider: a module that nobody imported knows none, and may be slow to import."""
    get = getattr(sys.modules.get(module), getter, None)
    if get is None:
        return None
    provider = get()
    return None if type(provider).__module__.startswith(_STAND_INS) else provider


@lru_cache(maxsize=8)
def _tracer_of(provider: Any) -> Tracer:
    made: Tracer = provider.get_tracer(_SCOPE, _version())
    return made


@lru_cache(maxsize=8)
def _meter_of(provider: Any) -> Meter:
    made: Meter = provider.get_meter(_SCOPE, _version())
    return made


def _version() -> str:
    # Here, as it takes longer to import than all the rest of telemetry.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("queue-workflows")
    except PackageNotFoundError:
        return ""
