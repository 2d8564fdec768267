"""What a plugin takes from others: their declared values, and the programs that they need."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from queue_workflows.errors import PluginConfigError
from queue_workflows.hooks.plugin_config import load_plugin_config
from queue_workflows.hooks.plugins.cache import PluginCache
from queue_workflows.hooks.plugins.compile import compile_hooks
from queue_workflows.hooks.plugins.needs import Need, needs_below, needs_of
from queue_workflows.hooks.plugins.providers import BUILT_IN, provider_of
from queue_workflows.hooks.programs.install import provider_hook, providers_in_order

ENV = {"PATH": "/usr/bin"}


def _plugin(place: Path, name: str, *required: str, binaries: Any = (), **values: Any) -> Path:
    """A plugin that declares texts, and requires others."""
    properties = {
        key: value if isinstance(value, dict) else {"type": "string", "default": value}
        for key, value in values.items()
    }
    document = {"properties": properties, "required_plugins": list(required), "required_binaries": binaries}
    (place / name).mkdir(exist_ok=True)
    (place / name / "config.json").write_text(json.dumps(document))
    return place / name


def _values(plugin: Path, **environ: str) -> dict[str, Any]:
    return dict(load_plugin_config(plugin).resolve({}, {**ENV, **environ}).values)


def test_what_required_plugins_declare_is_declared(tmp_path: Path) -> None:
    """Through all of them, however they require each other; what is nearer comes before what is farther."""
    _plugin(tmp_path, "engine", "browser", ENGINE="v8", SHARED="engine")
    _plugin(tmp_path, "browser", "engine", BROWSER="small", SHARED="browser")
    page = _plugin(tmp_path, "page", "browser", PAGE="yes", SIZE="page")
    assert _values(page) == {
        "ENGINE": "v8",
        "BROWSER": "small",
        "SHARED": "browser",
        "PAGE": "yes",
        "SIZE": "page",
    }
    assert _values(page, BROWSER="large")["BROWSER"] == "large"
    own = _plugin(tmp_path, "own", "browser", SHARED="own")
    assert _values(own)["SHARED"] == "own"


def test_a_plugin_called_base_is_required_by_all_that_have_a_config(tmp_path: Path) -> None:
    """Before all else; a plugin without a config asks for nothing, and one that is missing adds none."""
    _plugin(tmp_path, "base", AGENT="base", TIMEOUT={"type": "integer", "default": 7})
    page = _plugin(tmp_path, "page", "gone", AGENT="page", OWN="x")
    assert _values(page) == {"AGENT": "page", "TIMEOUT": 7, "OWN": "x"}
    assert load_plugin_config(page).resolve({}, ENV).timeout_s == 7.0
    (tmp_path / "bare").mkdir()
    assert _values(tmp_path / "bare") == {}


def test_a_fallback_is_followed_through_the_plugins_that_declare_it(tmp_path: Path) -> None:
    """What somebody set for the last of them counts, by any of its names; else the first default does."""
    whole = {"type": "integer"}
    _plugin(tmp_path, "base", TIMEOUT={**whole, "default": 60, "x-aliases": ["OLD_TIMEOUT"]})
    _plugin(tmp_path, "chrome", CHROME_TIMEOUT={**whole, "x-fallback": "TIMEOUT"})
    page = _plugin(tmp_path, "page", "chrome", PAGE_LOAD={**whole, "x-fallback": "CHROME_TIMEOUT"})
    assert _values(page)["PAGE_LOAD"] == 60
    assert _values(page, OLD_TIMEOUT="5")["PAGE_LOAD"] == 5
    assert _values(page, OLD_TIMEOUT="5", CHROME_TIMEOUT="9")["PAGE_LOAD"] == 9
    circle = _plugin(tmp_path, "circle", A={**whole, "x-fallback": "B"}, B={**whole, "x-fallback": "A"})
    assert _values(circle) == {"TIMEOUT": 60}


def test_programs_are_named_by_properties_and_come_with_required_plugins(tmp_path: Path) -> None:
    """A name in braces stands for a property's default; hooks find the path in that property's variable."""
    chrome = {
        "name": "{CHROME_BINARY}",
        "binproviders": "env,puppeteer",
        "min_version": "120.0",
        "overrides": {"puppeteer": {"install_args": ["chrome@stable"]}},
        "postinstall_scripts": True,
    }
    _plugin(tmp_path, "chrome", binaries=[chrome], CHROME_BINARY="chromium")
    page = _plugin(tmp_path, "page", "chrome", binaries=[{"name": "jq", "binproviders": "env"}])
    (page / "binaries.jsonl").write_text('{"name": "wget", "bin_providers": "env"}\n')
    wget, jq, found = needs_of(page)
    assert ((wget.name, wget.variable), (jq.name, jq.variable)) == (
        ("wget", "WGET_BINARY"),
        ("jq", "JQ_BINARY"),
    )
    assert found == Need(
        "chromium",
        ("env", "puppeteer"),
        {"puppeteer": {"install_args": ["chrome@stable"]}},
        env_name="CHROME_BINARY",
        min_version="120.0",
    )
    assert needs_of(page) == PluginCache([tmp_path]).needs(page)


def test_of_one_program_the_newest_version_is_needed(tmp_path: Path) -> None:
    """Whoever says it: a line of the plugin's file, its config, or a plugin that it requires."""
    _plugin(tmp_path, "below", binaries=[{"name": "wget", "min_version": "9.0"}])
    wanted = [{"name": "wget", "min_version": "10.1"}, {"name": "jq"}]
    page = _plugin(tmp_path, "page", "below", binaries=wanted)
    (page / "binaries.jsonl").write_text('{"name": "wget"}\n{"name": "jq", "min_version": "1.6"}\n')
    assert {need.name: need.min_version for need in needs_of(page)} == {"wget": "10.1", "jq": "1.6"}
    assert needs_below([tmp_path])["wget"].min_version == "10.1"


