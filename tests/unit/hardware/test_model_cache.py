"""Models that stay loaded: what is reused, what makes room for what, and when nothing is kept any more."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from support.rows.claimed_jobs import context, node_job
from support.stages.telemetry import sdk_here

from queue_workflows import ModelLoadFailed, ModelSpec
from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.node_inputs.loaded_model import on_loaded_model, unload_idle_for
from queue_workflows.engine.outcomes import Stop
from queue_workflows.errors import ConfigurationError
from queue_workflows.gpu.cache import ModelCache
from queue_workflows.gpu.models import ModelRegistry
from queue_workflows.telemetry import names


class Shelf:
    """Models whose loads take a second of a clock that only they move; `done` is what happened."""

    def __init__(self, *specs: tuple[Any, ...], budget_mb: float | None = None, **of_all: Any) -> None:
        self.now, self.done = 0.0, list[str]()
        self.cache = ModelCache(
            ModelRegistry(lambda: [self._spec(*one, **of_all) for one in specs]),
            queue="gpu",
            budget_mb=budget_mb,
            keep_s=100,
            clock=lambda: self.now,
        )

    def _spec(self, name: str, vram_mb: float | None = None, **more: Any) -> ModelSpec:
        return ModelSpec(
            name, load=lambda: self._load(name), unload=self.done.append, vram_mb=vram_mb, **more
        )

    def _load(self, name: str) -> str:
        self.now += 1
        if name == "broken":
            raise OSError("no such file")
        return f"-{name}"

    def use(self, *names: str) -> None:
        for name in names:
            assert self.cache.obtain(name, lambda: True) == f"-{name}"
            self.cache.used()


def test_a_model_is_loaded_once_and_then_found() -> None:
    """Hits, misses and the time that loading took are counted; who is used last is named first."""
    shelf = Shelf(("a", 10), ("b", 10), budget_mb=20)
    shelf.use("a", "b", "a")
    assert shelf.cache.names == ("a", "b")
    assert shelf.cache.told == {"model_hits": 1, "model_misses": 2, "model_load_s": 2.0}
    assert shelf.done == []


def test_an_sdk_counts_loads_and_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    """By how a load ended, and how long each took; without an SDK nothing is asked."""
    with sdk_here(monkeypatch) as memory:
        shelf = Shelf(("a", 10), ("broken", 10), budget_mb=20)
        shelf.use("a", "a", "a")
        with pytest.raises(ModelLoadFailed):
            shelf.cache.obtain("broken", lambda: True)
        points = memory.points()
    queue = {names.QUEUE: "gpu"}
    loaded, failed = ({**queue, names.OUTCOME: how} for how in ("loaded", "failed"))
    assert points[names.MODEL_HITS] == [(queue, 2)]
    assert points[names.MODEL_LOADS] == points[names.MODEL_LOAD_TIME] == [(loaded, 1), (failed, 1)]


def test_the_least_recently_used_makes_room() -> None:
    """As many as are needed, and no more; its `unload` is given the object."""
    shelf = Shelf(("a", 10), ("b", 10), ("c", 10), ("large", 25), budget_mb=30)
    shelf.use("a", "b", "c", "a", "large")
    assert (shelf.done, shelf.cache.names) == (["-b", "-c", "-a"], ("large",))
    shelf.use("b")
    assert (shelf.done[3:], shelf.cache.names) == (["-large"], ("b",))


@pytest.mark.parametrize("budget_mb", [None, 100.0])
def test_what_is_not_known_is_taken_to_fill_the_card(budget_mb: float | None) -> None:
    """Without a budget, and for a model whose size nobody gave, one is kept at a time."""
    shelf = Shelf(("a",), ("b",), budget_mb=budget_mb)
    shelf.use("a", "b")
    assert (shelf.done, shelf.cache.names) == (["-a"], ("b",))


def test_a_pinned_model_stays() -> None:
    """No other model and no idle time takes its room; only who is to hold nothing unloads it."""
    pinned = ModelSpec("p", load=lambda: "-p", vram_mb=20, pin=True)
    others = [ModelSpec(name, load=lambda: "-", vram_mb=10) for name in ("a", "b")]
    now = 0.0
    cache = ModelCache(
        ModelRegistry(lambda: [pinned, *others]), queue="gpu", budget_mb=30, keep_s=1, clock=lambda: now
    )
    for name in ("p", "a", "b"):
        cache.obtain(name, lambda: True)
    assert cache.names == ("b", "p")
    now = 1e9
    cache.unload_idle()
    assert cache.names == ("p",)
    cache.unload_all()
    assert cache.names == ()


def test_what_no_job_wants_is_unloaded_in_time() -> None:
    """A model's own `keep_s`, else that of all; the worker is told when to come."""
    shelf = Shelf(("a", 10), ("b", 10), budget_mb=20)
    shelf.use("a", "b")
    assert shelf.cache.next_unload_at() == 101
    shelf.now = 100.9
    shelf.cache.unload_idle()
    assert shelf.done == []
    shelf.now = 101
    shelf.cache.unload_idle()
    assert (shelf.done, shelf.cache.next_unload_at()) == (["-a"], 102)
    soon = Shelf(("a", 10), keep_s=0)
    soon.use("a")
    soon.cache.unload_idle()
    assert soon.done == ["-a"]


