"""From a directory of hooks to a document of nodes and steps."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queue_workflows.errors import HookError
from queue_workflows.hooks.plugins import cache
from queue_workflows.hooks.plugins.compile import compile_hooks
from queue_workflows.workflow.document.load import load_document

# What hooks wait for among themselves, without the runs that they begin.
compiled = partial(compile_hooks, wait_for_descendants=False)


def put(directory: Path, *files: str) -> None:
    for file in files:
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n", encoding="utf-8")
        path.chmod(0o755)


def shape(document: dict[str, Any]) -> dict[str, tuple[int, list[str], bool]]:
    """Of each node its step, what it depends on, and whether it is in the background."""
    load_document(document)
    return {
        node["id"]: (node["step"], node.get("depends_on", []), node.get("background", False))
        for node in document["nodes"]
    }


def test_steps_wait_for_the_foreground_before(tmp_path: Path) -> None:
    """Steps without a hook are passed over. What is in the background has to have begun before what follows
    it in order, and what tidies up waits for its end."""
    put(tmp_path, "a/on_Page__00_a.sh", "b/on_Page__01_b.sh", "l/on_Page__09_listen.bg.sh")
    put(tmp_path, "c/on_Page__30_c.sh", "m/on_Page__31_more.bg.sh", "z/on_Page__late.sh")
    put(tmp_path, "t/on_PageEnd__10_tidy.sh", "t/on_PageEnd__20_last.bg.sh")
    nodes = compiled("Page", [tmp_path])["nodes"]
    assert {node.get("when") for node in nodes if node.get("depends_on")} == {"all_done"}
    assert shape(compiled("Page", [tmp_path])) == {
        "a__00_a_sh": (0, [], False),
        "b__01_b_sh": (0, [], False),
        "l__09_listen_bg_sh": (0, [], True),
        "c__30_c_sh": (3, ["a__00_a_sh", "b__01_b_sh", "l__09_listen_bg_sh"], False),
        "m__31_more_bg_sh": (3, ["a__00_a_sh", "b__01_b_sh"], True),
        "z__late_sh": (9, ["c__30_c_sh", "m__31_more_bg_sh"], False),
        "seal": (10, ["a__00_a_sh", "b__01_b_sh", "c__30_c_sh", "z__late_sh"], False),
        "t__end_10_tidy_sh": (21, ["seal", "l__09_listen_bg_sh", "m__31_more_bg_sh"], False),
        "t__end_20_last_bg_sh": (22, ["t__end_10_tidy_sh"], False),
    }


def test_a_hook_in_the_background_ends_at_the_seal_unless_its_plugin_says_to_wait(tmp_path: Path) -> None:
    """Its node says so, as the seal looks there; beside no foreground at all nothing is ended."""
    put(tmp_path, "l/on_Page__10_l.bg.sh", "w/on_Page__10_w.bg.sh", "a/on_Page__20_a.sh")
    (tmp_path / "w" / "config.json").write_text('{"x-bg-at-seal": "wait"}')

    def at_seal(*plugins: str) -> list[str | None]:
        nodes = compiled("Page", [tmp_path], plugins=plugins)["nodes"]
        return [node["inputs"].get("at_seal") for node in nodes if node.get("background")]

    assert (at_seal("l", "w", "a"), at_seal("l", "w")) == (["kill", None], [None, None])
    nodes = compiled("Page", [tmp_path], plugins=["l", "w"])["nodes"]
    assert nodes[-1] == {
        "id": "seal",
        "type": "seal",
        "depends_on": ["l__10_l_bg_sh", "w__10_w_bg_sh"],
        "when": "all_done",
    }


@pytest.mark.parametrize("number", ["20", "50"])
def test_a_step_of_listeners_alone_keeps_the_order_of_the_others(tmp_path: Path, number: str) -> None:
    """What comes after it waits for the foreground before it, and for the listeners to begin."""
    put(tmp_path, "a/on_Page__10_a.sh", f"l/on_Page__{number}_l.bg.sh", "b/on_Page__60_b.sh")
    waits_for = ["a__10_a_sh", f"l__{number}_l_bg_sh"]
    assert shape(compiled("Page", [tmp_path]))["b__60_b_sh"] == (6, waits_for, False)


def test_a_foreground_hook_waits_for_what_stands_before_it_alone(tmp_path: Path) -> None:
    """Within a step too: a listener of a higher number is not waited for, nor one that was waited for."""
    put(tmp_path, "l/on_Page__10_l.bg.sh", "a/on_Page__11_a.sh", "m/on_Page__12_m.bg.sh")
    put(tmp_path, "b/on_Page__13_b.sh", "n/on_Page__14_n.bg.sh", "c/on_Page__20_c.sh", "d/on_Page__30_d.sh")
    assert {name: above for name, (_, above, _) in shape(compiled("Page", [tmp_path])).items()} == {
        "l__10_l_bg_sh": [],
        "a__11_a_sh": ["l__10_l_bg_sh"],
        "m__12_m_bg_sh": [],
        "b__13_b_sh": ["l__10_l_bg_sh", "m__12_m_bg_sh"],
        "n__14_n_bg_sh": [],
        "c__20_c_sh": ["a__11_a_sh", "b__13_b_sh", "n__14_n_bg_sh"],
        "d__30_d_sh": ["c__20_c_sh"],
        "seal": ["a__11_a_sh", "b__13_b_sh", "c__20_c_sh", "d__30_d_sh"],
    }


STRICT = {
    "a__09_z_sh": [],
    "z__10_a_sh": ["a__09_z_sh"],
    "a__11_l_bg_sh": ["z__10_a_sh"],
    "b__11_m_bg_sh": ["z__10_a_sh"],
    "a__12_b_sh": ["z__10_a_sh", "a__11_l_bg_sh", "b__11_m_bg_sh"],
    "a__50_c_sh": ["a__12_b_sh", "a__11_l_bg_sh"],
    "seal": ["a__09_z_sh", "z__10_a_sh", "a__12_b_sh", "a__50_c_sh"],
    "a__end_10_d_sh": ["seal", "a__11_l_bg_sh", "b__11_m_bg_sh"],
    "b__end_10_e_sh": ["a__end_10_d_sh"],
}


def put_strict(directory: Path) -> None:
    put(directory, "z/on_Page__10_a.sh", "a/on_Page__09_z.sh", "a/on_Page__11_l.bg.sh", "a/on_Page__50_c.sh")
    put(directory, "b/on_Page__11_m.bg.sh", "a/on_Page__12_b.sh")
    put(directory, "a/on_PageEnd__10_d.sh", "b/on_PageEnd__10_e.sh")


def test_the_strict_order_goes_by_name(tmp_path: Path) -> None:
    """One hook after the other, whatever its step; only what is in the background overlaps."""
    put_strict(tmp_path)
    document = compiled("Page", [tmp_path], order="strict")
    assert {name: above for name, (_, above, _) in shape(document).items()} == STRICT


def test_the_steps_of_the_strict_order_never_go_back(tmp_path: Path) -> None:
    """Also where names have three digits: what is tried again is put in order by them."""
    hooks = ("05_a", "100_b", "11_c", "30_d")
    put(
        tmp_path,
        *(f"a/on_Page__{hook}.sh" for hook in hooks),
        *(f"a/on_PageEnd__{hook}.sh" for hook in hooks),
    )
    nodes = [node for node in compiled("Page", [tmp_path], order="strict")["nodes"] if "step" in node]
    steps = [node["step"] for node in nodes if node.get("queue", "hooks") == "hooks"]
    assert len(steps) >= 8
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("said", "order", "is_strict"),
    [
        (["strict"], None, True),
        (["strict"], "steps", False),
        (["", "strict"], None, True),
        (["steps", "strict"], None, False),
        (["steps"], "strict", True),
        ([""], None, False),
    ],
)
def test_a_directory_says_its_order(tmp_path: Path, said: list[str], order: Any, is_strict: bool) -> None:
    """The first that says one counts, where the caller says none."""
    places = [tmp_path / str(number) for number in range(len(said))]
    for place, its_order in zip(places, said, strict=True):
        place.mkdir()
        if its_order:
            (place / "hooks.toml").write_text(f'order = "{its_order}"')
    put_strict(places[0])
    above = {name: given for name, (_, given, _) in shape(compiled("Page", places, order=order)).items()}
    assert (above == STRICT) is is_strict


def test_what_works_with_a_session_says_so(tmp_path: Path) -> None:
    """Of its own plugin, and of those that it requires, near or far; a download is nobody's session."""
    put(tmp_path, "chrome/on_Page__10_open.bg.sh", "chrome/on_Page__11_tab.bg.sh", "chrome/on_Page__20_go.sh")
    put(tmp_path, "shot/on_Page__30_shot.sh", "pdf/on_Page__31_pdf.sh", "plain/on_Page__40_plain.sh")
    put(tmp_path, "fetch/on_Page__05_fetch.bg.sh", "fetch/on_Page__41_read.sh", "shot/on_PageEnd__10_end.sh")
    requires = {"shot": ["chrome"], "pdf": ["shot", "base"], "chrome": ["pdf"]}
    for plugin, names in requires.items():
        (tmp_path / plugin / "config.json").write_text(json.dumps({"required_plugins": names}))
    (tmp_path / "fetch" / "config.json").write_text('{"x-bg-at-seal": "wait"}')
    nodes = compiled("Page", [tmp_path])["nodes"]
    both = ["chrome__10_open_bg_sh", "chrome__11_tab_bg_sh"]
    assert {node["id"]: node["sessions"] for node in nodes if "sessions" in node} == {
        "chrome__11_tab_bg_sh": both[:1],
        "chrome__20_go_sh": both,
        "shot__30_shot_sh": both,
        "pdf__31_pdf_sh": both,
    }
    assert all(set(node.get("sessions", ())) <= set(node.get("depends_on", ())) for node in nodes)


