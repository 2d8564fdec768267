"""What becomes of a worker that has ended."""

from __future__ import annotations

import signal

import pytest

from queue_workflows.errors import ExitCode
from queue_workflows.host.processes.harden import ASKED, RETIRE
from queue_workflows.roles.supervisor.restarts import Next, Restarts, acted_on, crashed, describe
from queue_workflows.roles.supervisor.slots import WorkerSpec


def follows(status: int, *options: str, lived_s: float = 5, deaths: int = 0, chance: float = 1.0):
    last_ends = WorkerSpec("fetch", options).last_ends
    return Restarts().after(status, lived_s=lived_s, deaths=deaths, last_ends=last_ends, chance=chance)


def test_the_first_death_is_made_good_at_once_and_the_next_ones_wait_twice_as_long_each():
    """A job may wait for the one worker; a worker that dies again and again must not burn the machine."""
    delays, deaths = [], 0
    for _ in range(10):
        after = follows(-signal.SIGKILL, deaths=deaths)
        delays.append(after.delay_s)
        deaths = after.deaths
    assert delays == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_chance_spreads_restarts_over_half_the_delay():
    """A hundred workers that died of one cause do not come back in one moment."""
    assert [follows(1, deaths=3, chance=chance).delay_s for chance in (0.0, 0.5, 1.0)] == [2.0, 3.0, 4.0]


def test_a_worker_that_lived_a_minute_starts_from_nothing_again():
    """What it died of before is over."""
    assert follows(-signal.SIGKILL, lived_s=60, deaths=7) == Next(0.0, 1)
    assert follows(-signal.SIGKILL, lived_s=59, deaths=7).delay_s == 60


@pytest.mark.parametrize("code", [ExitCode.USAGE, ExitCode.CONFIGURATION, ExitCode.SCHEMA])
def test_what_only_a_change_can_mend_is_tried_slowly_from_the_first_time_on(code):
    """Once in half a minute to a minute."""
    assert [follows(code, chance=chance).delay_s for chance in (0.0, 1.0)] == [30, 60]


def test_a_worker_that_was_told_to_finish_is_not_replaced_when_it_has():
    """With --drain or --once; but it is when it died."""
    for option in ("--drain", "--once"):
        assert follows(ExitCode.DONE, option).delay_s is None
        assert follows(-signal.SIGKILL, option).delay_s == 0


@pytest.mark.parametrize("code", [ExitCode.WALL_CLOCK, ExitCode.STALL])
def test_a_watchdogs_end_of_the_one_job_is_the_last(code):
    """A worker of --once has had its job, which is tried again by others; one that drains goes on."""
    assert follows(code, "--once").delay_s is None
    assert follows(code, "--drain").delay_s == 0


def test_a_worker_that_ended_well_is_replaced_at_once_however_often():
    """Somebody renews workers one by one, or each does one short job: then one about each second."""
    assert follows(ExitCode.DONE, lived_s=2, deaths=9) == Next(0.0)
    after = Next(0.0)
    for _ in range(10):
        after = follows(ExitCode.DONE, lived_s=0.2, deaths=after.deaths)
        assert after == Next(1.0)
    assert follows(-signal.SIGKILL, deaths=after.deaths).delay_s == 0


def test_a_worker_that_the_operator_switched_off_waits_for_him():
    """A restart would go against his wish."""
    assert follows(ExitCode.STOPPED).parked
    assert not follows(ExitCode.FAILED).parked


@pytest.mark.parametrize(
    ("status", "is_crash"),
    [
        (-signal.SIGKILL, True),
        (-signal.SIGSEGV, True),
        (ExitCode.FAILED, True),
        (ExitCode.WALL_CLOCK, True),
        (ExitCode.STALL, True),
        (42, True),
        (ExitCode.DONE, False),
        (ExitCode.STOPPED, False),
        (ExitCode.UNREACHABLE, False),
        (ExitCode.DEADLINE, False),
        (ExitCode.CONFIGURATION, False),
        (ExitCode.SCHEMA, False),
        (ExitCode.LEASE_LOST, False),
        (ExitCode.TERMINATED, False),
        (ExitCode.INTERRUPTED, False),
        (-signal.SIGTERM, True),
        (-signal.SIGINT, True),
        (-signal.SIGHUP, True),
    ],
)
def test_only_an_end_that_a_job_may_have_caused_is_a_crash(status, is_crash):
    """A deploy, the operator and an outage make no poison of healthy jobs."""
    assert crashed(status) is is_crash


@pytest.mark.parametrize("status", [*range(256), *(-number for number in sorted(signal.valid_signals()))])
def test_an_end_that_our_code_did_not_choose_is_a_crash(status):
    """Whatever its number says elsewhere: nothing is parked, tried slowly or through with its work for it."""
    acted = acted_on(status, chosen=False)
    assert crashed(acted)
    for option in ("--drain", "--once"):
        assert follows(acted, option) == Next(0.0, 1)
    assert acted_on(status, chosen=True) == status


def test_ends_are_told_in_words():
    """The log says what a number means."""
    assert describe(-signal.SIGKILL) == "killed by SIGKILL"
    assert describe(-64) == "killed by SIGRTMAX"
    assert describe(-50) == "killed by signal 50"
    assert describe(-RETIRE) == describe(-ASKED) == "ended as it was told to, before it had begun"
    assert (
        describe(ExitCode.SCHEMA) == "ended with 79 (The database's schema is behind or ahead of this code)"
    )
    assert describe(42) == "ended with 42"
    assert describe(78, chosen=False) == "ended with 78 unannounced, as by os._exit() in a job"
    assert describe(-signal.SIGTERM, chosen=False) == "killed by SIGTERM"
