"""Node modules and models that open jobs and documents ask for, and the code does not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from queue_workflows.config import EngineConfig
from queue_workflows.engine.deploy.findings import Finding, Level
from queue_workflows.engine.registry.node_modules import ModuleResolver
from queue_workflows.errors import QwfError
from queue_workflows.gpu.models import ModelRegistry
from queue_workflows.repositories.reports.open_work import Named, OpenWork, OpenWorkRepository

# Why a name cannot be used; None where it can.
Trouble = Callable[[str], str | None]


def modules_in_need(
    open_work: OpenWorkRepository,
    found: Collection[OpenWork],
    documents: Collection[Named],
    config: EngineConfig,
) -> Iterator[Finding]:
    """Open jobs and nodes ahead with a module or model that the code does not have, or has broken."""
    modules = {one.name for one in found if one.name} | {one.module for one in documents if one.module}
    models = {one.model for one in found if one.model} | {one.model for one in documents if one.model}
    if config.node_resolver is None and config.node_module_package is None:
        yield from _unseen("modules", "this wiring says of no node module", modules, found)
    else:
        trouble = _module_trouble(ModuleResolver.of(config))
        yield from _told("module", modules, trouble, open_work, [(one.name, one) for one in found])
    wanting = [one for one in found if one.model]
    if config.model_registrar is None:
        yield from _unseen("models", "this wiring registers no model", models, wanting)
        return
    known = set(ModelRegistry(config.model_registrar).names())
    if not known:
        # One that lists what is on the machine knows nothing where the deploy is checked.
        yield from _unseen("models", "the registrar names none here", models, wanting)
    else:
        yield from _told(
            "model", models, _model_trouble(known), open_work, [(one.model, one) for one in found]
        )


def _module_trouble(resolver: ModuleResolver) -> Trouble:
    def look(name: str) -> str | None:
        try:
            work = resolver.look(name)
        except QwfError as broken:
            return f"{broken.message}: jobs of it would fail"
        return None if work else f"the code has no node module {name!r}: jobs of it would be put on hold"

    return look


def _model_trouble(known: Collection[str]) -> Trouble:
    def look(name: str) -> str | None:
        return (
            None if name in known else f"the code registers no model {name!r}: jobs that need it would fail"
        )

    return look


def _told(
    kind: str,
    names: Collection[str],
    trouble: Trouble,
    open_work: OpenWorkRepository,
    jobs: Iterable[tuple[str | None, OpenWork]],
) -> Iterator[Finding]:
    wrong = {name: said for name in sorted(names) if (said := trouble(name)) is not None}
    if not wrong:
        return
    counted: Counter[str] = Counter()
    first: dict[str, int] = {}
    for name, one in jobs:
        if name in wrong:
            counted[name] += one.jobs
            first[name] = min(one.first, first.get(name, one.first))
    for name, number in sorted(counted.items()):
        yield Finding(Level.BREAKS, kind, name, wrong[name], number, example=f"node:{first[name]}")
    for ahead in open_work.ahead(kind, wrong):
        yield Finding(
            Level.BREAKS,
            "document",
            ahead.name,
            f"runs of {ahead.workflow} come to a node with the {kind} {ahead.name!r}: {wrong[ahead.name]}",
            ahead.runs,
            of="run",
            example=ahead.example,
        )


def _unseen(kind: str, said: str, names: Collection[str], found: Iterable[OpenWork]) -> Iterator[Finding]:
    if names:
        yield Finding(
            Level.UNSEEN,
            kind,
            ", ".join(sorted(names)[:5]),
            f"{said}: jobs and runs that ask for {len(names)} were not looked at",
            sum(one.jobs for one in found),
        )