def test_what_a_required_plugin_needs_by_its_file_is_needed(tmp_path: Path) -> None:
    """As what it needs by its config; a worker that keeps files reads one again that has changed."""
    below, page = _plugin(tmp_path, "below"), _plugin(tmp_path, "page", "below")
    (below / "binaries.jsonl").write_text('{"name": "curl", "bin_providers": "env"}\n')
    assert [need.name for need in needs_of(page)] == ["curl"]
    cache = PluginCache([tmp_path])
    assert cache.needs(page) == needs_of(page)
    (below / "binaries.jsonl").write_text('{"name": "wget", "bin_providers": "env"}\n')
    assert [need.name for need in cache.needs(page)] == ["wget"]


def test_a_config_without_words_of_ours_has_what_base_declares(tmp_path: Path) -> None:
    """And what it says is required; a plugin without a config has neither."""
    base = {"properties": {"SIZE": {"type": "integer", "default": 60}, "KEY": {}}, "required": ["KEY"]}
    for name, document in (("base", base), ("plain", {"type": "object"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(document))
    plain = load_plugin_config(tmp_path / "plain")
    assert plain.resolve({"KEY": "x"}, {}).values == {"SIZE": 60, "KEY": "x"}
    with pytest.raises(PluginConfigError, match="KEY: is missing"):
        plain.resolve({}, {})
    (tmp_path / "none").mkdir()
    assert load_plugin_config(tmp_path / "none").resolve({}, {}).values == {}


@pytest.mark.parametrize(
    ("version", "is_old"),
    [("120.0", False), ("Chromium 121.0.1 built", False), ("119.9", True), (None, True), ("unknown", True)],
)
def test_what_is_older_than_needed_will_not_do(version: str | None, is_old: bool) -> None:
    """By the first numbers with dots in what a program says; one that says nothing is not believed."""
    assert Need("chromium", ("env",), {}, min_version="120.0").is_old(version) is is_old
    assert not Need("chromium", ("env",), {}).is_old(version)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"required_plugins": "chrome"}, "required_plugins: must be a list of plugins' names"),
        ({"required_plugins": ["../x"]}, "required_plugins: must be a list of plugins' names"),
        ({"required_binaries": {}}, "required_binaries: must be a list of programs"),
        ({"required_binaries": ["wget"]}, "required_binaries: program 1: it is no object with a `name`"),
        ({"required_binaries": [{"name": "{NO_BINARY}"}]}, "{NO_BINARY} is no property"),
        ({"required_binaries": [{"name": "a", "min_version": "x"}]}, "`min_version` is a version"),
    ],
)
def test_what_is_wrong_names_the_plugin_and_the_key(tmp_path: Path, document: Any, said: str) -> None:
    """Whether it is found when the file is read or when the programs are looked at."""
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "config.json").write_text(json.dumps(document))
    with pytest.raises(PluginConfigError) as caught:
        needs_of(tmp_path / "page")
    assert str(caught.value).startswith("plugin page, ")
    assert said in str(caught.value)


