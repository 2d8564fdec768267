"""When a crew empties its hands for a suspect, without a clock."""

from __future__ import annotations

from queue_workflows.roles.worker.concurrent.suspect_isolation import SuspectIsolation


def test_it_looks_once_per_poll() -> None:
    """And wants nothing while there is no suspect at the head."""
    solitude = SuspectIsolation(1.0)
    assert solitude.must_look(5.0)
    solitude.seen(False, 5.0)
    assert not solitude.must_look(5.9)
    assert solitude.must_look(6.0)
    assert not solitude.is_wanted


def test_it_is_wanted_until_it_was_had() -> None:
    """Then it looks again as before."""
    solitude = SuspectIsolation(1.0)
    solitude.seen(True, 5.0)
    assert solitude.is_wanted
    assert not solitude.lost_patience(5.5)
    solitude.had()
    assert not solitude.is_wanted


def test_a_long_job_beside_it_costs_a_fifth_and_the_wait_ends() -> None:
    """Each time it is twice as patient, and works four times as long in between."""
    solitude, now, idle, longest = SuspectIsolation(1.0), 0.0, 0.0, 100.0
    while True:
        assert solitude.must_look(now)
        solitude.seen(True, now)
        begun = now
        while solitude.is_wanted and now - begun < longest:
            now += 0.5
            solitude.lost_patience(now)
        idle += now - begun
        if solitude.is_wanted:
            break
        while not solitude.must_look(now):
            now += 0.5
    assert now < 10 * longest
    assert (idle - longest) / now < 0.25
