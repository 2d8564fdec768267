"""Memory that frameworks keep for themselves goes back to the card once a model is gone."""

from __future__ import annotations

import sys
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from queue_workflows.errors import ModelLoadFailed
from queue_workflows.gpu.allocators import empty_allocators
from queue_workflows.gpu.cache import ModelCache
from queue_workflows.gpu.models import ModelRegistry, ModelSpec


class Model:
    """Something that one can look whether it is gone."""


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Two frameworks; what each was asked, with whether the model was gone by then."""
    asked: list[Any] = []
    cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: asked.append("torch"))
    pool = SimpleNamespace(free_all_blocks=lambda: asked.append("cupy"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    cupy = SimpleNamespace(get_default_memory_pool=lambda: pool)
    monkeypatch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
    return asked


def cache(*specs: ModelSpec) -> ModelCache:
    return ModelCache(
        ModelRegistry(lambda: specs), queue="gpu", budget_mb=None, keep_s=60.0, clock=lambda: 0.0
    )


def test_what_a_model_took_goes_back_when_it_is_gone(
    loaded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: what somebody holds cannot be given back."""
    made: list[weakref.ref[Model]] = []
    gone: list[bool] = []
    torch: Any = sys.modules["torch"]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: gone.append(made[0]() is None))

    def load() -> Model:
        model = Model()
        made.append(weakref.ref(model))
        return model

    it = cache(ModelSpec("a", load=load, unload=lambda model: None))
    assert it.obtain("a", lambda: True) is made[0]()
    it.used()
    it.unload_all()
    assert gone == [True]
    assert loaded == ["cupy"]


def test_so_does_what_a_load_took_that_failed(loaded: list[Any]) -> None:
    """Half a model is nobody's, and the next one needs its room."""

    def load() -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(ModelLoadFailed, match="out of memory"):
        cache(ModelSpec("a", load=load)).obtain("a", lambda: True)
    assert loaded == ["torch", "cupy"]


def test_a_framework_that_has_begun_nothing_is_not_begun(
    loaded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would take memory of the card instead of giving some back."""
    torch: Any = sys.modules["torch"]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    empty_allocators()
    assert loaded == ["cupy"]


def test_one_that_cannot_is_let_be(loaded: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """The worker goes on without what it keeps."""
    del sys.modules["torch"].cuda  # type: ignore[attr-defined]
    empty_allocators()
    assert loaded == ["cupy"]
    assert "torch keeps the memory that it does not use" in caplog.text