def test_a_change_of_a_required_plugin_is_seen_by_a_worker(tmp_path: Path) -> None:
    """What a cache keeps is each file by itself."""
    base, page = _plugin(tmp_path, "base", AGENT="one"), _plugin(tmp_path, "page", OWN="x")
    long_ago = 1_000_000_000
    for plugin in (base, page):
        os.utime(plugin / "config.json", (long_ago, long_ago))
    shelf = PluginCache([tmp_path])
    assert shelf.config(page).properties["AGENT"]["default"] == "one"
    _plugin(tmp_path, "base", AGENT="two")
    assert shelf.config(page).properties["AGENT"]["default"] == "two"


def _installs(place: Path, *names: str, toml: str) -> None:
    for name in names:
        hook = place / "install" / f"on_Install__{name}.sh"
        hook.parent.mkdir(parents=True, exist_ok=True)
        hook.write_text("#!/bin/sh\n")
    (place / "hooks.toml").write_text(toml)


def test_a_directory_may_have_an_event_of_its_own_for_installing(tmp_path: Path) -> None:
    """Its hooks are the providers that their names say, in their order; the engine's own come after them."""
    _installs(tmp_path, "12_apt", "00_env", "11_pip", toml='[providers]\nevent = "Install"\n')
    assert provider_of(provider_hook("pip", [tmp_path])) == "pip"
    assert provider_hook("pip", [tmp_path]).path.parent == tmp_path / "install"
    assert provider_hook("npm", [tmp_path]).path.is_relative_to(BUILT_IN)
    need = Need("tool", ("npm", "apt", "pip", "env"), {})
    assert providers_in_order(need, [tmp_path]) == ("env", "pip", "apt", "npm")
    assert providers_in_order(need, []) == need.providers


def test_a_directory_may_list_the_providers(tmp_path: Path) -> None:
    """These and no others, in the order of the list."""
    _installs(tmp_path, "00_env", "11_pip", toml='[providers]\nevent = "Install"\nnames = ["pip", "brew"]\n')
    assert providers_in_order(Need("tool", ("env", "pip", "npm"), {}), [tmp_path]) == ("pip",)
    assert providers_in_order(Need("tool", ("env",), {}), [tmp_path]) == ()


def test_a_list_of_providers_is_for_what_its_own_directory_needs(tmp_path: Path) -> None:
    """A suite that allows few of them keeps nobody's own plugins from theirs."""
    suite, mine = tmp_path / "suite", tmp_path / "mine"
    for place in (suite, mine):
        place.mkdir()
    _installs(suite, "00_env", toml='[providers]\nevent = "Install"\nnames = ["env"]\n')
    _plugin(suite, "pages", binaries=[{"name": "wget", "binproviders": "env,apt"}])
    _plugin(mine, "words", binaries=[{"name": "counter", "binproviders": "pip,env"}])
    dirs = [suite, mine]
    assert providers_in_order(Need("wget", ("env", "apt"), {}), dirs) == ("env",)
    assert providers_in_order(Need("counter", ("pip", "env"), {}), dirs) == ("env", "pip")
    assert providers_in_order(Need("named by nobody", ("pip", "env"), {}), dirs) == ("env",)


def test_a_provider_that_nobody_knows_is_told_when_hooks_are_compiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With its plugin, its program and the providers that there are, before any job waits for it."""
    plugin, other = tmp_path / "shots", tmp_path / "puppeteer"
    for directory, hook in ((plugin, "on_Page__10_shoot.sh"), (other, "on_Binary__10_puppeteer.sh")):
        directory.mkdir()
        (directory / hook).write_text("#!/bin/sh\n")
        (directory / hook).chmod(0o755)
    (plugin / "binaries.jsonl").write_text('{"name": "chrome", "bin_providers": "puppeteer,pupeteer,env"}')
    compile_hooks("Page", [tmp_path])
    told = [record.getMessage() for record in caplog.records if "provider" in record.getMessage()]
    assert told == [
        (
            "plugin shots: chrome may come from 'pupeteer', and there is no such provider; "
            "known are apt, brew, env, npm, pip, puppeteer"
        )
    ]
