"""What a plugin's `config.json` says, where its values come from, and what environment its hooks get."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_workflows.errors import ExitCode, PluginConfigError
from queue_workflows.hooks.plugin_config import (
    PluginConfig,
    PluginValues,
    load_plugin_config,
    read_plugin_config,
)
from queue_workflows.hooks.plugins.needs import needs_of
from queue_workflows.hooks.script.environment import hook_environment
from queue_workflows.hooks.text_values import read_as

_WGET = {
    "properties": {
        "SAVE_WGET": {"type": "boolean", "default": True, "x-aliases": ["USE_WGET"]},
        "WGET_TIMEOUT": {"type": "integer", "default": 60, "minimum": 5, "x-fallback": "TIMEOUT"},
        "WGET_ARGS": {"type": "array", "items": {"type": "string"}, "x-aliases": ["WGET_DEFAULT_ARGS"]},
        "WGET_AGENT": {"type": ["string", "null"]},
        "WGET_LIMITS": {"type": "object", "default": {"rate": 1}},
    }
}


def _resolved(document: Any, run: dict[str, Any] | None = None, **environ: str) -> PluginValues:
    return read_plugin_config("wget", document).resolve(run or {}, environ)


def test_a_plugin_without_a_config_is_as_by_default(tmp_path: Path) -> None:
    """No file, no values, enabled, no timeout of its own."""
    (tmp_path / "my-title").mkdir()
    config = load_plugin_config(tmp_path / "my-title")
    assert (config, config.prefix) == (PluginConfig("my-title"), "MY_TITLE")
    assert config.resolve({}, {}) == PluginValues({}, None, None)


def test_the_policies_of_a_plugin_are_read(tmp_path: Path) -> None:
    """Attempts, delay, what becomes of its listeners, and what it may see of the worker's environment."""
    plugin = tmp_path / "wget"
    plugin.mkdir()
    policies = {"x-max-attempts": 5, "x-retry-s": 0.5, "x-bg-at-seal": "wait", "x-env": ["HTTPS_PROXY"]}
    policies |= {"x-host-lock": "scanner", "x-bg-at-timeout": "end"}
    (plugin / "config.json").write_text(json.dumps({**_WGET, **policies}))
    config = load_plugin_config(plugin)
    assert (config.max_attempts, config.retry_s, config.bg_at_seal, config.env, config.host_lock) == (
        5,
        0.5,
        "wait",
        ("HTTPS_PROXY",),
        "scanner",
    )
    assert (config.bg_at_timeout, PluginConfig("a").bg_at_seal) == ("end", "kill")
    assert PluginConfig("a").bg_at_timeout == "fail"


@pytest.mark.parametrize(
    ("run", "environ", "key", "value"),
    [
        ({}, {}, "WGET_TIMEOUT", 60),
        ({}, {"TIMEOUT": "30"}, "WGET_TIMEOUT", 30),
        ({}, {"TIMEOUT": "30", "WGET_TIMEOUT": "20"}, "WGET_TIMEOUT", 20),
        ({"TIMEOUT": 10}, {"WGET_TIMEOUT": "20"}, "WGET_TIMEOUT", 20),
        ({"WGET_TIMEOUT": 10}, {"WGET_TIMEOUT": "20"}, "WGET_TIMEOUT", 10),
        ({"WGET_TIMEOUT": None}, {"WGET_TIMEOUT": "20"}, "WGET_TIMEOUT", 20),
        ({}, {"WGET_DEFAULT_ARGS": "-a, -b"}, "WGET_ARGS", ["-a", "-b"]),
        ({}, {"WGET_DEFAULT_ARGS": '["-a,b"]'}, "WGET_ARGS", ["-a,b"]),
        ({}, {"WGET_DEFAULT_ARGS": "-a", "WGET_ARGS": "-b"}, "WGET_ARGS", ["-b"]),
        ({}, {"WGET_ARGS": ""}, "WGET_ARGS", []),
        ({}, {"USE_WGET": "yes"}, "SAVE_WGET", True),
        ({}, {"WGET_AGENT": ""}, "WGET_AGENT", None),
        ({}, {"WGET_AGENT": "7"}, "WGET_AGENT", "7"),
        ({}, {"WGET_LIMITS": '{"rate": 2}'}, "WGET_LIMITS", {"rate": 2}),
        ({}, {}, "WGET_LIMITS", {"rate": 1}),
    ],
)
def test_where_a_value_comes_from(
    run: dict[str, Any], environ: dict[str, str], key: str, value: object
) -> None:
    """The run, then the environment, by name and alias; then the fallback; then the default."""
    assert _resolved(_WGET, run, **environ).values[key] == value


