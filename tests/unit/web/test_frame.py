"""The frame of a page and its macros: nothing inline, all escaped, and a live part that stands alone."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jinja2
import pytest

from queue_workflows.web import rendering
from queue_workflows.web.acts.all import ACTS
from queue_workflows.web.rendering.templates import Frame, environment

HOSTILE = "\"'></title><script>alert(1)</script><img src=x onerror=alert(1)>"
TEMPLATES = Path(rendering.__file__).parents[1] / "templates"
AT = datetime(2026, 1, 2, 14, 0, 1, tzinfo=UTC)
PAGE = Frame(
    title="Jobs",
    path="/jobs?q=status:failed&before=7",
    command="qwf job list",
    user="ann",
    prefix="/ops",
    section="jobs",
    live_topic="jobs",
    static="/ops/static/{}".format,
    may=lambda _verb: True,
)


class Reader(HTMLParser):
    """What a browser would find."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of each element of a kind."""
        return [attributes for name, attributes in self.found if name == tag]


def rendered(content: str, page: Frame, **data: Any) -> str:
    """A page with this content."""
    text = '{% extends "base.html" %}{% block content %}' + content + "{% endblock %}"
    ours = environment()
    loader = jinja2.ChoiceLoader([jinja2.DictLoader({"page": text}), ours.loader or jinja2.DictLoader({})])
    made = ours.overlay(loader=loader)
    macros = made.get_template("_macros.html").make_module({"page": page})
    return made.get_template("page").render(page=page, m=macros, at=AT, words=HOSTILE, **data)


EVERYTHING = """
{{ state_mark("failed") }}{{ state_mark(words) }}{{ m.badge(words, "bad", "failed") }}
{{ when(at) }}{{ when(none) }}
{{ m.since(at) }}{{ m.span(61) }}{{ m.count(100000, true) }}{{ m.job_link(words) }}{{ m.run_link(words) }}
{{ m.pager("/a?" ~ words, "/b", at) }}{{ m.empty(words, words, words) }}{{ m.command(words) }}
{{ m.kv([(words, words)]) }}
{{ m.reasons([{"code": words, "text": words, "href": "/x", "look": words, "is_obstacle": true}]) }}
{{ m.notice(words, "bad") }}
{{ m.act_button("cancel", {"target": words}, grave=true) }}{{ m.pick(words, words) }}{{ m.pick_all() }}
{{ m.filter("/ops/jobs", words, flaw=words, chips=[(words, "/y", true)]) }}{{ m.tabs([(words, "/z", true)]) }}
{{ m.card(words, words, words, "/c", "bad", "failed") }}
{% call m.scroll(words) %}{{ words }}{% endcall %}{% call m.drawing(words) %}{{ words }}{% endcall %}
"""


def test_nothing_is_inline() -> None:
    """So that the strictest policy holds: no style, no handler, no script without an address of ours."""
    found = Reader(
        rendered(EVERYTHING, replace(PAGE, title=HOSTILE, user=HOSTILE, command=HOSTILE, notice=HOSTILE))
    )
    names = [name for _, attributes in found.found for name in attributes]
    assert [name for name in names if name == "style" or name.startswith(("on", "hx-on"))] == []
    assert [one.get("src") for one in found.of("script")] == [
        *("/ops/static/qwf.js", "/ops/static/htmx.min.js", "/ops/static/hx-sse.min.js"),
    ]
    assert (found.of("style"), found.of("img")) == ([], [])


def test_links_know_where_the_app_is_mounted() -> None:
    """Each begins with the prefix, those of the macros too."""
    content = '{{ m.job_link("ingest:7") }}{{ m.run_link("r1") }}{{ m.act_button("x", {}) }}'
    found = Reader(rendered(content, PAGE))
    links = [one["href"] for one in found.of("a") if not (one["href"] or "").startswith(("#", "/ops"))]
    actions = [one["action"] for one in found.of("form") if not (one["action"] or "").startswith("/ops")]
    assert (links, actions) == ([], [])
    assert "/ops/jobs/ingest:7" in [one["href"] for one in found.of("a")]


def test_a_live_page_names_its_stream() -> None:
    """With its own address, as one word; one that does not change loads no client and opens none."""
    live, still = Reader(rendered("", PAGE)), Reader(rendered("", replace(PAGE, live_topic=None)))
    (main,) = live.of("main")
    assert main["hx-sse:connect"] == "/ops/live?page=/jobs%3Fq%3Dstatus%3Afailed%26before%3D7"
    assert (main["hx-swap"], main["hx-target"]) == ("innerMorph", "this")
    assert [name for name in still.of("main")[0] if name.startswith("hx-")] == []
    assert [one.get("src") for one in still.of("script")] == ["/ops/static/qwf.js"]


def test_a_fragment_is_what_stands_inside_of_main() -> None:
    """Letter by letter, so that a page that did not change is not touched by what its stream brings."""
    whole = rendered("<p>{{ when(at) }}</p>", PAGE)
    inside = re.search(r"<main[^>]*>(.*)</main>", whole, re.DOTALL)
    fragment = rendered("<p>{{ when(at) }}</p>", PAGE, fragment=True)
    title, _, rest = fragment.partition("</title>")
    assert inside is not None
    assert (title, rest.strip()) == ("<title>Jobs · qwf", inside[1].strip())


