"""What models really take is learned from their loads and jobs, and used in place of what they say."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from queue_workflows import ModelLoadFailed, ModelSpec
from queue_workflows.gpu.cache import ModelCache
from queue_workflows.gpu.device_memory import Patience
from queue_workflows.gpu.model_sizes import KEPT, MARGIN, InUse, Seen
from queue_workflows.gpu.models import ModelRegistry

CARD_MB = 24_000.0


class OutOfMemory(RuntimeError):
    """A card's own refusal, in the words of all frameworks."""


@dataclass(frozen=True)
class Size:
    """What a model takes, and its jobs besides."""

    load_mb: float
    job_mb: float


class Card:
    """A simulated device: what is allocated there is in use, and more than all of it is refused."""

    kind = "simulated 24 GB"

    def __init__(self) -> None:
        self.used_mb = 0.0
        self.refusals = 0

    def read(self) -> InUse:
        return InUse(self.used_mb, CARD_MB)

    def take(self, mb: float) -> None:
        if self.used_mb + mb > CARD_MB:
            self.refusals += 1
            raise OutOfMemory("CUDA out of memory")
        self.used_mb += mb


class Worker:
    """A cache on a card of its own, with models of true sizes and what they say of themselves."""

    def __init__(
        self,
        sizes: dict[str, Size],
        said_mb: Callable[[str], float | None],
        *,
        learns: bool = True,
        card: Card | None = None,
        budget_mb: float = CARD_MB,
    ) -> None:
        self.sizes, self.card = sizes, card or Card()
        specs = [
            ModelSpec(name, load=self._loader(name), unload=self._unload, vram_mb=said_mb(name))
            for name in sizes
        ]
        self.cache = ModelCache(
            ModelRegistry(lambda: specs),
            queue="gpu",
            budget_mb=budget_mb,
            keep_s=1e9,
            clock=lambda: 0.0,
            memory=self.card if learns else None,
        )

    def _loader(self, name: str) -> Callable[[], str]:
        def load() -> str:
            self.card.take(self.sizes[name].load_mb)
            return name

        return load

    def _unload(self, name: str) -> None:
        self.card.used_mb -= self.sizes[name].load_mb

    def work(self, *names: str) -> int:
        """Jobs one after the other; how many found no memory for themselves."""
        failed = 0
        for name in names:
            try:
                assert self.cache.obtain(name, lambda: True) == name
            except ModelLoadFailed:
                failed += 1
                continue
            try:
                self.card.take(self.sizes[name].job_mb)
                # As a heartbeat does in the middle of a job.
                self.cache.look_at_peak()
                self.card.used_mb -= self.sizes[name].job_mb
            except OutOfMemory:
                failed += 1
            self.cache.used()
        return failed


def drawn(seed: int) -> tuple[dict[str, Size], list[str]]:
    """Some models of which two or three fit together, and jobs that come in short series."""
    luck = random.Random(seed)
    sizes = {
        f"m{n}": Size(luck.randrange(3_000, 11_000), luck.randrange(0, 1_500))
        for n in range(luck.randrange(3, 7))
    }
    jobs = [name for _ in range(150) for name in [luck.choice(list(sizes))] * luck.randrange(1, 4)]
    return sizes, jobs


def right(sizes: dict[str, Size]) -> Callable[[str], float]:
    return lambda name: sizes[name].load_mb + sizes[name].job_mb


WRONG: dict[str, Callable[[float], float | None]] = {
    "half": lambda mb: mb / 2,
    "twice": lambda mb: mb * 2 if mb * 2 <= CARD_MB else CARD_MB,
    "absent": lambda _: None,
}


@pytest.fixture(autouse=True)
def _no_rubbish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here has circles, and the whole suite's objects would be looked through at each unload."""
    monkeypatch.setattr("queue_workflows.gpu.cache.gc.collect", lambda: 0)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("seed", range(20))
def test_wrong_figures_cost_no_memory_and_no_swap(seed: int, wrong: str) -> None:
    """No load and no job finds its memory taken, and no more is loaded than with right figures."""
    sizes, jobs = drawn(seed)
    told_right = Worker(sizes, right(sizes), learns=False)
    assert told_right.work(*jobs) == 0

    def said(name: str) -> float | None:
        return WRONG[wrong](right(sizes)(name))

    unseen = Worker(sizes, said)
    assert (unseen.work(*jobs), unseen.card.refusals) == (0, 0)
    # A model that nobody has seen gets more room than it may need, once.
    assert unseen.cache.loads <= told_right.cache.loads + len(sizes)
    seen = Worker(sizes, said)
    seen.cache.sizes.learn(filter(None, map(unseen.cache.sizes.seen, sizes)))
    assert (seen.work(*jobs), seen.card.refusals) == (0, 0)
    assert seen.cache.loads <= told_right.cache.loads
    # And no more than one that was told the truth of loads and of jobs, which no declared figure can say.
    truth = Worker(sizes, said)
    truth.cache.sizes.learn(
        Seen(name, (one.load_mb,), (one.load_mb + one.job_mb,), 1) for name, one in sizes.items()
    )
    assert truth.work(*jobs) == 0
    assert seen.cache.loads == truth.cache.loads


