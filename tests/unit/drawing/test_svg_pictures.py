"""Every picture is well-formed, harmless and within a strict policy, whatever somebody called a thing."""

from __future__ import annotations

import itertools
import re
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pictures.samples import pictures
from support.reference.examples import examples

from queue_workflows.drawing.svg.hatches import SEGMENTS, WORDS
from queue_workflows.drawing.svg.looks import LOOKS, TONES, UNKNOWN, look_of
from queue_workflows.drawing.svg.markup import fitted, link_of, text_of
from queue_workflows.states import (
    BinaryStatus,
    DesiredState,
    JobStatus,
    NodeState,
    RunStatus,
    SubmissionStatus,
    WorkerState,
)

EVERY_STATE = sorted(
    {
        *(*JobStatus, *RunStatus, *NodeState, *WorkerState),
        *(*DesiredState, *BinaryStatus, *SubmissionStatus),
    }
)
HOSTILE = [
    "</script><script>alert(1)</script>",
    "\"><svg onload='alert(1)'>",
    "' onclick='x",
    "]]>&amp;<!--",
    "a\x00b\x1b[31m\x7f\r\nc",
    "\u202egnp.exe\u2066\u200b\ufeff",
    "\ud800 lone \ufffe",
    "x" * 100_000,
    "",
    "漢字" * 200,
]


def elements(text: str) -> Iterator[ET.Element]:
    """What a strict parser makes of it."""
    return ET.fromstring(text).iter()


def flaws(text: str) -> list[str]:
    """What a page's policy, or a reader, would mind."""
    found = [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs")]
    for element in elements(text):
        found += [element.tag] if element.tag in ("script", "style", "foreignObject", "image") else []
        found += [name for name in element.attrib if name == "style" or name.startswith("on")]
    return found


@pytest.mark.parametrize("words", HOSTILE, ids=range(len(HOSTILE)))
def test_others_words_are_text(words: str) -> None:
    """They break no picture, bring no element or attribute, and turn no line around."""
    assert {name: flaws(svg) for name, svg in pictures(words).items()} == {name: [] for name in pictures("a")}


@given(st.text(max_size=60))
@settings(max_examples=examples(60), deadline=None)
def test_any_words_are_text(words: str) -> None:
    """Also those nobody thought of."""
    assert [name for name, svg in pictures(words).items() if flaws(svg)] == []


def test_a_picture_is_bounded_by_its_words() -> None:
    """A name of 100,000 letters is cut; nothing of it makes a page heavy."""
    assert max(len(svg) for svg in pictures("x" * 100_000).values()) < 20_000


def test_a_picture_is_equal_when_it_is_drawn_again() -> None:
    """Or a live page would be sent again though nothing had changed."""
    assert pictures("a word") == pictures("a word")


@pytest.mark.parametrize(
    "href", ["javascript:alert(1)", "//evil.example", "https://evil.example", "/\\evil.example", "data:x"]
)
def test_a_link_leads_to_our_own_pages_only(href: str) -> None:
    """Whatever a caller was given as an address."""
    assert link_of(href) == "#"
    linked = [element.get("href") for svg in pictures("a", href).values() for element in elements(svg)]
    assert {one for one in linked if one and not one.startswith("#grid-")} == {"#"}


def test_each_picture_is_told_aloud() -> None:
    """As an image or a group with a name, unless it stands beside the words that say it."""
    for name, svg in pictures("a word").items():
        root = ET.fromstring(svg)
        if root.tag == "svg" and root.get("aria-hidden") is None:
            assert (name, root.get("role") in ("img", "group"), bool(root.get("aria-label"))) == (
                name,
                True,
                True,
            )


def test_each_state_has_one_tone_and_a_shape_of_its_own() -> None:
    """So that it is told without colour as well, wherever it stands."""
    assert [state for state in EVERY_STATE if look_of(state) is UNKNOWN] == []
    assert {look.tone for look in LOOKS.values()} <= set(TONES)
    shapes = [look.shape for look in (*LOOKS.values(), UNKNOWN)]
    assert [one for one, other in itertools.combinations(shapes, 2) if one == other] == []


def test_each_kind_of_waiting_has_a_pattern_of_its_own() -> None:
    """And only work is solid."""
    patterns = [look.shape for kind, look in SEGMENTS.items() if kind != "running"]
    assert (len(set(patterns)), all(patterns), SEGMENTS["running"].shape) == (len(patterns), True, "")
    assert list(WORDS) == list(SEGMENTS)


def test_text_is_cut_on_one_line() -> None:
    """At so many letters, or where its room ends; a wide letter takes the room of two."""
    assert text_of("a\n b\t<c>", 40) == "a b &lt;c&gt;"
    assert text_of("abcdef", 4) == "abc…"
    assert (fitted("abcdefghij", 68), fitted("abcdefghijk", 68)) == ("abcdefghij", "abcdefghi…")
    assert fitted("漢字漢字漢字", 68) == "漢字漢字…"


def test_no_picture_has_an_inline_style() -> None:
    """Classes only, each of which the style sheet knows or which only groups."""
    classes = {
        name
        for svg in pictures("a word").values()
        for element in elements(svg)
        for name in (element.get("class") or "").split()
    }
    assert sorted(name for name in classes if not re.fullmatch(r"[a-z][a-z-]*", name)) == []
