"""Node modules: what a name in a row can reach, what it cannot, and what happens to a broken module."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rows.claimed_jobs import context, node_job

from queue_workflows import set_invoke_context, set_node_module_package, set_node_resolver
from queue_workflows.config import current_config
from queue_workflows.engine.execution.executor import execute
from queue_workflows.engine.outcomes import Completed, Failed
from queue_workflows.engine.registry.node_modules import ModuleResolver
from queue_workflows.errors import ConfigurationError

MODULES = {
    "__init__": "import os\n",
    "plan": "def run(inputs):\n    return {'plan': inputs['brief']}\n",
    "film/__init__": "",
    "film/cut": "async def run(inputs, *, ctx):\n    return {'node': ctx.node_id}\n",
    "_private": "def run(inputs): return {}\n",
    "film/__hidden": "def run(inputs): return {}\n",
    "broken": "raise RuntimeError('no codec')\n",
    "leaving": "import sys\nsys.exit('bye')\n",
    "needs": "import no_such_module_anywhere\n",
    "syntax": "def run(:\n",
    "empty": "",
    "odd": "run = 3\n",
    "wrong": "def run(inputs, other): return {}\n",
    "none": "def run(): return {}\n",
    "kind": "class run:\n    pass\n",
    "yields": "def run(inputs):\n    yield {}\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A host app's package of node modules."""
    name = "shop_nodes"
    for path, source in MODULES.items():
        file = tmp_path / name / f"{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    (tmp_path / "outside.py").write_text("def run(inputs): return {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for module in [each for each in sys.modules if each.partition(".")[0] in {name, "outside"}]:
        del sys.modules[module]


def executed(resolver: ModuleResolver, name: str, **given: Any) -> Any:
    job = node_job(node_module=name)
    work = resolver.find(name)
    assert work is not None
    return execute(job, work, context(job, **given))


def failure(resolver: ModuleResolver, name: str) -> dict[str, Any]:
    outcome = executed(resolver, name)
    assert isinstance(outcome, Failed)
    return json.loads(outcome.error)


def test_modules_below_the_package_are_found(package: str):
    """By their path below it, sync or async."""
    resolver = ModuleResolver(package=package)
    assert executed(resolver, "plan") == Completed('{"plan":"a film"}')
    assert executed(resolver, "film.cut") == Completed('{"node":"plan"}')


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "absent",
        "film.absent",
        "plan.absent",
        "os",
        "os.path",
        "outside",
        "shop_nodes",
        "shop_nodes.plan",
        ".plan",
        "..outside",
        "film..cut",
        "film.",
        "_private",
        "film.__hidden",
        "__init__",
        "plan.__builtins__",
        "plan\n",
        "plan;os",
        "plan os",
        "film/cut",
        "../outside",
        "plän",
        "a" * 10_000,
        "a." * 2_000 + "a",
    ],
)
def test_nothing_else_is_reached(package: str, name: str | None):
    """Not the package itself, its private parts, what it imported, or anything beside it: all unknown."""
    before = set(sys.modules)
    assert ModuleResolver(package=package).find(name) is None
    assert {module for module in set(sys.modules) - before if not module.startswith(package)} == set()


def test_without_a_package_nothing_is_imported(package: str):
    """A host app that allowed nothing has no node modules."""
    assert ModuleResolver().find("plan") is None
    assert package not in sys.modules


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("broken", "NodeModuleError", "'broken' cannot be imported: RuntimeError in shop_nodes.broken"),
        ("leaving", "NodeModuleError", "'leaving' cannot be imported: SystemExit"),
        ("needs", "NodeModuleError", "'needs' cannot be imported: ModuleNotFoundError"),
        ("syntax", "NodeModuleError", "'syntax' cannot be imported: SyntaxError"),
        ("empty", "ConfigurationError", "'empty' has no function `run`"),
        ("odd", "ConfigurationError", "'odd' is of type int"),
        ("wrong", "ConfigurationError", "'wrong': nobody gives it `other`"),
        ("none", "ConfigurationError", "'none' takes no inputs"),
        ("kind", "ConfigurationError", "'kind' is a class"),
        ("yields", "ConfigurationError", "'yields' is a generator function"),
    ],
)
def test_a_broken_module_is_its_jobs_failure(package: str, name: str, kind: str, says: str):
    """With the module named and the cause in the traceback; the worker lives, and the job may be retried."""
    entry = failure(ModuleResolver(package=package), name)
    assert entry["type"] == f"queue_workflows.errors.{kind}"
    assert says in entry["message"]
    if name == "broken":
        assert "RuntimeError: no codec" in entry["traceback"]


