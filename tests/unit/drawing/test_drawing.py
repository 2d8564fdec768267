"""A run drawn: golden pictures, in a terminal's characters and in plain ones, small and large."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import click
import pytest

from queue_workflows.drawing.run import MOST_ROWS, bar, draw, draw_within
from queue_workflows.drawing.terminal import Terminal, padded, wide
from queue_workflows.engine.watch.run_view import Activity, Elements, NodeOverview, RunOverview

START = datetime(2026, 1, 2, 14, tzinfo=UTC)
RUN = uuid.UUID("0190b5d4-0000-7000-8000-000000000007")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def run(*nodes: NodeOverview, status: str = "running", **more: object) -> RunOverview:
    known = {"at": at(130), "created_at": START, "started_at": at(0.2), **more}
    return RunOverview(RUN, "film", status, nodes=nodes, **known)  # type: ignore[arg-type]


def film() -> RunOverview:
    """Every kind of node, in many a state."""
    node = NodeOverview
    on_gpu = (Activity(47, "a:gpu:1", 1, at(100), 0.5), Activity(48, "b:gpu:2", 1, at(100)))
    mixing = Activity(-1, "a:cpu:3", 2, at(100), 0.3, "mixing\nthe voices")
    return run(
        node("plan", state="completed", attempt=1, started_at=at(1), finished_at=at(2.25), worker="a:cpu:3"),
        node(
            *("draw", "task", ("plan",), "running"),
            started_at=at(3),
            elements=Elements(100, 45, 0, 2, 0, 2),
            activities=on_gpu,
        ),
        node(*("sound", "task", ("plan",), "running"), attempt=2, started_at=at(100), activities=(mixing,)),
        node(*("approve", "input", ("draw", "plan"), "awaiting_input"), started_at=at(20), due_at=at(9000)),
        node("publish", "task", ("approve", "sound")),
        node("teaser", "task", ("plan",), "skipped"),
        node(
            *("bad", "task", ("plan",), "failed"),
            attempt=3,
            started_at=at(2),
            finished_at=at(70),
            error="ValueError: no such\nfile",
        ),
        node("later", "task", ("bad",), "scheduled", hold="limit_full gpu", attempt=1),
        node("tidy", "task", ("publish", "later", "teaser")),
        labels={"customer": "ann"},
        error="node bad failed",
        poisoned=("event 7 after 8 tries: boom",),
    )


PICTURE = """\
film  0190b5d4-0000-7000-8000-000000000007  running for 2m 9s
labels: customer=ann

●        plan     completed         1.2s  by a:cpu:3
├─┬─┬─╮
◐ │ │ │  draw     running          2m 7s  ▕█████░░░░░░░▏ 45/100, 2 running, 2 failed · on a:gpu:1, b:gpu:2
◇ │ │ │  approve  awaiting_input  1m 50s  expires at 16:30:00Z
│ ◐ │ │  sound    running            30s  ▕███░░░░░░░░░▏ 30% mixing the voices · on a:cpu:3 · attempt 2
├─╯ │ │
○   │ │  publish  waiting
│   ⊘ │  teaser   skipped
├───╯ │
│     ✗  bad      failed           1m 8s  attempt 3 · ValueError: no such file
│     ◌  later    scheduled               held: limit_full gpu
├─────╯
○        tidy     waiting

error: node bad failed
poisoned: event 7 after 8 tries: boom
to answer: qwf run submit-input 0190b5d4-0000-7000-8000-000000000007 approve"""
IN_ASCII = """\
*        plan     completed         1.2s  by a:cpu:3
+-+-+-+
> | | |  draw     running          2m 7s  |#####.......| 45/100, 2 running, 2 failed - on a:gpu:1, b:gpu:2
? | | |  approve  awaiting_input  1m 50s  expires at 16:30:00Z
| > | |  sound    running            30s  |###.........| 30% mixing the voices - on a:cpu:3 - attempt 2
+-+ | |
o   | |  publish  waiting
|   ~ |  teaser   skipped
+---+ |
|     X  bad      failed           1m 8s  attempt 3 - ValueError: no such file
|     .  later    scheduled               held: limit_full gpu
+-----+
o        tidy     waiting"""


def test_a_run_with_everything():
    """States, attempts, times, who runs what, how far it is, and what is wrong."""
    assert "\n".join(draw(film(), Terminal())) == PICTURE


def test_the_same_in_ascii():
    """For terminals and logs that know nothing else."""
    lines = draw(film(), Terminal(unicode=False))
    assert "\n".join(lines[3:-4]) == IN_ASCII
    assert all(line.isascii() for line in lines)


@pytest.mark.parametrize("columns", [40, 70, 100])
def test_colours_take_no_room(columns):
    """A terminal's lines are the plain ones, cut to its width, coloured."""
    plain = draw(film(), Terminal(columns=columns))
    coloured = draw(film(), Terminal(colour=True, columns=columns))
    assert [click.unstyle(line) for line in coloured] == plain
    assert coloured != plain
    assert all(wide(line) <= columns for line in plain[3:-4])