def test_an_order_that_is_none_is_refused(tmp_path: Path) -> None:
    """Rather than taken for the other one."""
    put_strict(tmp_path)
    with pytest.raises(HookError, match="'Strict' is no order of hooks"):
        compiled("Page", [tmp_path], order="Strict")  # type: ignore[arg-type]


def test_a_sequential_step_goes_in_order(tmp_path: Path) -> None:
    """One hook after the other; a background hook starts when it is its turn, and the next waits for that."""
    put(tmp_path, "a/on_Page__50_a.sh", "b/on_Page__50_b.sh", "b/on_Page__51_c.sh", "l/on_Page__52_l.bg.sh")
    put(tmp_path, "e/on_Page__60_e.sh")
    assert shape(compiled("Page", [tmp_path])) == {
        "a__50_a_sh": (5, [], False),
        "b__50_b_sh": (5, ["a__50_a_sh"], False),
        "b__51_c_sh": (5, ["b__50_b_sh"], False),
        "l__52_l_bg_sh": (5, ["b__51_c_sh"], True),
        "e__60_e_sh": (6, ["b__51_c_sh", "l__52_l_bg_sh"], False),
        "seal": (10, ["a__50_a_sh", "b__50_b_sh", "b__51_c_sh", "e__60_e_sh"], False),
    }
    parallel = shape(compiled("Page", [tmp_path], sequential_steps=()))
    assert parallel["b__51_c_sh"] == (5, [], False)