def test_a_load_that_fails_names_its_model_and_leaves_the_worker_sound() -> None:
    """It is a miss without a model; the next load is as good as any."""
    shelf = Shelf(("broken", 10), ("a", 10), budget_mb=20)
    with pytest.raises(
        ModelLoadFailed, match="'broken' could not be loaded: OSError: no such file"
    ) as failed:
        shelf.cache.obtain("broken", lambda: True)
    assert failed.value.model == "broken"
    assert isinstance(failed.value.__cause__, OSError)
    assert (shelf.cache.names, shelf.cache.current) == ((), None)
    shelf.use("a")
    assert shelf.cache.told["model_misses"] == 2


def test_a_load_that_fails_leaves_nothing_behind() -> None:
    """Neither in circles nor in its frames, which the reason keeps: else a card stays full of it."""
    left: list[weakref.ref[Any]] = []

    class Weights:
        def __init__(self) -> None:
            self.me = self
            left.append(weakref.ref(self))

    def load() -> object:
        weights = Weights()
        try:
            raise MemoryError("out of memory")
        except MemoryError as exc:
            more = Weights()
            raise RuntimeError(f"no room for {id(more)} beside {id(weights)}") from exc

    cache = ModelCache(
        ModelRegistry(lambda: [ModelSpec("a", load=load)]),
        queue="gpu",
        budget_mb=None,
        keep_s=1,
        clock=lambda: 0.0,
    )
    work = Work("w", lambda _job, ctx: ctx.model, is_async=False)
    gc.disable()
    try:
        failing = on_loaded_model(work, "a", context(node_job()), cache, timeout_s=9, clock=lambda: 0.0)
        assert [ref() for ref in left] == [None, None]
    finally:
        gc.enable()
    with pytest.raises(ModelLoadFailed, match="RuntimeError: no room") as failed:
        failing.call(None, context(node_job()))
    assert isinstance(failed.value.__cause__, RuntimeError)


def test_a_load_that_nobody_wants_makes_no_room() -> None:
    """What is loaded may be wanted sooner."""
    shelf = Shelf(("a", 10), ("b", 10), budget_mb=10)
    shelf.use("a")
    assert shelf.cache.obtain("b", lambda: False) is None
    assert (shelf.done, shelf.cache.names) == ([], ("a",))


def test_the_model_of_a_job_is_not_too_old_for_it() -> None:
    """Between two jobs what is idle for too long is unloaded, but not what the next one wants."""
    shelf = Shelf(("a", 10), ("b", 10), budget_mb=20)
    shelf.use("a", "b")
    shelf.now = 1000
    shelf.cache.unload_idle("a")
    assert (shelf.done, shelf.cache.names) == (["-b"], ("a",))


@pytest.mark.parametrize("error", [RuntimeError("busy"), SystemExit(3)])
def test_an_unload_that_fails_keeps_nobody(error: BaseException) -> None:
    """What it says is logged, and the model is not there any more."""

    def refuse(_model: object) -> None:
        raise error

    registry = ModelRegistry(
        lambda: [ModelSpec("a", load=lambda: "-a", unload=refuse), ModelSpec("b", load=lambda: "-b")]
    )
    cache = ModelCache(registry, queue="gpu", budget_mb=None, keep_s=1, clock=lambda: 0.0)
    cache.obtain("a", lambda: True)
    assert (cache.obtain("b", lambda: True), cache.names) == ("-b", ("b",))