def test_a_run_that_has_not_begun_and_one_that_is_over():
    """The head says how long it waited, or took."""
    waits = draw(run(status="queued", started_at=None), Terminal())
    assert waits[0].endswith("queued for 2m 10s")
    assert waits[-1] == f"nobody has begun it yet; `qwf explain {RUN}` says why"
    assert len(draw(run(status="queued", started_at=None, at=at(4)), Terminal())) == 1
    over = draw(run(status="completed", finished_at=at(61)), Terminal())[0]
    assert over.endswith("completed after 1m")
    never = draw(run(status="cancelled", started_at=None, finished_at=at(3)), Terminal())[0]
    assert never.endswith("cancelled after 3.0s")


def test_what_is_parked_says_what_for():
    """An answer, a moment, another run."""
    parked = [
        NodeOverview(kind, kind, state="awaiting_input", due_at=at(600), child_run=child)
        for kind, child in (("input", None), ("wait", None), ("workflow", RUN))
    ]
    assert [" ".join(line.split()[1:]) for line in draw(run(*parked), Terminal())[2:7:2]] == [
        "input awaiting_input expires at 14:10:00Z",
        "wait pausing until 14:10:00Z",
        f"workflow child run {RUN}",
    ]


def test_a_cancel_that_is_under_way():
    """And one that was; with the reason."""
    asked = {"cancel_requested_at": at(120), "cancel_reason": "wrong\nfilm"}
    assert "cancel asked for at 14:02:00Z: wrong film" in draw(run(**asked), Terminal())
    assert len(draw(run(status="cancelled", finished_at=at(121), **asked), Terminal())) == 2


