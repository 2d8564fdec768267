"""Finding a workflow by its name: the host app's function first, then the directory of documents.

A document that names a `pipeline` gets its list of nodes from the host app's pipeline schema; what the
document says of a node may fill in what the pipeline left open, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from queue_workflows.config import EngineConfig, PipelineSchema, current_config
from queue_workflows.errors import ConfigurationError, DocumentError, Problem, UnknownWorkflow
from queue_workflows.workflow.document.flaws import Flaw
from queue_workflows.workflow.document.load import (
    Document,
    Source,
    WorkflowNode,
    document_of,
    read_source,
    refusal,
)
from queue_workflows.workflow.references.references import near

SUFFIXES: Final = (".yaml", ".yml", ".json")
# What may become the name of a file: no separators, nothing hidden, nothing that leads out of the directory.
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def find_document(name: str, config: EngineConfig | None = None) -> Document:
    """The document of a workflow; `UnknownWorkflow` if nobody has it, `DocumentError` if it is wrong."""
    config = config or current_config()
    source = None
    if config.load_workflow is not None:
        source = config.load_workflow(name)
    if source is None:
        source = _file_of(name, config.workflow_dir)
    if source is None:
        raise UnknownWorkflow(name, advice=_advice(name, config))
    return complete_document(source, name=name, config=config)


def complete_document(
    source: Document | Mapping[str, Any] | str | Path,
    *,
    name: str | None = None,
    config: EngineConfig | None = None,
) -> Document:
    """As `load_document`, with the nodes of the pipeline that the document names."""
    if isinstance(source, Document):
        source = source.snapshot()
    if not isinstance(source, Mapping | str | Path):
        raise ConfigurationError(
            f"load_workflow({name!r}) gave a {type(source).__name__}",
            advice="it returns a dict, a text, a pathlib.Path, or None for what it does not know",
        )
    fallback = source.stem if name is None and isinstance(source, Path) else name
    read = read_source(source, name=fallback)
    if read.data.get("pipeline") is not None:
        read = _with_pipeline(read, (config or current_config()).pipeline_schema)
    return document_of(read, name=name)


def unknown_workflows(document: Document, config: EngineConfig | None = None) -> list[Problem]:
    """The nodes of a document that would start a workflow that nobody has, or one with a wrong document.

    For a look beforehand: a run asks when it comes to the node. Without any provider nothing can be told.
    """
    config = config or current_config()
    if config.load_workflow is None and config.workflow_dir is None:
        return []
    nodes = (node for node in document.nodes if isinstance(node, WorkflowNode) and node.tree is None)
    children = {node.id: node.workflow for node in nodes}
    wrong: dict[str, str] = {}
    for name in dict.fromkeys(children.values()):
        try:
            if name != document.name:
                find_document(name, config)
        except (UnknownWorkflow, DocumentError) as refused:
            wrong[name] = str(refused)
    return [Problem(wrong[name], node_id, "workflow") for node_id, name in children.items() if name in wrong]


def workflow_names(config: EngineConfig | None = None) -> list[str]:
    """The names of the documents in the directory; what a host app's function knows, it alone knows."""
    directory = (config or current_config()).workflow_dir
    if directory is None or not directory.is_dir():
        return []
    files = (path for path in directory.iterdir() if path.suffix in SUFFIXES and path.is_file())
    return sorted({path.stem for path in files if _FILE_NAME.fullmatch(path.stem)})


def _file_of(name: str, directory: Path | None) -> Path | None:
    if directory is None or not _FILE_NAME.fullmatch(name):
        return None
    files = [path for suffix in SUFFIXES if (path := directory / f"{name}{suffix}").is_file()]
    if len(files) > 1:
        raise ConfigurationError(
            f"the workflow {name!r} has more than one document: {', '.join(map(str, files))}",
            advice="keep one of them",
        )
    return files[0] if files else None


def _advice(name: str, config: EngineConfig) -> str:
    if config.load_workflow is None and config.workflow_dir is None:
        return "set_workflow_provider(…) or set_workflow_dir(…), in the module that --app or QWF_APP names"
    known = workflow_names(config)
    hint = near(name, known).removeprefix("; ")
    if hint or not known:
        return hint or "the host app's load_workflow does not know it"
    return f"{config.workflow_dir} has {', '.join(known[:10])}{' and more' if len(known) > 10 else ''}"


def _with_pipeline(source: Source, schema: PipelineSchema | None) -> Source:
    """The source with the pipeline's nodes; places in the text would name other nodes, so it goes."""
    pipeline = source.data["pipeline"]
    place = ("pipeline",)
    if not isinstance(pipeline, str):
        raise refusal(source, [Flaw(place, "must be the name of a pipeline")])
    if schema is None:
        said = f"names {pipeline!r}, and no pipeline_schema is set with set_workflow_provider(…)"
        raise refusal(source, [Flaw(place, said)])
    owned = schema(pipeline)
    if owned is None:
        raise refusal(source, [Flaw(place, f"there is no pipeline {pipeline!r}")])
    if not isinstance(owned, list | tuple) or not all(map(_has_id, owned)):
        raise ConfigurationError(
            f"pipeline_schema({pipeline!r}) must give a list of nodes, each a dict with an id",
            advice="as they stand in a document: [{'id': 'plan', 'module': 'planner'}, …]",
        )
    filled: dict[str, dict[str, Any]] = {node["id"]: dict(node) for node in owned}
    flaws = list(_fill_in(filled, source.data.get("nodes", []), pipeline))
    if flaws:
        raise refusal(source, flaws)
    return read_source(source.data | {"nodes": list(filled.values())})._replace(file=source.file)


def _has_id(node: Any) -> bool:
    return isinstance(node, dict) and isinstance(node.get("id"), str)


def _fill_in(owned: dict[str, dict[str, Any]], said: Any, pipeline: str) -> Iterator[Flaw]:
    """Put what a document says of the pipeline's nodes into them; yields what it may not say."""
    if not isinstance(said, list):
        yield Flaw(("nodes",), "must be a list")
        return
    for at, node in enumerate(said):
        node_id = node.get("id") if isinstance(node, dict) else None
        if node_id not in owned:
            hint = near(str(node_id), owned)
            yield Flaw(("nodes", at, "id"), f"the pipeline {pipeline!r} has no node {node_id!r}{hint}")
            continue
        for field, value in node.items():
            yield from _fill_field(owned[node_id], field, value, ("nodes", at, field), pipeline)


def _fill_field(
    node: dict[str, Any], field: str, value: Any, place: tuple[str | int, ...], pipeline: str
) -> Iterator[Flaw]:
    """One field, or the keys of one that both have, such as `inputs`."""
    owned = node.get(field)
    if field not in node:
        node[field] = value
    elif isinstance(owned, dict) and isinstance(value, dict):
        node[field] = inner = dict(owned)
        for key, child in value.items():
            yield from _fill_field(inner, key, child, (*place, key), pipeline)
    elif owned != value:
        yield Flaw(place, f"is fixed by the pipeline {pipeline!r}")