def test_a_default_is_a_propertys_own_before_its_fallbacks() -> None:
    """What has none has that of the property that stands in for it."""
    properties = {
        "TIMEOUT": {"type": "integer", "default": 30},
        "WGET_TIMEOUT": {"type": "integer", "default": 60, "x-fallback": "TIMEOUT"},
        "WGET_WAIT": {"type": "integer", "x-fallback": "TIMEOUT"},
    }
    assert _resolved({"properties": properties}).values == {
        "TIMEOUT": 30,
        "WGET_TIMEOUT": 60,
        "WGET_WAIT": 30,
    }


@pytest.mark.parametrize(
    ("run", "environ", "disabled_by"),
    [
        ({}, {}, None),
        ({}, {"SAVE_WGET": "false"}, "SAVE_WGET is false"),
        ({}, {"WGET_ENABLED": "0"}, "WGET_ENABLED is false"),
        ({}, {"USE_WGET": "no"}, "USE_WGET is false"),
        ({"WGET_ENABLED": False}, {"SAVE_WGET": "true"}, "WGET_ENABLED is false"),
        ({"SAVE_WGET": True}, {"WGET_ENABLED": "false"}, None),
    ],
)
def test_a_plugin_is_switched_off(
    run: dict[str, Any], environ: dict[str, str], disabled_by: str | None
) -> None:
    """`X_ENABLED` and `SAVE_X` are one switch, declared or not; what the run says beats the environment."""
    for document in (_WGET, {}) if "USE_WGET" not in environ else (_WGET,):
        values = _resolved(document, run, **environ)
        assert (values.enabled, values.disabled_by) == (disabled_by is None, disabled_by)


def test_a_plugin_can_be_off_by_default() -> None:
    """It then takes a word of somebody to switch it on."""
    document = {"properties": {"WGET_ENABLED": {"type": "boolean", "default": False}}}
    assert _resolved(document).disabled_by == "WGET_ENABLED is false by default"
    assert _resolved(document, SAVE_WGET="1").enabled


def test_what_is_switched_off_lacks_nothing() -> None:
    """It is skipped, whatever else would be wrong with its values."""
    properties = {
        "WGET_ENABLED": {"type": "boolean", "default": False},
        "WGET_KEY": {"type": "string"},
        "WGET_TIMEOUT": {"type": "integer"},
    }
    document = {"properties": properties, "required": ["WGET_KEY"]}
    values = _resolved(document, WGET_TIMEOUT="soon")
    assert values == PluginValues({}, "WGET_ENABLED is false by default", None)
    with pytest.raises(PluginConfigError, match="WGET_KEY: is missing"):
        _resolved(document, WGET_ENABLED="true")


@pytest.mark.parametrize(
    ("document", "environ", "timeout"),
    [
        ({}, {}, None),
        ({}, {"TIMEOUT": "2.5"}, 2.5),
        ({}, {"TIMEOUT": "2.5", "WGET_TIMEOUT": "9"}, 9.0),
        (_WGET, {}, 60.0),
        (_WGET, {"TIMEOUT": "30"}, 30.0),
    ],
)
def test_a_timeout(document: Any, environ: dict[str, str], timeout: float | None) -> None:
    """The plugin's own, else the general one, declared or not."""
    assert _resolved(document, **environ).timeout_s == timeout


