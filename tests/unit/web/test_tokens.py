"""Marks of previews: of one user and one thing, for a while, once."""

from __future__ import annotations

from dataclasses import replace

from queue_workflows.web.acts.act import Asked
from queue_workflows.web.acts.tokens import LASTS_S, Tokens, Verdict

ASKED = Asked("job.cancel", ("ingest:7",), None, {"for": "2h"})


class Clock:
    """A time that a test sets."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_a_mark_is_good_once() -> None:
    """With what the preview had counted; then it is used, whatever it is shown for."""
    tokens = Tokens()
    mark = tokens.issue("ada", ASKED, 40)
    judged = tokens.judge(mark, "ada", ASKED)
    assert (judged.verdict, judged.count) == (Verdict.GOOD, 40)
    assert [tokens.use(judged), tokens.use(judged)] == [True, False]
    assert tokens.judge(mark, "ada", ASKED).verdict is Verdict.USED
    assert tokens.judge(mark, "ada", replace(ASKED, targets=("ingest:8",))).verdict is Verdict.USED


def test_a_mark_is_of_exactly_what_was_shown() -> None:
    """Of one user, act, things, filter and words, by the key of one process; what is made up is none."""
    tokens = Tokens()
    mark = tokens.issue("ada", ASKED, None)
    others = [
        replace(ASKED, act="job.retry"),
        replace(ASKED, targets=("ingest:7", "ingest:8")),
        replace(ASKED, targets=(), where="queue:fetch"),
        replace(ASKED, words={}),
        replace(ASKED, words={"for": "3h"}),
    ]
    assert {tokens.judge(mark, "ada", other).verdict for other in others} == {Verdict.OTHER}
    left_empty = replace(ASKED, words={"for": "2h", "burst": ""})
    assert tokens.judge(mark, "ada", left_empty).verdict is Verdict.GOOD
    assert tokens.judge(mark, "bob", ASKED).verdict is Verdict.OTHER
    assert Tokens().judge(mark, "ada", ASKED).verdict is Verdict.OTHER
    nonce, until, _, signature = mark.split(".")
    longer = f"{nonce}.{int(until) + 1}..{signature}"
    for made in ("", "...", mark[:-1], longer, f"{nonce}.x.9.é", f"{mark}."):
        assert tokens.judge(made, "ada", ASKED).verdict is Verdict.OTHER


def test_a_mark_grows_old() -> None:
    """A quarter of an hour after it was shown it has to be looked at again."""
    clock = Clock()
    tokens = Tokens(now=clock)
    mark = tokens.issue("ada", ASKED, 1)
    clock.now += LASTS_S - 1
    assert tokens.judge(mark, "ada", ASKED).verdict is Verdict.GOOD
    clock.now += 1
    assert tokens.judge(mark, "ada", ASKED).verdict is Verdict.LATE


def test_what_is_remembered_is_bounded_and_nothing_is_done_twice() -> None:
    """Of a used mark that had to be forgotten nobody can tell; so it is late, with all that are as old."""
    clock = Clock()
    tokens = Tokens(now=clock, most=2)
    first, unused = tokens.issue("ada", ASKED, 1), tokens.issue("ada", ASKED, 1)
    assert tokens.use(tokens.judge(first, "ada", ASKED))
    for _ in range(2):
        clock.now += 1
        assert tokens.use(tokens.judge(tokens.issue("ada", ASKED, 1), "ada", ASKED))
    assert tokens.judge(first, "ada", ASKED).verdict is Verdict.LATE
    assert tokens.judge(unused, "ada", ASKED).verdict is Verdict.LATE
    clock.now += 1
    assert tokens.judge(tokens.issue("ada", ASKED, 1), "ada", ASKED).verdict is Verdict.GOOD
