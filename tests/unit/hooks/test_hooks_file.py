"""What a directory of plugins says of all of them, in its `hooks.toml`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from queue_workflows.errors import ExitCode, HookError
from queue_workflows.hooks.plugins.cache import PluginCache
from queue_workflows.hooks.plugins.hooks_file import TEMPLATE_NAMES, HooksFile, load_hooks_file
from queue_workflows.hooks.readiness import Readiness

_WHOLE = """
order = "strict"
descendants = "leave"
max_open_runs = 3
setup = {Page = "SiteSetup", Site = false}
shared_directory = true

[env]
PAGE_DIR = "{run_dir}"
CACHE_DIR = "{data_dir}/cache"
LEVEL = 3
CONTEXT = {run = "{run}", far = "{depth}", named = ["{plugin}/{hook}"]}
BRACES = "{{}}"

[providers]
event = "BinaryRequest"
names = ["env", "pip"]

[ready]
browser = {file = "session.json"}
"browser/on_Page__20_tab.bg.js" = {line = "^open$", within_s = 30}
"""


def _written(place: Path, text: str) -> Path:
    (place / "hooks.toml").write_text(text)
    return place


def test_a_directory_without_the_file_says_nothing(tmp_path: Path) -> None:
    """So does an empty one."""
    assert load_hooks_file(tmp_path) == HooksFile()
    assert load_hooks_file(_written(tmp_path, "")) == HooksFile()


def test_everything_in_the_file_is_read(tmp_path: Path) -> None:
    """The order, the variables, the event of the providers and which of them there are."""
    found = load_hooks_file(_written(tmp_path, _WHOLE))
    assert (found.order, found.descendants, found.max_open_runs, found.provider_event, found.providers) == (
        "strict",
        "leave",
        3,
        "BinaryRequest",
        ("env", "pip"),
    )
    assert found.shared_directory is True
    assert [found.setup_of(event) for event in ("Page", "Site", "Other")] == ["SiteSetup", False, None]
    assert found.ready == {
        "browser": Readiness(file="session.json"),
        "browser/on_Page__20_tab.bg.js": Readiness(line="^open$", within_s=30),
    }
    assert found.names == {"run_dir", "data_dir", "run", "depth", "plugin", "hook"}


def test_templates_are_filled_for_each_attempt(tmp_path: Path) -> None:
    """A text is a text; a table is JSON, in which a name that stands alone keeps its type."""
    found = load_hooks_file(_written(tmp_path, _WHOLE))
    known: dict[str, Any] = {name: name for name in found.names} | {"run_dir": "/r/{run}", "depth": 2}
    made = found.environment(known)
    assert json.loads(made.pop("CONTEXT")) == {"run": "run", "far": 2, "named": ["plugin/hook"]}
    assert made == {"PAGE_DIR": "/r/{run}", "CACHE_DIR": "data_dir/cache", "LEVEL": "3", "BRACES": "{}"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('ordre = "strict"', "nobody knows ordre; there are order, descendants, max_open_runs, setup, sha"),
        ('order = "names"', 'order must be "steps" or "strict", not \'names\''),
        ("order = 5", 'order must be "steps" or "strict", not 5'),
        ('order = {Page = "names"}', 'order.Page must be "steps" or "strict", not \'names\''),
        ('order = {Page = ["strict"]}', 'order.Page must be "steps" or "strict"'),
        ('order = ["steps"]', 'order must be "steps" or "strict"'),
        ('descendants = "some"', 'descendants must be "wait" or "leave", not \'some\''),
        ("max_open_runs = 0", "max_open_runs must be a whole number from 1, not 0"),
        ("setup = true", "setup must be the name of an event, in letters and digits, or false, not True"),
        ('setup = ""', "setup must be the name of an event"),
        (
            "setup = {Page = 5}",
            "setup.Page must be the name of an event, in letters and digits, or false, not 5",
        ),
        ('setup = {Page = ["SiteSetup"]}', "setup.Page must be the name of an event"),
        ('setup = ["SiteSetup"]', "setup must be the name of an event"),
        ("shared_directory = 1", "shared_directory must be true or false, not 1"),
        ('background_timeouts = "kill"', 'background_timeouts must be "limit" or "grace", not \'kill\''),
        ("background_timeouts = [1]", 'background_timeouts must be "limit" or "grace", not [1]'),
        ("ready = 5", "ready must be a table of plugins or hooks, as in [ready]"),
        ("[ready]\na = {}", 'ready.a: must have one of "file", "line" and "port"'),
        ("[ready]\na = {file = '../x'}", "ready.a: must have as file a path below the hook's directory"),
        ("env = 5", "env must be a table of variables"),
        ("[env]\nDAY = 2020-01-01", "env.DAY: must be a text without NUL, a number"),
        ("[env]\nHALF = nan", "env.HALF: must be a text without NUL, a number"),
        ('[env]\nQWF_DB_URL = "x"', "env.QWF_DB_URL: no name for a variable"),
        ('[env]\nPGPASSWORD = "x"', "env.PGPASSWORD: no name for a variable"),
        ('[env]\n"1" = "x"', "env.1: no name for a variable"),
        ('[env]\nA = "{nowhere}"', "env.A: nobody knows {nowhere}; there are run_dir, root_run_dir"),
        ('[env]\nA = {b = ["{nowhere}"]}', "env.A: nobody knows {nowhere}"),
        ('[env]\nA = "{run_dir.parent}"', "env.A: nobody knows {run_dir.parent}"),
        ('[env]\nA = "{run_dir!r}"', "env.A: nobody knows {run_dir!r}"),
        ('[env]\nA = "{run_dir:>9}"', "env.A: nobody knows {run_dir:>9}"),
        ('[env]\nA = "{}"', "env.A: nobody knows {}"),
        ('[env]\nA = "{"', "env.A: '{' is no template"),
        ('[env]\nA = "a\\u0000"', "env.A: must be a text without NUL"),
        ("providers = 5", "providers must be a table"),
        ('[providers]\nnam = "x"', "nobody knows providers.nam; there are providers.event, providers.names"),
        ('[providers]\nevent = "a-b"', "providers.event must be the name of an event"),
        ("[providers]\nevent = 5", "providers.event must be the name of an event"),
        ('[providers]\nnames = "env"', "providers.names must be a list of names"),
        ('[providers]\nnames = ["Env"]', "providers.names: 'Env' is no provider"),
        ('[providers]\nnames = ["env", "env"]', "each provider once"),
        ("[providers]\nnames = []", "at least one"),
        ("order", "not valid TOML"),
        ("a = " + "[" * 5_000, "not valid TOML"),
    ],
)
def test_what_is_wrong_is_one_error_that_names_the_file(tmp_path: Path, text: str, said: str) -> None:
    """And what to do; the exit code is that of a configuration."""
    with pytest.raises(HookError) as caught:
        load_hooks_file(_written(tmp_path, text))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/hooks.toml: ")
    assert said in message
    assert message.endswith(f"— correct {tmp_path}/hooks.toml")
    assert "\n" not in message
    assert caught.value.exit_code == ExitCode.CONFIGURATION


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """Neither a FIFO, nor something endless, nor bytes that are no text hold anybody up."""
    os.mkfifo(tmp_path / "hooks.toml")
    with pytest.raises(HookError, match=r"make .*/hooks.toml readable"):
        load_hooks_file(tmp_path)
    os.unlink(tmp_path / "hooks.toml")
    (tmp_path / "hooks.toml").write_bytes(b"#" * 1_048_577)
    with pytest.raises(HookError, match="larger than 1,048,576 bytes"):
        load_hooks_file(tmp_path)
    (tmp_path / "hooks.toml").write_bytes(b'order = "\xff"')
    with pytest.raises(HookError, match="not valid TOML"):
        load_hooks_file(tmp_path)


def test_every_name_of_a_template_is_explained() -> None:
    """In the documentation, for whoever writes one."""
    page = Path(__file__).parents[3] / "docs" / "reference" / "hook-scripts.md"
    section = page.read_text().partition("## `hooks.toml`")[2].partition("\n## ")[0]
    assert [name for name in TEMPLATE_NAMES if f"`{name}`" not in section] == []


def test_what_names_something_unknown_here_is_left_out(tmp_path: Path) -> None:
    """As for a hook that installs a program, which belongs to no run."""
    found = load_hooks_file(_written(tmp_path, '[env]\nA = "{data_dir}"\nB = {c = "{run}"}\n'))
    assert found.environment({"data_dir": "/d"}) == {"A": "/d"}


def test_a_worker_reads_a_changed_file_again(tmp_path: Path) -> None:
    """What was read before counts only as long as the file is the same."""
    shelf = PluginCache([tmp_path])
    assert shelf.hooks_file(tmp_path / "title") == HooksFile()
    _written(tmp_path, 'order = "strict"')
    assert shelf.hooks_file(tmp_path / "title").order == "strict"
