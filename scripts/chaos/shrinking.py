"""From a history that fails to a small one that still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chaos.histories import History

Judge = Callable[[History], tuple[list[str], Any]]


def kinds_of(violations: list[str]) -> set[str]:
    """What a violation is called, without what it is of."""
    return {one.split(":", 1)[0] for one in violations}


def shrunk(
    history: History, violations: list[str], judge: Judge, *, times: int, say: Callable[[str], None]
) -> tuple[History, list[str]]:
    """The smallest that was found, and its violations; each candidate gets so many chances to fail."""
    wanted = kinds_of(violations)

    def fails(candidate: History) -> list[str]:
        for _ in range(times):
            found, _seen = judge(candidate)
            if kinds_of(found) & wanted:
                return found
        return []

    small, last = history, violations
    for parts, rebuild in ((_steps, _with_steps), (_jobs, _with_jobs)):
        kept = parts(small)
        size = max(1, len(kept) // 2)
        while kept:
            begin = 0
            while begin < len(kept):
                fewer = kept[:begin] + kept[begin + size :]
                candidate = rebuild(small, fewer)
                if found := fails(candidate):
                    kept, small, last = fewer, candidate, found
                    say(f"{len(small.steps)} steps, {len(small.jobs())} jobs: {found[0][:100]}")
                else:
                    begin += size
            if size == 1:
                break
            size //= 2
    return small, last


def _steps(history: History) -> list[Any]:
    return history.steps


def _with_steps(history: History, steps: list[Any]) -> History:
    return replace(history, steps=steps)


def _jobs(history: History) -> list[Any]:
    """The jobs by name, and the nodes of runs by theirs."""
    return [job["name"] for step in history.steps for job in step.get("jobs", [])]


def _with_jobs(history: History, names: list[Any]) -> History:
    kept = set(names)
    steps = []
    for step in history.steps:
        if "jobs" not in step:
            steps.append(step)
        elif jobs := [job for job in step["jobs"] if job["name"] in kept]:
            steps.append({**step, "jobs": jobs})
    return replace(history, steps=steps)