def test_who_cannot_load_a_model_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Unknown, or larger than what the pinned ones leave of the budget."""
    cache = Shelf(("a", 10), ("large", 40), budget_mb=30).cache
    assert (cache.loadable(), cache.can_load("a"), cache.can_load("x")) == (["a"], True, False)
    assert "the model large takes 40 MB" in caplog.text
    crowded = Shelf(("p", 25), ("a", 10), budget_mb=30, pin=True).cache
    assert crowded.loadable() == []
    assert "the model a takes 10 MB" in caplog.text


def test_a_load_is_cancelled_before_it_begins_and_said_to_the_guards_while_it_lasts() -> None:
    """Whoever has to stop loads nothing; `loading` stands until the model is there."""
    seen: list[Any] = []
    ctx = context(node_job(required_model="a"))

    def load() -> str:
        seen.append(ctx.loading)
        return "-a"

    cache = ModelCache(
        ModelRegistry(lambda: [ModelSpec("a", load=load)]),
        queue="gpu",
        budget_mb=None,
        keep_s=1,
        clock=lambda: 3.0,
    )
    work = Work("w", lambda _job, ctx: ctx.model, is_async=False)
    stopped = context(node_job(required_model="a"))
    stopped.stop(Stop.CANCEL)
    on_loaded_model(work, "a", stopped, cache, timeout_s=9, clock=lambda: 3.0)
    assert (seen, stopped.model) == ([], None)
    given = on_loaded_model(work, "a", ctx, cache, timeout_s=9, clock=lambda: 3.0)
    assert given.call(None, ctx) == "-a"
    assert seen == [("a", 3.0, 9)]
    assert seen[0].until == 12.0
    assert (ctx.loading, ctx.ready_at) == (None, 3.0)


def test_what_other_models_take_to_be_unloaded_is_no_time_of_the_job_or_of_its_load() -> None:
    """Neither where one makes room for the job's own, nor where one was only kept for too long."""
    now = [0.0]
    seen: list[Any] = []

    def unload(_model: object) -> None:
        now[0] += 100

    def load_b() -> str:
        seen.append(ctx.loading)
        return "-b"

    models = [ModelSpec("a", load=lambda: "-a", unload=unload), ModelSpec("b", load=load_b, unload=unload)]
    cache = ModelCache(
        ModelRegistry(lambda: models), queue="gpu", budget_mb=None, keep_s=1, clock=lambda: now[0]
    )
    ctx = context(node_job(required_model="b"))
    work = Work("w", lambda _job, ctx: ctx.model, is_async=False)
    cache.obtain("a", lambda: True)
    cache.used()
    on_loaded_model(work, "b", ctx, cache, timeout_s=9, clock=lambda: now[0])
    assert (seen, ctx.ready_at) == ([("b", 100.0, 9)], 100.0)
    cache.used()
    now[0] += 2
    other = context(node_job())
    unload_idle_for(None, other, cache, lambda: now[0])
    assert (cache.names, other.ready_at) == ((), 202.0)


@pytest.mark.parametrize(
    ("registrar", "said"),
    [
        (lambda: 1 / 0, "the model registrar raised ZeroDivisionError: division by zero"),
        (lambda: ["sdxl"], "the model registrar gave a str"),
        (lambda: 7, "the model registrar raised TypeError"),
        (lambda: [ModelSpec("a", load=print), ModelSpec("a", load=print)], "gave 'a' twice"),
        (lambda: [ModelSpec("", load=print)], "is no name"),
        (lambda: [ModelSpec("a", load="print")], "load and unload must be functions"),  # type: ignore[arg-type]
        (lambda: [ModelSpec("a", load=print, vram_mb=-1)], "vram_mb must be a number from 0"),
    ],
)
def test_a_registrar_that_is_wrong_is_one_configuration_error(registrar: Any, said: str) -> None:
    """Whatever it does wrong, and with what to do about it."""
    with pytest.raises(ConfigurationError, match=said):
        ModelRegistry(registrar)


def test_an_empty_registry_asks_again_and_bears_what_comes() -> None:
    """Models may come onto the machine after its worker; once there are some, nobody is asked any more."""
    answers: list[Any] = [[], OSError("gone"), [ModelSpec("a", load=print)], [ModelSpec("b", load=print)]]

    def registrar() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    registry = ModelRegistry(registrar)
    assert registry.find("a") is None
    assert (registry.find("a") is not None, registry.find("b"), len(answers)) == (True, None, 1)
    assert ModelRegistry(None).find("a") is None


def test_a_worker_without_models_learns_of_those_that_come() -> None:
    """So that it fetches what has been put aside for them."""
    answers: list[Any] = [[], [ModelSpec("a", load=print)]]
    cache = ModelCache(
        ModelRegistry(lambda: answers.pop(0)), queue="gpu", budget_mb=None, keep_s=1, clock=lambda: 0.0
    )
    assert (cache.loadable(), answers) == (["a"], [])