def test_a_module_that_was_mended_runs(package: str, tmp_path: Path):
    """A failed import is tried again with the next job."""
    resolver = ModuleResolver(package=package)
    failure(resolver, "broken")
    (tmp_path / package / "broken.py").write_text("def run(inputs):\n    return {'mended': True}\n")
    assert executed(resolver, "broken") == Completed('{"mended":true}')


def test_a_package_that_went_away_is_a_failure():
    """Not a wait for a worker that has it: this deployment is broken."""
    entry = failure(ModuleResolver(package="no_such_package_of_ours"), "plan")
    assert "cannot be imported" in entry["message"]


def test_the_resolver_is_asked_first(package: str):
    """What it does not know is looked for in the package; what neither knows is unknown."""
    known = {
        "plan": lambda inputs: {"from": "resolver"},
        "mod": types.SimpleNamespace(run=lambda inputs: None),
    }
    resolver = ModuleResolver(resolver=known.get, package=package)
    assert executed(resolver, "plan") == Completed('{"from":"resolver"}')
    assert executed(resolver, "mod") == Completed("{}")
    assert executed(resolver, "film.cut") == Completed('{"node":"plan"}')
    assert resolver.find("absent") is None


def test_a_resolver_that_changes_its_mind_is_believed():
    """What it said before is not kept."""
    known: dict[str, Any] = {"plan": lambda inputs: {"is": 1}}
    resolver = ModuleResolver(resolver=known.get)
    assert executed(resolver, "plan") == Completed('{"is":1}')
    known["plan"] = lambda inputs: {"is": 2}
    assert executed(resolver, "plan") == Completed('{"is":2}')
    del known["plan"]
    assert resolver.find("plan") is None


def test_a_resolver_that_raises_is_the_jobs_failure():
    """Named as the resolver's, with its exception as the cause."""
    entry = failure(ModuleResolver(resolver={}.__getitem__), "plan")
    assert "the node resolver raised KeyError for 'plan'" in entry["message"]
    assert "returns None for what it does not know" in entry["message"]
    assert "KeyError: 'plan'" in entry["traceback"]


@pytest.mark.parametrize(
    ("run", "given"),
    [
        (lambda inputs: {"got": []}, []),
        (lambda inputs, ctx: {"got": [type(ctx).__name__]}, ["JobContext"]),
        (lambda inputs, *, model: {"got": [model]}, ["warm"]),
        (lambda inputs, status_callback=None: {"got": [status_callback.__name__]}, ["progress"]),
        (lambda inputs, **kw: {"got": sorted(kw)}, ["ctx", "model", "status_callback"]),
        (lambda inputs, other=3: {"got": [other]}, [3]),
        (lambda *inputs: {"got": [len(inputs)]}, [1]),
    ],
)
def test_a_module_gets_the_keywords_it_declares(run: Any, given: list[Any]):
    """And no others, so that an older module never meets a keyword it does not know."""
    outcome = executed(ModuleResolver(resolver=lambda name: run), "plan", model="warm")
    assert json.loads(outcome.result_json) == {"got": given}


def test_an_async_module_is_awaited():
    """`async def run` like any other."""

    async def run(inputs):
        await asyncio.sleep(0)
        return inputs

    assert executed(ModuleResolver(resolver=lambda name: run), "plan") == Completed('{"brief":"a film"}')


@pytest.mark.usefixtures("clean_config")
def test_the_setters_are_the_configuration(package: str):
    """What a host app sets is what a worker's resolver uses, and None takes it back."""
    set_node_module_package(package)
    set_node_resolver({"own": lambda inputs: None}.get)
    set_invoke_context(print)
    resolver = ModuleResolver.of(current_config())
    assert resolver.find("plan") is not None
    assert resolver.find("own") is not None
    assert current_config().invoke_context is print
    set_node_module_package(None)
    set_node_resolver(None)
    set_invoke_context(None)
    assert ModuleResolver.of(current_config()).find("plan") is None
    assert current_config().invoke_context is None


@pytest.mark.usefixtures("clean_config")
@pytest.mark.parametrize("wrong", ["", ".nodes", "a..b", "a b", "../a", "a;b", 3, "no_such_package_of_ours"])
def test_a_wrong_package_is_refused_at_once(wrong: Any):
    """A slip in the wiring does not become jobs that wait for ever."""
    with pytest.raises(ConfigurationError, match=r"set_node_module_package\("):
        set_node_module_package(wrong)
    assert current_config().node_module_package is None


@pytest.mark.usefixtures("clean_config")
@pytest.mark.parametrize("setter", [set_node_resolver, set_invoke_context])
def test_a_hook_is_a_function(setter: Any):
    """Anything else is refused where it is written."""
    with pytest.raises(ConfigurationError, match="must be a function of"):
        setter("plan")