def fan(count: int, states: Sequence[str]) -> RunOverview:
    """One, then many, then one, then a chain."""
    many = [
        NodeOverview(f"n{number:03}", "task", ("start",), states[number * len(states) // count])
        for number in range(count)
    ]
    chain = [
        NodeOverview(f"c{number:03}", "task", (f"c{number - 1:03}" if number else "end",))
        for number in range(100)
    ]
    end = NodeOverview("end", "task", tuple(node.id for node in many))
    return run(NodeOverview("start", state="completed"), *many, end, *chain)


def test_three_hundred_nodes_fit_on_a_page():
    """What is alike is one row; what is not stays to be seen."""
    states = ["completed"] * 130 + ["failed"] + ["completed"] * 50 + ["running"] * 2 + ["queued"] * 117
    lines = draw(fan(300, states), Terminal())[2:]
    assert lines == [
        "●          start        completed",
        "├─┬─┬─┬─╮",
        "● │ │ │ │  n000 … n180  completed    180 nodes",
        "│ ✗ │ │ │  n130         failed",
        "├─╯ │ │ │",
        "│   ◐ │ │  n181         running",
        "├───╯ │ │",
        "│     ◐ │  n182         running",
        "├─────╯ │",
        "│       ◌  n183 … n299  queued       117 nodes",
        "├───────╯",
        "○          end … c099   waiting      101 nodes",
    ]


def test_as_many_as_are_asked_for_are_drawn_one_by_one():
    """`--all` folds nothing, a short run neither."""
    some = fan(10, ["completed"])
    assert not any("nodes" in line for line in draw(run(*some.nodes[:12]), Terminal()))
    lines = draw(fan(10, ["completed"]), Terminal(), most_rows=None)
    assert all(any(f"  {node.id} " in line for line in lines) for node in some.nodes)


@pytest.mark.parametrize("height", [5, 8, 14, 24, 50])
def test_a_picture_fits_into_a_window(height):
    """Folded first, cut when nothing else helps."""
    for picture in (film(), fan(300, ["completed", "running", "queued"])):
        lines = draw_within(picture, Terminal(), height)
        assert len(lines) <= height
        assert lines[0].startswith("film  ")
    assert draw_within(film(), Terminal(), 60) == draw(film(), Terminal())


def test_where_there_is_no_room_for_a_picture_only_that_is_said():
    """As below more remarks than a window has lines."""
    assert len(draw_within(film(), Terminal(), -1)) == 1


def test_what_came_out_is_shown():
    """As JSON, on one line."""
    lines = draw(run(status="completed", finished_at=at(1), outputs={"url": "a\nb"}), Terminal())
    assert lines[-1] == 'outputs: {"url": "a\\nb"}'


def test_a_thicket_is_a_list():
    """Where rails would cross more than anybody can follow, rows say what they come after."""
    chance = random.Random(1)
    nodes = [
        NodeOverview(
            f"n{number:03}",
            "task",
            tuple({f"n{chance.randrange(number):03}" for _ in range(3)}) if number else (),
            "running" if number == 250 else chance.choice(["completed", "waiting"]),
        )
        for number in range(300)
    ]
    lines = draw(run(*nodes), Terminal())[2:]
    assert len(lines) == MOST_ROWS + 1
    assert lines[0].startswith("◐  n250")
    assert " after n" in lines[0]
    assert lines[-1].startswith(f"and {300 - MOST_ROWS} nodes: ")


def test_only_counts_are_known_of_a_very_large_run():
    """The counts, then."""
    counts = {"completed": 99_000, "failed": 1, "waiting": 999, "active": 0}
    assert draw(run(counts=counts), Terminal())[2:] == [
        "100,000 nodes: 99,000 completed, 1 failed, 999 waiting"
    ]


def test_words_of_others_neither_break_nor_steer():
    """Names, messages and errors come from documents and jobs."""
    evil = NodeOverview("a\x1b[31m\nb", state="failed", error="x" * 5000 + "\x07", finished_at=at(1))
    *_, line = draw(run(evil, labels={"a\nb": "\x1b"}), Terminal())
    assert "\x1b" not in line
    assert "\x07" not in line
    assert len(line) < 300
    assert all("\n" not in each for each in draw(run(evil, labels={"a\nb": "\x1b"}), Terminal()))


def test_wide_characters_keep_the_columns():
    """As terminals show them, two columns each."""
    lines = draw(
        run(NodeOverview("絵", state="completed"), NodeOverview("plan", "task", ("絵",))), Terminal()
    )
    assert lines[2:] == ["●  絵    completed", "○  plan  waiting"]
    assert wide("e\u0301") == 1
    assert Terminal().cut("絵絵絵", 4) == "絵…"
    assert padded("絵", 4) == "絵  "


def test_a_bar_is_full_only_at_the_end():
    """Nobody is told that it is over before it is."""
    assert [bar(part, cells=4) for part in (0.0, 0.26, 0.999, 1.0)] == [
        "▕░░░░▏",
        "▕█░░░▏",
        "▕███░▏",
        "▕████▏",
    ]


class Stream:
    """What a command may write to."""

    def __init__(self, terminal: bool, encoding: str = "utf-8") -> None:
        self.encoding = encoding
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("environ", "encoding", "unicode"),
    [
        ({}, "utf-8", True),
        ({}, "iso8859-1", False),
        ({"LANG": "de_DE.UTF-8"}, "utf-8", True),
        ({"LC_ALL": "C"}, "utf-8", False),
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, "utf-8", False),
        ({"LC_ALL": "C.UTF-8"}, "UTF-8", True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "utf-8", False),
        ({"LANG": "C", "LC_CTYPE": "de_DE.UTF-8"}, "utf-8", True),
        ({"LC_CTYPE": "C.UTF-8"}, "utf-8", True),
    ],
)
def test_what_the_locale_asks_for(environ, encoding, unicode):
    """ASCII for C and POSIX, though Python by itself writes UTF-8 there."""
    assert Terminal.of(Stream(False, encoding), environ).unicode is unicode  # type: ignore[arg-type]
    assert not Terminal.of(Stream(False), environ, ascii_only=True).unicode  # type: ignore[arg-type]


def test_colours_are_for_terminals():
    """And not where somebody asked for none."""
    assert Terminal.of(Stream(True), {}).colour  # type: ignore[arg-type]
    assert Terminal.of(Stream(True), {}).columns is not None  # type: ignore[arg-type]
    assert Terminal.of(Stream(False), {}) == Terminal()  # type: ignore[arg-type]
    for without in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert not Terminal.of(Stream(True), without).colour  # type: ignore[arg-type]