def test_a_sequential_step_of_what_tidies_up(tmp_path: Path) -> None:
    """It goes in order as well."""
    put(tmp_path, "a/on_Page__10_a.sh", "t/on_PageEnd__50_one.sh", "t/on_PageEnd__51_two.sh")
    assert shape(compiled("Page", [tmp_path])) == {
        "a__10_a_sh": (1, [], False),
        "t__end_50_one_sh": (25, ["a__10_a_sh"], False),
        "t__end_51_two_sh": (25, ["t__end_50_one_sh"], False),
    }


def test_only_the_named_plugins(tmp_path: Path) -> None:
    """As `--plugins` says."""
    put(tmp_path, "a/on_Page__00_a.sh", "b/on_Page__10_b.sh", "b/on_PageEnd__10_b.sh")
    assert list(shape(compiled("Page", [tmp_path], plugins=["a"]))) == ["a__00_a_sh"]


def test_what_is_wrong_with_other_plugins_is_nobodys_affair(tmp_path: Path) -> None:
    """Who names plugins can run them beside one that cannot be run."""
    put(tmp_path, "a/on_Page__10_a.sh")
    for hook in ("b/on_Page__10_b.xyz", "b/on_PageEnd__10_b.xyz"):
        put(tmp_path, hook)
        (tmp_path / hook).chmod(0o644)
    assert [node["plugin"] for node in compiled("Page", [tmp_path], plugins=["a"])["nodes"]] == ["a"]
    with pytest.raises(HookError):
        compiled("Page", [tmp_path])


