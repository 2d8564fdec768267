"""The style sheet can be read in both themes, names what it colours, and has a rule for what is drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from support.pictures.samples import pictures

from queue_workflows.drawing.svg.looks import LOOKS, TONES

ROOT = Path(__file__).resolve().parents[3]
WEB = ROOT / "src" / "queue_workflows" / "web"
STYLE = (WEB / "static" / "qwf.css").read_text(encoding="utf-8")
COLOURS = {
    name: {"light": light, "dark": dark}
    for name, light, dark in re.findall(r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", STYLE)
}
GROUNDS = ("ground", "surface", "sunken", "hover")
SOFT = {tone: f"{tone}-soft" for tone in TONES}
TEXT = [(text, ground) for text in ("text", "muted", "accent", *TONES) for ground in GROUNDS]
TEXT += list(SOFT.items())
TEXT += [(text, soft) for text in ("text", "accent") for soft in SOFT.values()]
TEXT += [("muted", soft) for soft in ("hold-soft", "idle-soft", "work-soft")]
TEXT += [("on-accent", "accent"), ("on-accent", "bad")]
# Borders that say where a field is, marks, the ring of the focus, edges of a graph.
MARKS = [(mark, ground) for mark in ("edge", "focus") for ground in GROUNDS]


def luminance(colour: str) -> float:
    """As the guidelines for accessible pages define it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """From 1 to 21."""
    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def too_faint(pairs: list[tuple[str, str]], least: float, theme: str) -> list[tuple[str, str, float]]:
    """The pairs that cannot be told apart well enough."""
    found = [(one, other, contrast(COLOURS[one][theme], COLOURS[other][theme])) for one, other in pairs]
    return [(one, other, round(ratio, 2)) for one, other, ratio in found if ratio < least]


def ruled(name: str) -> bool:
    """Whether the style sheet has a rule for a class."""
    return re.search(rf"\.{re.escape(name)}(?![\w-])", STYLE) is not None


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(theme: str) -> None:
    """Each colour of text on each ground that it may stand on; what is no text, a little less so."""
    assert (too_faint(TEXT, 4.5, theme), too_faint(MARKS, 3.0, theme)) == ([], [])


def test_the_measure_is_right() -> None:
    """Black on white is 21, and a known grey is what it is known for."""
    assert round(contrast("#000000", "#ffffff"), 2) == 21
    assert round(contrast("#767676", "#ffffff"), 2) == 4.54


def test_each_colour_is_a_variable_of_both_themes() -> None:
    """No rule has a colour of its own, save what is printed and shadows."""
    rules = STYLE.replace("\n", " ")
    own = [colour for colour in re.findall(r"#[0-9a-f]{3,8}\b", rules) if colour not in ("#999999",)]
    assert sorted(own) == sorted(colour for pair in COLOURS.values() for colour in pair.values())
    used = set(re.findall(r"var\(--([a-z-]+)", STYLE))
    defined = set(re.findall(r"--([a-z-]+):", STYLE))
    assert used - defined == set()


def test_each_tone_has_its_rule() -> None:
    """Of those that a state can have."""
    assert [tone for tone in TONES if f".tone-{tone} {{" not in STYLE] == []
    assert {look.tone for look in LOOKS.values()} == set(TONES)


def test_what_is_drawn_has_a_rule() -> None:
    """A class of a picture without one would be black on whatever there is."""
    drawn = {
        name
        for svg in pictures("a word").values()
        for element in ET.fromstring(svg).iter()
        for name in (element.get("class") or "").split()
    }
    # Names of whole pictures, which need no look of their own.
    assert sorted(name for name in drawn if not ruled(name)) == ["grid"]


def test_templates_have_their_rules() -> None:
    """What one names as a class is there."""
    named = set()
    for file in (WEB / "templates").glob("*.html"):
        text = re.sub(r"\{[{%#].*?[}%#]\}", " ", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        named |= {name for group in re.findall(r'class="([^"]*)"', text) for name in group.split()}
    assert sorted(name for name in named if not ruled(name)) == ["tone-"]