def test_a_reader_sees_no_button_that_acts() -> None:
    """Where the page is read-only, or says so; what is looked for can still be sent."""
    content = '{{ m.act_button("cancel", {"target": "ingest:7"}) }}'
    acting = Reader(rendered(content, PAGE)).of("form")
    reading = Reader(rendered(content, replace(PAGE, read_only=True))).of("form")
    assert [form["action"] for form in acting] == ["/ops/go", "/ops/act/preview"]
    assert [form["action"] for form in reading] == ["/ops/go"]


def test_what_stands_among_actions_is_for_those_that_may_act() -> None:
    """Be it a button of the macros or a page's own."""
    content = "{% endblock %}{% block actions %}<b>act</b>"
    pages = (PAGE, replace(PAGE, read_only=True))
    assert ["<b>act</b>" in rendered(content, page) for page in pages] == [True, False]


def test_an_action_works_without_a_script() -> None:
    """It is a form that asks for a preview, with its act and its targets as hidden fields."""
    found = Reader(rendered('{{ m.act_button("cancel", [("target", "a"), ("target", "b")]) }}', PAGE))
    hidden = [(one["name"], one["value"]) for one in found.of("input") if one.get("type") == "hidden"]
    assert hidden == [("act", "cancel"), ("target", "a"), ("target", "b")]
    assert [form.get("method") for form in found.of("form")] == [None, "get"]


@pytest.mark.parametrize("act", ACTS)
def test_each_act_can_be_come_to_from_a_page(act: str) -> None:
    """By a button or a form: nobody has to type its address."""
    pages = "".join(path.read_text(encoding="utf-8") for path in TEMPLATES.glob("*.html"))
    assert f'"{act}"' in pages


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.html")), ids=lambda path: path.name)
def test_what_stands_alone_is_in_the_catalogue(path: Path) -> None:
    """Titles, labels, buttons, and what is said where there is nothing: templates have only what is said
    around a value."""
    text = re.sub(r"\{#.*?#\}", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    marked = re.findall(
        r">([A-Z][^<>{}]*[a-z.?!)])</(?:th|h[123]|dt|strong|button|summary|label|span)>", text
    )
    labels = re.findall(r'(?:aria-label|title|placeholder)="([A-Z][^"{}]*)"', text)
    called = re.findall(r'\bm\.(?:empty|scroll|card|drawing|notice)\("([A-Z][^"]*)"(?! ~)', text)
    assert marked + labels + called == []


def test_a_durable_function_that_waits_is_not_said_to_be_held() -> None:
    """In a list a hold stands with its key; what a function waits for comes after what holds jobs up."""
    holds = [
        ("limit_full", "host:{a}"),
        ("not_shared", None),
        ("asleep", None),
        ("event", "paid:{7}"),
        ("children", "3"),
    ]
    content = "{% for reason, key in holds %}{{ reason|on_hold(key) }}|{% endfor %}"
    assert (
        "held: limit full host:{a}|held: not shared|asleep|"
        "waits for the event paid:{7}|waits for children: 3|"
    ) in rendered(content, PAGE, holds=holds)
    counts = {"asleep": 9000, "limit_full": 1, "event": 2, "host_lock": 7, "children": 1}
    content = "{% for reason, number in counts|holds_first %}{{ reason }} {{ number }}|{% endfor %}"
    assert "host_lock 7|limit_full 1|asleep 9000|event 2|" in rendered(content, PAGE, counts=counts)


def test_commands_within_a_sentence_are_set_as_code() -> None:
    """What stands between two backticks; everything of it is escaped, and a backtick alone is one."""
    content = "{% for text in sentences %}{{ said(text) }}|{% endfor %}"
    sentences = ["start `qwf --queue <b>`", "`a` and `b`", "a ` alone", "<i>"]
    assert (
        "start <code>qwf --queue &lt;b&gt;</code>|<code>a</code> and <code>b</code>|a ` alone|&lt;i&gt;|"
    ) in rendered(content, PAGE, sentences=sentences)


def test_a_moment_within_a_sentence_is_a_time() -> None:
    """As all times of a page it comes into the reader's zone; within a command it is left as it is."""
    content = "{{ said(text) }}"
    assert (
        'ended at <time datetime="2026-01-02T14:00:01+00:00" title="2026-01-02 14:00:01Z">'
        "2026-01-02 14:00:01Z</time>, &lt;b&gt; <code>at 2026-01-02 14:00:01Z</code>"
    ) in rendered(content, PAGE, text="ended at 2026-01-02 14:00:01Z, <b> `at 2026-01-02 14:00:01Z`")


def test_times_are_told_to_programs_as_well() -> None:
    """In UTC where there is no script; a moment that is not there is a dash."""
    content = "{{ when(at) }}|{{ when(none) }}|{{ m.count(100000, true) }}|{{ m.span(61) }}"
    assert (
        '<time datetime="2026-01-02T14:00:01+00:00" title="2026-01-02 14:00:01Z">2026-01-02 14:00:01Z</time>'
        '|<span class="muted">\N{EN DASH}</span>|100,000+|1m 1s'
    ) in rendered(content, PAGE)