def test_a_node_says_how_to_find_and_retry_its_hook(tmp_path: Path) -> None:
    """Its file by plugin and name, the run's inputs as arguments, and the plugin's own policy."""
    put(tmp_path, "a/on_Page__10_a.sh")
    (tmp_path / "a" / "config.json").write_text(
        json.dumps({"x-max-attempts": 2, "x-retry-s": 1.5, "x-host-lock": "scanner"})
    )
    (node,) = compiled("Page", [tmp_path])["nodes"]
    assert node == {
        "id": "a__10_a_sh",
        "queue": "hooks",
        "module": "on_Page__10_a.sh",
        "plugin": "a",
        "step": 1,
        "inputs": {"args": {"$from": "inputs"}},
        "retry": {"max_attempts": 2, "backoff_s": 1.5},
        "host_lock": "scanner",
    }


def test_what_needs_the_lock_of_a_listener_shares_it(tmp_path: Path) -> None:
    """With all of its run but what tidies up; where none is a listener each has it for itself."""
    put(
        tmp_path, "a/on_Page__00_a.bg.sh", "a/on_Page__01_b.bg.sh", "b/on_Page__10_c.sh", "c/on_Page__20_d.sh"
    )
    put(tmp_path, "w/on_Page__20_w.bg.sh", "a/on_PageEnd__10_e.sh", "c/on_Page__30_f.bg.sh")
    locks = {"a": ("screen", "kill"), "b": ("screen", "kill"), "w": ("screen", "wait"), "c": ("disk", "wait")}
    for plugin, (lock, at_seal) in locks.items():
        (tmp_path / plugin / "config.json").write_text(
            json.dumps({"x-host-lock": lock, "x-bg-at-seal": at_seal})
        )
    nodes = compiled("Page", [tmp_path])["nodes"]
    assert {
        node["id"]: (node.get("host_lock"), node["inputs"].get("shared_lock")) for node in nodes[:-2]
    } == {
        "a__00_a_bg_sh": (None, "screen"),
        "a__01_b_bg_sh": (None, "screen"),
        "b__10_c_sh": ("beside screen", "screen"),
        "c__20_d_sh": ("disk", None),
        "w__20_w_bg_sh": ("beside screen", "screen"),
        "c__30_f_bg_sh": ("disk", None),
    }
    assert (nodes[-2]["id"], nodes[-1]["host_lock"]) == ("seal", "screen")


def test_names_that_would_be_one_are_told_apart(tmp_path: Path) -> None:
    """An id has fewer letters to choose from than a file's name; none begins with a digit."""
    put(tmp_path, "a.b/on_Page__10_a.sh", "a_b/on_Page__10_a.sh", "1st/on_Page__10_a.sh")
    put(tmp_path, f"{'p' * 99}/on_Page__11_{'n' * 99}.sh")
    ids = list(shape(compiled("Page", [tmp_path])))
    assert ids[:3] == ["_1st__10_a_sh", "a_b__10_a_sh", "a_b__10_a_sh_2"]
    assert len(ids[3]) == 120


def test_an_event_without_hooks_is_an_error(tmp_path: Path) -> None:
    """Rather than a run that does nothing."""
    with pytest.raises(HookError, match=f"there are no hooks of Page below {tmp_path} — a hook is"):
        compiled("Page", [tmp_path])


def test_what_cannot_be_run_is_told_before_a_run_starts(tmp_path: Path) -> None:
    """Of the event, and of its end."""
    put(tmp_path, "a/on_Page__10_a.sh", "a/on_PageEnd__10_a")
    (tmp_path / "a" / "on_PageEnd__10_a").chmod(0o644)
    with pytest.raises(HookError, match="on_PageEnd__10_a is not executable"):
        compiled("Page", [tmp_path])