def test_without_learning_such_figures_fail_jobs() -> None:
    """The simulation can tell the difference."""
    failed = 0
    for sizes, jobs in map(drawn, range(20)):
        halves = {name: right(sizes)(name) / 2 for name in sizes}
        failed += Worker(sizes, halves.get, learns=False).work(*jobs)
    assert failed > 0


def test_what_a_worker_saw_another_knows() -> None:
    """Stored and learned again it decides from the first load on."""
    sizes = {"a": Size(11_000, 900), "b": Size(11_500, 0)}
    first = Worker(sizes, lambda _: 3_000)
    first.work("a", "b")
    unsaved: list[Any] = first.cache.sizes.unsaved()
    assert unsaved == [("a", [11_000.0], 11_900.0), ("b", [11_500.0], None)]
    assert first.cache.sizes.unsaved() == []
    second = Worker(sizes, lambda _: 3_000)
    second.cache.sizes.learn([Seen("a", (11_000.0,), (11_900.0,), 1), Seen("b", (11_500.0,), (), 1)])
    assert second.work("a", "b", "a") == 0
    assert second.cache.loads == 2


def test_what_became_smaller_is_believed_after_a_few_loads() -> None:
    """The largest of the last loads counts."""
    worker = Worker({"a": Size(100, 0)}, lambda _: None)
    spec = worker.cache.registry.find("a")
    assert spec is not None
    sizes = worker.cache.sizes
    sizes.learn([Seen("a", (400.0,), (500.0,), 1)])
    assert (sizes.held_mb(spec), sizes.needed_mb(spec)) == (400 * (1 + MARGIN), 500 * (1 + MARGIN))
    for _ in range(KEPT):
        sizes.loaded("a", 100.0)
        sizes.used("a", 120.0)
        sizes.unsaved()
    assert sizes.needed_mb(spec) == 120 * (1 + MARGIN)
    seen = sizes.seen("a")
    assert seen is not None
    assert seen.loads == KEPT + 1


def test_a_load_that_finds_too_little_memory_is_tried_again_alone() -> None:
    """A stranger on the card may have taken what was free when it was asked."""
    card = Card()
    worker = Worker({"a": Size(8_000, 0), "b": Size(8_000, 0)}, lambda _: 1_000, card=card)
    worker.work("a")
    taken = card.take

    def stranger_first(mb: float) -> None:
        card.take = taken  # type: ignore[method-assign]
        card.used_mb += 9_000
        taken(mb)

    card.take = stranger_first  # type: ignore[method-assign]
    assert worker.work("b") == 0
    assert (worker.cache.names, card.refusals) == (("b",), 1)


def test_a_model_that_says_nothing_is_loaded_however_large_it_was() -> None:
    """What was seen decides what is unloaded for it, and never whether a worker can load it."""
    worker = Worker({"large": Size(20_000, 0), "small": Size(1_000, 0)}, lambda _: None, budget_mb=18_000)
    assert worker.work("large", "small", "large") == 0
    assert worker.cache.loadable() == ["large", "small"]


def test_right_figures_cost_no_swap_on_a_card_with_room() -> None:
    """Of a model that nobody has seen twice as much must be free on the card, not in the budget."""
    worker = Worker({"a": Size(6_000, 0), "b": Size(5_000, 0)}, lambda _: 6_500, budget_mb=13_000)
    worker.work("a", "b", "a", "b")
    assert worker.cache.loads == 2


@pytest.mark.parametrize(("held_mb", "took_mb"), [(12_000, 12_000), (11_500, 11_500), (20, 12_000 - 1_024)])
def test_the_context_of_a_process_is_no_models(
    monkeypatch: pytest.MonkeyPatch, held_mb: int, took_mb: int
) -> None:
    """Of its first load as much is taken off as a context may be, however little a framework holds."""
    monkeypatch.setattr("queue_workflows.gpu.cache.held_by_frameworks_mb", lambda: held_mb)
    worker = Worker({"a": Size(12_000, 0)}, lambda _: None)
    worker.work("a")
    seen = worker.cache.sizes.seen("a")
    assert seen is not None
    assert seen.load_mb == (took_mb,)


def test_what_could_not_be_stored_is_new_again() -> None:
    """A server that is away loses no figure."""
    sizes = Worker({"a": Size(100, 0)}, lambda _: None).cache.sizes
    sizes.loaded("a", 100.0)
    unsaved = sizes.unsaved()
    sizes.put_back(unsaved)
    sizes.learn([])
    assert sizes.unsaved() == [("a", [100.0], None)] == unsaved


def test_a_driver_that_does_not_answer_is_left_alone() -> None:
    """Nobody waits for it longer than that, and nothing else is asked meanwhile."""
    goes_on = threading.Event()
    patience = Patience[int](0.01)
    assert patience.ask(lambda: int(goes_on.wait(60))) is None
    asked: list[int] = []
    assert patience.ask(lambda: asked.append(1) or 7) is None
    assert asked == []
    goes_on.set()
    assert Patience[int](60).ask(lambda: 7) == 7


def test_a_model_that_says_too_much_is_not_refused_once_it_was_seen() -> None:
    """A wrong word strands no job: what is less of both decides whether a worker can load it at all."""
    worker = Worker({"a": Size(8_000, 0)}, lambda _: CARD_MB * 2)
    assert not worker.cache.can_load("a")
    worker.cache.sizes.learn([Seen("a", (8_000.0,), (), 1)])
    assert worker.cache.can_load("a")
