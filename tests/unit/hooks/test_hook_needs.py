"""Who may install a program for a plugin, and what each is told of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queue_workflows.errors import PluginConfigError, QwfError
from queue_workflows.hooks.plugins.needs import Need, needs_below
from queue_workflows.hooks.plugins.providers import BUILT_IN
from queue_workflows.hooks.programs.install import provider_hook

ENV = "on_Binary__install_using_env_provider"


def plugin(place: Path, **need: Any) -> None:
    """A plugin that needs a program."""
    place.mkdir(parents=True)
    (place / "binaries.jsonl").write_text(json.dumps({"name": "tool", **need}))


def test_a_users_own_provider_comes_before_the_one_that_comes_along(tmp_path: Path) -> None:
    """Of two of the user's own that of the first directory; what nobody has is named."""
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        (place / "mine").mkdir(parents=True)
    assert provider_hook("env", [first, second]).path.is_relative_to(BUILT_IN)
    (second / "mine" / f"{ENV}.sh").touch()
    assert provider_hook("env", [first, second]).path == second / "mine" / f"{ENV}.sh"
    (first / "mine" / f"{ENV}.py").touch()
    assert provider_hook("env", [first, second]).path == first / "mine" / f"{ENV}.py"
    with pytest.raises(QwfError, match="there is no hook on_Binary__install_using_conda_provider"):
        provider_hook("conda", [first, second])


def test_what_a_plugin_says_of_its_program_comes_before_what_others_say() -> None:
    """Its own providers in its own order, and what it tells them; what others add comes after that."""
    own = Need("tool", ("pip", "env"), {"pip": {"packages": ["own"]}}, is_skipped_without=True)
    others = [
        Need("tool", ("env", "apt"), {"pip": {"packages": ["theirs"]}, "apt": {"packages": ["a"]}}),
        Need("tool", ("brew", "pip"), {"apt": {"packages": ["b"]}, "brew": {}}),
    ]
    assert own.or_by(others) == Need(
        "tool",
        ("pip", "env", "apt", "brew"),
        {"pip": {"packages": ["own"]}, "apt": {"packages": ["a"]}, "brew": {}},
        is_skipped_without=True,
    )


def test_all_plugins_needs_are_one_for_each_program(tmp_path: Path) -> None:
    """The first plugin's word counts; one whose file is wrong is passed over, unless somebody minds."""
    plugin(tmp_path / "a", bin_providers="env", overrides={"env": {"abspath": "/a"}})
    plugin(tmp_path / "b", bin_providers="pip,env", overrides={"env": {"abspath": "/b"}})
    plugin(tmp_path / "c", name="../tool")
    assert needs_below([tmp_path]) == {
        "tool": Need("tool", ("env", "pip"), {"env": {"abspath": "/a"}}),
    }
    with pytest.raises(PluginConfigError, match=r"c: binaries.jsonl, line 1"):
        needs_below([tmp_path], strict=True)
