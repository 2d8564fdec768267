"""Which models there are to load: what the host app says of each, and the registry that keeps it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from queue_workflows.errors import ConfigurationError, QwfError

_log = logging.getLogger(__name__)

LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model by the name that nodes ask for.

    `load()` returns the object that nodes get as `model`; `unload(model)` lets go of what dropping the object
    would not. `vram_mb` is what it takes of the worker's budget, None if that is not known: then it is alone.
    After `keep_s` seconds without a job it is unloaded (None: the setting `model_keep_s`). A pinned model
    stays for as long as the worker runs jobs.
    """

    name: str
    load: Callable[[], Any]
    unload: Callable[[Any], object] | None = None
    vram_mb: float | None = None
    keep_s: float | None = None
    pin: bool = False

    def __post_init__(self) -> None:
        is_name = isinstance(self.name, str) and 0 < len(self.name) <= LONGEST_NAME
        if not is_name or not self.name.isprintable():
            raise ConfigurationError(
                f"ModelSpec(name={self.name!r:.80}) is no name",
                advice=f"give what nodes say in `model:`, at most {LONGEST_NAME} characters",
            )
        if not callable(self.load) or not (self.unload is None or callable(self.unload)):
            raise ConfigurationError(f"ModelSpec({self.name!r}): load and unload must be functions")
        for field in ("vram_mb", "keep_s"):
            _check_amount(self.name, field, getattr(self, field))


def _check_amount(name: str, field: str, value: object) -> None:
    if value is None:
        return
    sound = isinstance(value, int | float) and not isinstance(value, bool)
    if not sound or not math.isfinite(value) or value < 0:  # type: ignore[arg-type, operator]
        raise ConfigurationError(f"ModelSpec({name!r}): {field} must be a number from 0, not {value!r:.80}")


class ModelRegistry:
    """What the registrar said, asked once at the start and again for as long as it has said nothing."""

    def __init__(self, registrar: Callable[[], Iterable[ModelSpec]] | None = None) -> None:
        self._registrar = registrar
        self._specs = _asked(registrar)

    def names(self) -> list[str]:
        """The models that are known."""
        return sorted(self._specs)

    def specs(self) -> list[ModelSpec]:
        """What is known of them."""
        return list(self._specs.values())

    def find(self, name: str) -> ModelSpec | None:
        """A model, or None where it is not known."""
        self.ask_again()
        return self._specs.get(name)

    def known(self, name: str) -> ModelSpec | None:
        """What was said of a model so far; asks nobody."""
        return self._specs.get(name)

    def ask_again(self) -> None:
        """Where nothing is known: models may have come onto the machine since.

        A registrar that raises by then keeps nobody from working.
        """
        if not self._specs and self._registrar is not None:
            try:
                self._specs = _asked(self._registrar)
            except QwfError as exc:
                _log.error("no models are known: %s", exc)


def _asked(registrar: Callable[[], Iterable[ModelSpec]] | None) -> dict[str, ModelSpec]:
    if registrar is None:
        return {}
    try:
        given = registrar()
        specs = [] if given is None else list(given)
    except Exception as exc:
        raise ConfigurationError(
            f"the model registrar raised {type(exc).__name__}: {' '.join(str(exc).split())[:300]}",
            advice="set_model_registrar(fn): fn() returns the ModelSpecs and loads nothing",
        ) from exc
    found: dict[str, ModelSpec] = {}
    for spec in specs:
        if not isinstance(spec, ModelSpec):
            raise ConfigurationError(
                f"the model registrar gave a {type(spec).__name__}",
                advice="it returns ModelSpec objects, as in [ModelSpec('sdxl', load=load_sdxl)]",
            )
        if spec.name in found:
            raise ConfigurationError(f"the model registrar gave {spec.name!r} twice")
        found[spec.name] = spec
    return found