def test_a_listener_without_anything_to_listen_to_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All foreground hooks are in earlier steps, so its run is sealed when it begins."""
    put(tmp_path, "a/on_Page__10_a.sh", "l/on_Page__10_early.bg.sh", "l/on_Page__20_late.bg.sh")
    put(tmp_path, "w/on_Page__30_waits.bg.sh", "a/on_PageEnd__50_tidy.sh")
    (tmp_path / "w" / "config.json").write_text('{"x-bg-at-seal": "wait"}')
    compiled("Page", [tmp_path])
    assert caplog.messages == [
        "l/on_Page__20_late.bg.sh is ended as soon as it begins: no foreground hook is in step 2 or after it"
    ]


def test_a_readiness_of_nothing_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name that is slipped in `[ready]` would leave what it means without a barrier."""
    put(tmp_path, "browser/on_Page__10_open.bg.sh", "browser/on_Page__20_look.sh")
    said = '[ready]\nbrowser = {line = "x"}\n"browser/on_Page__10_open.bg.sh" = {line = "x"}\n'
    (tmp_path / "hooks.toml").write_text(
        f'{said}browsers = {{line = "x"}}\n"browser/on_Page" = {{line = "x"}}\n'
    )
    compiled("Page", [tmp_path])
    assert caplog.messages == [
        f"{tmp_path}/hooks.toml: ready.{name} is no plugin there, nor a hook of one"
        for name in ("browsers", "browser/on_Page")
    ]


@pytest.mark.parametrize(
    ("number", "order", "is_told"),
    [
        (1, "steps", False),  # it begins with its step
        (5, "steps", True),  # one after the other
        (1, "strict", True),
    ],
)
def test_what_is_ended_at_once_depends_on_the_order(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    number: int,
    order: Any,
    is_told: bool,
) -> None:
    """One that stands behind the last foreground hook of its own step begins after that, or beside it."""
    put(tmp_path, f"a/on_Page__{number}0_a.sh", f"l/on_Page__{number}1_late.bg.sh")
    document = compiled("Page", [tmp_path], order=order)
    said = f"l/on_Page__{number}1_late.bg.sh is ended as soon as it begins: no foreground hook comes after it"
    assert caplog.messages == [said] * is_told
    waits_for = shape(document)[f"l__{number}1_late_bg_sh"][1]
    assert waits_for == [f"a__{number}0_a_sh"] * is_told


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("steps", "so it runs in step 9"),
        ("strict", "so it comes where its name stands among the others"),
    ],
)
def test_a_hook_without_a_number_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, order: Any, said: str
) -> None:
    """Also one of the end: whoever starts runs from Python is told what `qwf hooks list` says."""
    put(tmp_path, "a/on_Page__late.sh", "a/on_PageEnd__later.sh")
    compiled("Page", [tmp_path], order=order)
    assert caplog.messages == [
        f"a/on_Page__late.sh has no number, {said}",
        f"a/on_PageEnd__later.sh has no number, {said}",
    ]


def test_a_directory_says_its_order_for_each_event(tmp_path: Path) -> None:
    """For one that it does not name, the next directory does."""
    places = [tmp_path / "first", tmp_path / "second"]
    for place in places:
        put(place, "a/on_Page__10_a.sh", "b/on_Page__10_b.sh", "a/on_Site__10_a.sh", "b/on_Site__10_b.sh")
    (places[0] / "hooks.toml").write_text('order = {Page = "strict"}')
    waits = [shape(compiled(event, places))["b__10_b_sh"][1] for event in ("Page", "Site")]
    assert waits == [["a__10_a_sh"], []]
    (places[1] / "hooks.toml").write_text('order = "strict"')
    assert shape(compiled("Site", places))["b__10_b_sh"][1] == ["a__10_a_sh"]


