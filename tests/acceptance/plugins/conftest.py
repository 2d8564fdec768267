"""A public suite of plugins, installed once a run, and the site that it archives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.servers.site import serving_site
from support.stages.plugin_suite import PluginSuite, installed_once, plugin_suite


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The site that is archived."""
    with serving_site() as address:
        yield address


@pytest.fixture(scope="module")
def new_suite(qwf_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., PluginSuite]]:
    """Starts the suite, with other directories of plugins beside it, on a worker of at most three browsers.

    The suite that it started before ends then.
    """
    own = tmp_path_factory.getbasetemp()
    plugins = installed_once(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)
    with ExitStack() as running:

        def new(*others: Path) -> PluginSuite:
            running.close()
            data = tmp_path_factory.mktemp("data")
            made = running.enter_context(plugin_suite(qwf_dsn, [plugins, *others], data))
            made.work("--concurrency", "4", "--max-background", "3")
            return made

        yield new