@pytest.mark.parametrize(
    ("environ", "key", "said"),
    [
        (
            {"WGET_TIMEOUT": "soon"},
            "WGET_TIMEOUT",
            "must be integer (WGET_TIMEOUT is set in the environment)",
        ),
        ({"TIMEOUT": "1"}, "WGET_TIMEOUT", "must be at least 5 (TIMEOUT, which stands for WGET_TIMEOUT, is"),
        ({"WGET_ENABLED": "maybe"}, "WGET_ENABLED", "must be boolean"),
        ({"WGET_ARGS": "[1]"}, "WGET_ARGS", "must be string"),
        ({"WGET_LIMITS": '{"rate": NaN}'}, "WGET_LIMITS", "must be object"),
        ({"WGET_ARGS": "[" * 100_000}, "WGET_ARGS", "must be array"),
        ({"WGET_LIMITS": "{"}, "WGET_LIMITS", "must be object"),
        ({"WGET_TIMEOUT": "9" * 400}, "WGET_TIMEOUT", "must be integer"),
    ],
)
def test_a_wrong_value_is_named(environ: dict[str, str], key: str, said: str) -> None:
    """The plugin, the key, what is wrong with it, and where it is set; never the value."""
    with pytest.raises(PluginConfigError) as refused:
        _resolved(_WGET, **environ)
    assert (refused.value.plugin, refused.value.key) == ("wget", key)
    assert said in str(refused.value)
    assert refused.value.exit_code is ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    ("document", "key", "said"),
    [
        ([], None, "must be a JSON Schema"),
        ({"x-max-attempts": 0}, "x-max-attempts", "from 1 to 1000"),
        ({"x-max-attempts": True}, "x-max-attempts", "from 1 to 1000"),
        ({"x-retry-s": -1}, "x-retry-s", "seconds"),
        ({"x-host-lock": 7}, "x-host-lock", "the name of a lock"),
        ({"x-host-lock": " scanner"}, "x-host-lock", "the name of a lock"),
        ({"x-host-lock": "elsewhere:elsewhere:a"}, "x-host-lock", "the name of a lock"),
        ({"x-bg-at-seal": "stop"}, "x-bg-at-seal", '"wait" or "kill"'),
        ({"x-bg-at-timeout": "wait"}, "x-bg-at-timeout", '"fail" or "end"'),
        ({"x-retries": 1}, "x-retries", "is none of"),
        ({"x-max-atempts": 1}, "x-max-atempts", "is none of"),
        ({"x-env": "PATH"}, "x-env", "a list of names"),
        ({"x-env": ["QWF_DB_URL"]}, "x-env", "not for hooks"),
        ({"x-env": ["PGPASSWORD"]}, "x-env", "not for hooks"),
        ({"properties": {"QWF_DB_URL": {"type": "string"}}}, "QWF_DB_URL", "not for hooks"),
        ({"properties": {"X": {"x-aliases": ["AI_LEADS_DB_URL"]}}}, "X", "not for hooks"),
        ({"properties": {"X": {"x-fallback": "_QWF_TREE"}}}, "X", "not for hooks"),
        ({"properties": {"a b": {}}}, "a b", "no name of a variable"),
        ({"properties": {"X": {"type": "strng"}}}, "X", "no JSON Schema"),
        ({"properties": {"X": {"type": "integer", "default": "a"}}}, "X", "must be integer"),
        ({"properties": [], "required": []}, "properties", "an object of JSON Schemas"),
        ({"required": ["X"]}, "required", "a list of properties"),
    ],
)
def test_a_wrong_config_is_refused(document: Any, key: str | None, said: str) -> None:
    """Before any hook of the plugin is run; no name of the engine's own can be declared."""
    with pytest.raises(PluginConfigError, match=said) as refused:
        read_plugin_config("wget", document)
    assert refused.value.key == key


@pytest.mark.parametrize("word", ["x-auto-run", "x-runtimes", "x-required", "x-scope", "x-install-in-docker"])
def test_a_word_of_another_runner_is_left_alone(word: str) -> None:
    """A published suite of plugins has some that its own runner reads."""
    assert read_plugin_config("wget", {word: True}) == PluginConfig("wget", is_written=True)


def test_a_required_value_has_to_be_set() -> None:
    """And the message says how."""
    document = {"properties": {"WGET_KEY": {"type": "string"}}, "required": ["WGET_KEY"]}
    with pytest.raises(PluginConfigError, match="WGET_KEY: is missing"):
        _resolved(document)
    assert _resolved(document, WGET_KEY="k").values == {"WGET_KEY": "k"}


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    """With its path and place."""
    (tmp_path / "config.json").write_text("{,}")
    with pytest.raises(PluginConfigError, match=r"config\.json is no JSON"):
        load_plugin_config(tmp_path)
    (tmp_path / "config.json").write_text('{"properties": {"A": {"default": NaN}}}')
    with pytest.raises(PluginConfigError, match="NaN is not JSON"):
        load_plugin_config(tmp_path)


