"""What a run begins with: a file that takes minutes would be waited for at the end.

A file is done by one process, unless it is named here as one whose tests stand apart from each other.
"""

from __future__ import annotations

# What their fixtures set up for the whole file takes longer than most of their tests. The first installs what
# files further down use; the image is built while the processor has other things to wait for.
WHOLE = (
    "test_plugin_suite.py",
    "test_two_commands.py",
    "test_container_image.py",
    "test_wheel.py",
    "test_archive_example.py",
)
# The longest tests stand in the first of them.
APART = (
    "test_mutants.py",
    "test_random_workflows_for_real.py",
    "test_no_wake_is_lost.py",
    "test_the_agent_loses_no_wake.py",
    "test_docs_snippets.py",
    "test_plugin_suite_crawls.py",
    "test_plugin_suite_kills.py",
    "test_cli_queue_import.py",
    "test_demo.py",
    "test_bench.py",
    "test_chaos.py",
    "test_testing_plugin.py",
    "test_time_limits.py",
    "test_at_most_once_begins_once.py",
    "test_a_kill_at_any_moment.py",
    "test_embedded.py",
    "test_worker.py",
    "test_supervisor.py",
    "test_host_chain.py",
    "test_round_trip.py",
)

_RANKS = {file: at for at, file in enumerate((*WHOLE, *APART))}


def rank(file: str) -> int:
    """Where a file stands in the order of a run; those that are not named here stand together."""
    return _RANKS.get(file, len(_RANKS))