def test_each_plugin_is_read_once_for_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many hooks it has, and however many plugins require it."""
    read: Counter[str] = Counter()
    load = cache.load_own_config
    monkeypatch.setattr(
        cache, "load_own_config", lambda plugin: (read.update([plugin.name]), load(plugin))[1]
    )
    put(
        tmp_path, "a/on_Page__00_a.bg.sh", "a/on_Page__11_a.bg.sh", "a/on_Page__20_a.sh", "b/on_Page__20_b.sh"
    )
    put(tmp_path, "b/on_Page__30_b.sh", "b/on_PageEnd__30_b.sh", "c/on_Page__90_c.bg.sh")
    (tmp_path / "base").mkdir()
    for plugin in ("a", "b", "c", "base"):
        (tmp_path / plugin / "config.json").write_text('{"required_plugins": ["a"]}')
    compiled("Page", [tmp_path])
    assert read == {"a": 1, "b": 1, "c": 1, "base": 1}


def test_the_end_hooks_wait_for_the_runs_below(tmp_path: Path) -> None:
    """Once what is in the background is over, as it may have named some."""
    put(tmp_path, "a/on_Page__10_a.sh", "b/on_Page__20_b.sh", "t/on_PageEnd__10_tidy.sh")
    wait = {"id": "descendants", "type": "descendants", "step": 11, "when": "all_done"}
    foreground = wait | {"depends_on": ["a__10_a_sh", "b__20_b_sh"]}
    nodes = compile_hooks("Page", [tmp_path])["nodes"]
    assert (nodes[-2], nodes[-1]["depends_on"]) == (foreground, ["descendants"])
    put(tmp_path, "l/on_Page__09_l.bg.sh")
    nodes = compile_hooks("Page", [tmp_path], wait_for_descendants=True)["nodes"]
    assert nodes[-2] == wait | {"always": True, "depends_on": ["seal", "l__09_l_bg_sh"]}
    assert nodes[-1]["depends_on"] == ["descendants", "l__09_l_bg_sh"]
    alone = compile_hooks("Page", [tmp_path], plugins=["l"])["nodes"][-1]
    assert "step" not in alone


@pytest.mark.parametrize(
    ("said", "asked", "waits"),
    [
        (None, None, {"waits"}),
        (None, True, {"waits", "always"}),
        (None, False, set()),
        ("wait", None, {"waits", "always"}),
        ("leave", None, set()),
        ("leave", True, {"waits", "always"}),
    ],
)
def test_a_directory_says_whether_to_wait_for_the_runs_below(
    tmp_path: Path, said: str | None, asked: bool | None, waits: set[str]
) -> None:
    """And the caller otherwise."""
    put(tmp_path, "a/on_Page__10_a.sh")
    if said is not None:
        (tmp_path / "hooks.toml").write_text(f'descendants = "{said}"')
    nodes = compile_hooks("Page", [tmp_path], wait_for_descendants=asked)["nodes"][1:]
    assert {
        word for node in nodes for word in ("waits", *(["always"] if node.get("always") else []))
    } == waits


def test_a_directory_says_how_many_runs_of_a_tree_are_open(tmp_path: Path) -> None:
    """And the caller otherwise; without either there is no cap."""
    put(tmp_path, "a/on_Page__10_a.sh")
    assert "max_open_runs" not in compile_hooks("Page", [tmp_path])
    (tmp_path / "hooks.toml").write_text("max_open_runs = 3")
    documents = [compile_hooks("Page", [tmp_path], max_open_runs=most) for most in (None, 2)]
    assert [load_document(document).max_open_runs for document in documents] == [3, 2]


@pytest.mark.parametrize(
    ("said", "asked", "marked"),
    [(None, None, False), (None, True, True), ("true", None, True), ("true", False, False)],
)
def test_a_directory_says_whether_hosts_share_those_of_runs(
    tmp_path: Path, said: str | None, asked: bool | None, marked: bool
) -> None:
    """And the caller otherwise; all hooks are any host's then, End hooks too."""
    put(tmp_path, "a/on_Page__10_a.sh", "t/on_PageEnd__10_tidy.sh")
    if said is not None:
        (tmp_path / "hooks.toml").write_text(f"shared_directory = {said}")
    nodes = compiled("Page", [tmp_path], shared_directory=asked)["nodes"]
    assert [node["inputs"].get("shared_directory", False) for node in nodes] == [marked, marked]


def test_a_run_with_hooks_in_the_background_is_one_hosts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Others look for what listens on their own host; so the wish is told to be in vain."""
    put(tmp_path, "a/on_Page__10_a.sh", "l/on_Page__09_l.bg.sh")
    nodes = compiled("Page", [tmp_path], shared_directory=True)["nodes"]
    assert not any("shared_directory" in node.get("inputs", {}) for node in nodes)
    assert "belongs to one host, although its directory is shared: l__09_l_bg_sh runs in the" in caplog.text