@pytest.mark.parametrize("read", [load_plugin_config, needs_of])
def test_a_file_that_has_no_end_holds_up_nobody(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """A FIFO, or a link to a device, in the place of what a plugin says of itself."""
    names = ("config.json", "binaries.jsonl")
    for name in names:
        os.mkfifo(tmp_path / name)
    with pytest.raises(PluginConfigError, match="it is no regular file"):
        read(tmp_path)
    for name in names:
        (tmp_path / name).unlink()
        (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(PluginConfigError, match="it is no regular file"):
        read(tmp_path)


@given(st.text(max_size=30), st.sampled_from(["boolean", "integer", "number", "array", "object", "string"]))
def test_any_text_is_read_or_refused(text: str, kind: str) -> None:
    """No text from an environment brings anything but its type, or ValueError."""
    python = {"boolean": bool, "integer": int, "number": (int, float), "array": list, "object": dict}
    try:
        read = read_as(text, {"type": kind})
    except ValueError:
        return
    assert isinstance(read, python.get(kind, str))


def test_a_hook_sees_what_is_on_the_list_and_nothing_else() -> None:
    """The worker's DSN and its other variables stay with it; what the engine says wins."""
    dsn = "postgresql://shop:secret@localhost/shop"
    environ = {
        "PATH": "/bin",
        "HOME": "/home/shop",
        "LC_ALL": "C.UTF-8",
        "LANG": f"odd {dsn}",
        "QWF_DB_URL": dsn,
        "PGPASSWORD": "secret",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "HTTPS_PROXY": "http://proxy:3128",
        "WGET_ARGS": "-a,-b",
    }
    config = read_plugin_config("wget", {**_WGET, "x-env": ["HTTPS_PROXY", "NO_PROXY"]})
    values = config.resolve({"WGET_AGENT": None}, environ)
    engine = {"QWF_RUN_ID": "r", "WGET_TIMEOUT": "5"}
    seen = hook_environment(config, values, engine=engine, environ=environ, dsns=[dsn])
    assert seen == {
        "PATH": "/bin",
        "HOME": "/home/shop",
        "LC_ALL": "C.UTF-8",
        "HTTPS_PROXY": "http://proxy:3128",
        "SAVE_WGET": "true",
        "WGET_TIMEOUT": "5",
        "WGET_ARGS": '["-a","-b"]',
        "WGET_LIMITS": '{"rate":1}',
        "QWF_RUN_ID": "r",
    }


def test_a_hook_sees_the_value_of_its_run_and_not_the_workers() -> None:
    """What is nearer to the run comes later: the worker's variable, the plugin's value, the engine's word."""
    environ = {"PATH": "/bin", "WGET_AGENT": "worker", "WGET_BINARY": "worker"}
    config = read_plugin_config("wget", {**_WGET, "x-env": ["WGET_AGENT", "WGET_BINARY"]})
    values = config.resolve({"WGET_AGENT": "run"}, environ)
    seen = hook_environment(config, values, engine={"WGET_BINARY": "engine"}, environ=environ)
    assert (seen["WGET_AGENT"], seen["WGET_BINARY"]) == ("run", "engine")


@pytest.mark.parametrize("name", ["DATABASE_URL", "WGET_AGENT"])
def test_a_plugin_that_asks_for_the_dsn_is_refused(name: str) -> None:
    """By whatever name it is known."""
    dsn = "postgresql://shop:secret@localhost/shop"
    config = read_plugin_config("wget", {**_WGET, "x-env": ["DATABASE_URL"]})
    environ = {name: f"{dsn}?sslmode=require"}
    with pytest.raises(PluginConfigError, match=f"plugin wget, {name}: holds the engine's database URL"):
        hook_environment(config, config.resolve({}, environ), engine={}, environ=environ, dsns=[dsn])


def test_a_value_that_no_variable_can_hold_is_refused() -> None:
    """By its name, before a hook is started with half of it."""
    config = read_plugin_config("wget", {"properties": {"WGET_AGENT": {"type": "string"}}})
    values = PluginValues({"WGET_AGENT": "half\0lost"}, None, None)
    with pytest.raises(PluginConfigError, match="plugin wget, WGET_AGENT: holds a NUL"):
        hook_environment(config, values, engine={}, environ={})
