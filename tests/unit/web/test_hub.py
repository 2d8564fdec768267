"""The hub: a view is read once for all that watch it, sent when it changed, not at all when nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from queue_workflows.web.live.hub import MOST_STREAMS_A_USER, Hub, Slot, TooManyStreams
from queue_workflows.web.live.stream import event, events


def running(test: Callable[[], Awaitable[None]]) -> None:
    """Run it in a loop of its own, and fail rather than hang."""
    asyncio.run(asyncio.wait_for(test(), 60))


async def never() -> str | None:
    """A user that may see it for ever is never refused."""
    return None


class View:
    """A view whose reads are counted."""

    def __init__(self) -> None:
        self.text = "first"
        self.reads = 0

    async def render(self) -> str:
        self.reads += 1
        return self.text


def test_a_hundred_tabs_are_one_reader() -> None:
    """Each gets what was read once."""

    async def test() -> None:
        hub, view = Hub(shortest_s=0.01, longest_s=0.02), View()

        async def tab() -> str | None:
            async with hub.watching("jobs", "ann", view.render) as slot:
                first = await slot.take()
                assert hub.topics == 1
                return first

        assert await asyncio.gather(*(tab() for _ in range(100))) == ["first"] * 100
        assert view.reads < 100
        assert (hub.topics, hub.streams) == (0, 0)

    running(test)


def test_only_a_change_is_sent_and_the_latest_wins() -> None:
    """A slow watcher gets what there is now, not what there was in between."""

    async def test() -> None:
        hub, view = Hub(shortest_s=0.001, longest_s=0.002), View()
        async with hub.watching("jobs", "ann", view.render) as slot:
            assert await slot.take() == "first"
            before = view.reads
            while view.reads < before + 5:
                await asyncio.sleep(0)
            assert not slot.filled.is_set()
            for text in ("second", "third"):
                view.text = text
                before = view.reads
                while view.reads < before + 3:
                    await asyncio.sleep(0.001)
            assert await slot.take() == "third"

    running(test)


def test_nobody_watches_so_nothing_is_read() -> None:
    """The last that leaves ends the topic; a watcher that comes later begins it anew."""

    async def test() -> None:
        hub, view = Hub(shortest_s=0.001, longest_s=0.001), View()
        for _ in range(2):
            async with hub.watching("jobs", "ann", view.render) as slot:
                assert await slot.take() == "first"
            read = view.reads
            await asyncio.sleep(0.02)
            assert view.reads == read

    running(test)


def test_a_view_that_fails_is_tried_again() -> None:
    """An exception ends neither the topic nor its streams."""

    async def test() -> None:
        hub, tries = Hub(shortest_s=0.001, longest_s=0.001), [0]

        async def render() -> str:
            tries[0] += 1
            if tries[0] < 3:
                raise RuntimeError("not yet")
            return "there"

        async with hub.watching("jobs", "ann", render) as slot:
            assert await slot.take() == "there"

    running(test)


def test_a_user_has_so_many_streams_and_no_more() -> None:
    """One that opens page after page does not take those of the others."""

    async def test() -> None:
        hub, view = Hub(), View()
        watching = [hub.watching("jobs", "ann", view.render) for _ in range(MOST_STREAMS_A_USER)]
        for one in watching:
            await one.__aenter__()
        with pytest.raises(TooManyStreams):
            hub.admit("ann")
        hub.admit("bob")
        for one in watching:
            await one.__aexit__(None, None, None)
        hub.admit("ann")

    running(test)


def test_a_stream_ends_with_its_hub() -> None:
    """A server that stops need not wait for browsers."""

    async def test() -> None:
        hub, view = Hub(), View()
        told = events(hub.watching("jobs", "ann", view.render), refused=never)
        assert await anext(told) == "retry: 2000\n\n"
        assert await anext(told) == "event: page\ndata: first\n\n"
        hub.close()
        assert [one async for one in told] == []
        assert hub.streams == 0

    running(test)


def test_the_last_is_seen_before_a_hub_ends() -> None:
    """What changed just before is read and taken, though the next look would have come too late."""

    async def test() -> None:
        hub, view = Hub(shortest_s=0.01, longest_s=30), View()
        async with hub.watching("run", "ann", view.render) as slot:
            assert await slot.take() == "first"
            view.text = "completed"
            seen = asyncio.create_task(slot.take())
            await asyncio.to_thread(hub.show_the_last, 30)
            assert seen.done()
            assert await seen == "completed"

    running(test)


def test_a_stream_beats_while_nothing_changes() -> None:
    """A peer that is gone is noticed by what cannot be sent to it."""

    async def test() -> None:
        hub, view = Hub(), View()
        told = events(hub.watching("jobs", "ann", view.render), refused=never, beat_s=0.01)
        assert [await anext(told) for _ in range(3)] == [
            "retry: 2000\n\n",
            "event: page\ndata: first\n\n",
            ":\n\n",
        ]
        await told.aclose()

    running(test)


def test_each_line_is_a_line_of_the_event() -> None:
    """A line that looks like a field of the protocol is data all the same."""
    assert (
        event("page", "<p>\nevent: evil\r\nid: 7")
        == "event: page\ndata: <p>\ndata: event: evil\ndata: id: 7\n\n"
    )


def test_a_user_that_may_not_see_it_any_more_is_told_so_and_sent_nothing_more() -> None:
    """Before what is sent next its stream is over, though others watch the same."""

    async def test() -> None:
        hub, view = Hub(shortest_s=0.01, longest_s=0.02), View()
        answers = iter([None, None, "signed out"])

        async def refused() -> str | None:
            return next(answers)

        async with hub.watching("jobs", "bob", view.render):
            told = events(
                hub.watching("jobs", "ann", view.render), refused=refused, beat_s=0.01, asked_again_s=0
            )
            assert [one async for one in told] == [
                "retry: 2000\n\n",
                "event: page\ndata: first\n\n",
                ":\n\n",
                "event: page\ndata: signed out\n\n",
            ]
            assert hub.streams == 1

    running(test)


def test_a_slot_that_is_over_takes_no_more() -> None:
    """What is read while the streams are ended begins none of them again."""

    async def test() -> None:
        slot = Slot()
        slot.end()
        slot.put("late")
        assert await slot.take() is None

    running(test)
