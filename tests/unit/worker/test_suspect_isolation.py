"""When a crew empties its hands for a suspect, without a clock."""

from __future__ import annotations

from queue_workflows.roles.worker.concurrent.suspect_isolation import SuspectIsolation


def test_it_looks_once_per_poll() -> None:
    """And wants nothing while there is no suspect at the head."""
    suspect_isolation = SuspectIsolation(1.0)
    assert suspect_isolation.must_look(5.0)
    suspect_isolation.seen(False, 5.0)
    assert not suspect_isolation.must_look(5.9)
    assert suspect_isolation.must_look(6.0)
    assert not suspect_isolation.is_wanted


def test_it_is_wanted_until_it_was_had() -> None:
    """Then it looks again as before."""
    suspect_isolation = SuspectIsolation(1.0)
    suspect_isolation.seen(True, 5.0)
    assert suspect_isolation.is_wanted
    assert not suspect_isolation.lost_patience(5.5)
    suspect_isolation.had()
    assert not suspect_isolation.is_wanted


def test_a_long_job_beside_it_costs_a_fifth_and_the_wait_ends() -> None:
    """Each time it is twice as patient, and works four times as long in between."""
    suspect_isolation, now, idle, longest = SuspectIsolation(1.0), 0.0, 0.0, 100.0
    while True:
        assert suspect_isolation.must_look(now)
        suspect_isolation.seen(True, now)
        begun = now
        while suspect_isolation.is_wanted and now - begun < longest:
            now += 0.5
            suspect_isolation.lost_patience(now)
        idle += now - begun
        if suspect_isolation.is_wanted:
            break
        while not suspect_isolation.must_look(now):
            now += 0.5
    assert now < 10 * longest
    assert (idle - longest) / now < 0.25
