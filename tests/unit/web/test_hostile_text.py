"""Others' text on a page: any of it is shown as text, within bounds, and deceives nobody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queue_workflows.web.rendering.hostile_text import LONGEST_IN_LINE, block, in_line, visible

MARK = "\N{SYMBOL FOR SUBSTITUTE FORM TWO}"


def test_what_turns_the_direction_of_writing_can_be_seen() -> None:
    """A name that reads backwards, a bell and a half of a character each become a mark."""
    assert visible("gpj\u202e.exe") == f"gpj{MARK}.exe"
    assert visible("a\x07b\ud800c\u2066d") == f"a{MARK}b{MARK}c{MARK}d"
    assert visible("Grüße, 世界 🎬") == "Grüße, 世界 🎬"


def test_a_long_name_is_cut() -> None:
    """A hundred thousand characters take one line of a table."""
    assert len(in_line("n" * 100_000)) == LONGEST_IN_LINE
    assert in_line("two\nlines\tof it") == "two lines of it"


def test_a_long_text_says_that_it_is_cut() -> None:
    """Ten megabytes are not sent to a browser."""
    shown = block("y" * 10_000_000)
    assert len(shown) < 70_000
    assert shown.endswith("characters more are not shown")


@given(st.text(max_size=2_000))
def test_any_text_fits_and_steers_nothing(text: str) -> None:
    """Whatever it is, it is one line without controls."""
    shown = in_line(text)
    assert len(shown) <= LONGEST_IN_LINE
    assert not any(ord(char) < 32 or char in "\u202e\u2066\u2028\u2029" for char in shown)
