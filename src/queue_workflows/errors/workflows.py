"""What is wrong with a document, a run, or what a node needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from queue_workflows.errors.base import ExitCode, QwfError


class NodeModuleError(QwfError):
    """A node module that is there cannot be used; the cause is chained."""

    def __init__(self, message: str, *, module: str, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.module = module


class ModelLoadFailed(QwfError):
    """A model that a job needs could not be loaded; the cause is chained."""

    def __init__(self, model: str, said: str) -> None:
        super().__init__(f"the model {model!r} could not be loaded: {said}")
        self.model = model


class InvokeContextError(QwfError):
    """What the host app put around its jobs failed, rather than the job; the cause is chained."""


class Problem(NamedTuple):
    """One thing that is wrong with a workflow document, and where."""

    said: str
    node: str | None = None
    field: str | None = None
    line: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        place = self.file or "the document"
        if self.line is not None:
            place += f":{self.line}" if self.file else f", line {self.line}"
        inside = [f"node {self.node!r}"] if self.node is not None else []
        if self.field:
            inside.append(f"field {self.field}")
        return f"{place}: {', '.join(inside)}{': ' if inside else ''}{self.said}"


class DocumentError(QwfError):
    """A workflow document is wrong; `problems` are all that was found, the message has the first few."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, problems: Sequence[Problem], *, advice: str | None = None) -> None:
        shown = [str(problem) for problem in problems[:3]]
        if len(problems) > len(shown):
            shown.append(f"and {len(problems) - len(shown):,} more, which `qwf run check` lists")
        super().__init__("; ".join(shown), advice=advice)
        self.problems = tuple(problems)


class HookError(QwfError):
    """Hooks cannot be found, told apart, or run; `problems` are all that was found, file by file."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, *problems: str, advice: str | None = None) -> None:
        super().__init__("; ".join(problems), advice=advice)
        self.problems = problems


class PluginConfigError(HookError):
    """A plugin's `config.json`, or a value that is set for it, is wrong; `key` is the one it is about."""

    def __init__(self, plugin: str, said: str, *, key: str | None = None, advice: str | None = None) -> None:
        about = f"plugin {plugin}, {key}: " if key else f"plugin {plugin}: "
        super().__init__(about + said, advice=advice or f"correct the config.json of {plugin}")
        self.plugin, self.key = plugin, key


class HookFailed(QwfError):
    """A hook's attempt failed so that it is to be tried again; `printed` is the end of what it said of it.

    `result_json` is what it has come to all the same, for the job that is not tried again.
    """

    def __init__(self, hook: str, how: str, printed: str, *, result_json: str | None = None) -> None:
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        super().__init__(f"{hook}: {how}{f': {lines[-1][:1000]}' if lines else ''}")
        self.hook, self.how, self.printed, self.result_json = hook, how, printed, result_json


class UnknownWorkflow(QwfError):
    """Nobody has a workflow of this name."""

    exit_code = ExitCode.USAGE

    def __init__(self, name: str, *, advice: str | None = None) -> None:
        super().__init__(f"there is no workflow {name!r}", advice=advice)
        self.name = name


class RefError(QwfError):
    """A reference of a node cannot be resolved: `where` is its place, `there` what is at hand instead."""

    def __init__(
        self,
        said: str,
        *,
        where: str,
        path: str | None = None,
        there: str | None = None,
        advice: str | None = None,
    ) -> None:
        shown = f"{where}: {f'`{path}`: ' if path else ''}{said}{f'; {there}' if there else ''}"
        super().__init__(shown, advice=advice)
        self.where, self.path, self.there = where, path, there


class UnknownRun(QwfError):
    """A run was asked about that is not there: it never was, is not committed yet, or was pruned."""

    exit_code = ExitCode.USAGE

    def __init__(self, run: object) -> None:
        super().__init__(f"there is no run {run}", advice="it never was, is not committed yet, or was pruned")
        self.run = str(run)


class UnknownNode(QwfError):
    """A run was asked about a node that its document does not have."""

    exit_code = ExitCode.USAGE

    def __init__(self, run: object, node: str) -> None:
        super().__init__(
            f"run {run} has no node {node!r:.80}", advice=f"`qwf run show {run}` lists its nodes"
        )
        self.run, self.node = str(run), node


class RunRefused(QwfError):
    """What was asked of a run does not go with its `status`, or its node's; nothing was changed."""

    def __init__(self, run: object, message: str, *, status: str, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.run, self.status = str(run), status
