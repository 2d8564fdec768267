"""Finding workflows: the host app's function, the directory, and pipelines that own their nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queue_workflows import set_ref_resolver, set_workflow_dir, set_workflow_provider
from queue_workflows.config import EngineConfig, current_config
from queue_workflows.errors import ConfigurationError, DocumentError, UnknownWorkflow
from queue_workflows.workflow.document.load import load_document
from queue_workflows.workflow.providing import (
    complete_document,
    find_document,
    unknown_workflows,
    workflow_names,
)

pytestmark = pytest.mark.usefixtures("clean_config")

FILM = "nodes: [{id: plan, module: planner}]\n"
OWNED = [
    {"id": "fetch", "module": "fetch", "inputs": {"depth": 1}},
    {"id": "store", "module": "store", "depends_on": ["fetch"]},
]


def crawl(*nodes: dict[str, Any]) -> dict[str, Any]:
    return {"name": "crawl", "pipeline": "archive", "nodes": list(nodes)}


def config(**kwargs: Any) -> EngineConfig:
    return EngineConfig(**kwargs)


def test_a_document_is_found_by_its_name_in_the_directory(tmp_path: Path):
    """NAME.yaml, NAME.yml and NAME.json, in that spelling; the file's name is the workflow's."""
    for name in ("film.yaml", "short.yml", "long.json"):
        (tmp_path / name).write_text('{"nodes": [{"id": "a", "module": "m"}]}')
    (tmp_path / "notes.txt").write_text("")
    set_workflow_dir(tmp_path)
    assert [find_document(name).name for name in ("film", "short", "long")] == ["film", "short", "long"]
    assert workflow_names() == ["film", "long", "short"]


@pytest.mark.parametrize(
    "name", ["../film", "sub/film", "/etc/passwd", "film.yaml", ".film", "", "film\x00", "fil\n"]
)
def test_a_name_is_no_path(tmp_path: Path, name: str):
    """A name from a row or a command line reaches nothing outside the directory."""
    (tmp_path / "film.yaml").write_text(FILM)
    (tmp_path / "sub").mkdir()
    for elsewhere in ("film.yaml", "sub/film.yaml", ".film.yaml"):
        (tmp_path / elsewhere).write_text(FILM)
    inner = tmp_path / "inner"
    inner.mkdir()
    for directory in (tmp_path, inner):
        with pytest.raises(UnknownWorkflow):
            find_document(name, config(workflow_dir=directory))


def test_a_document_with_another_name_than_its_file(tmp_path: Path):
    """What a run is called leads back to its document."""
    (tmp_path / "film.yaml").write_text("name: movie\n" + FILM)
    with pytest.raises(
        DocumentError, match=r"film\.yaml:1: field name: is 'movie', and the document is known"
    ):
        find_document("film", config(workflow_dir=tmp_path))


def test_two_documents_of_one_name(tmp_path: Path):
    """Which one was meant is not guessed."""
    for suffix in ("yaml", "json"):
        (tmp_path / f"film.{suffix}").write_text(FILM)
    with pytest.raises(ConfigurationError, match="more than one document"):
        find_document("film", config(workflow_dir=tmp_path))


def test_the_host_apps_function_is_asked_first(tmp_path: Path):
    """It may return a dict, a text, a path or a Document; None sends the question on to the directory."""
    (tmp_path / "film.yaml").write_text(FILM)
    own = load_document(FILM, name="own")
    known: dict[str, Any] = {
        "dict": {"nodes": [{"id": "a", "module": "m"}]},
        "text": FILM,
        "film2": tmp_path / "film.yaml",
        "own": own,
    }
    set_workflow_provider(load_workflow=known.get)
    set_workflow_dir(tmp_path)
    found = {name: find_document(name) for name in (*known, "film")}
    assert [document.name for document in found.values()] == ["dict", "text", "film2", "own", "film"]
    assert found["own"] == own
    known["bad"] = 3
    with pytest.raises(ConfigurationError, match=r"load_workflow\('bad'\) gave a int"):
        find_document("bad")


def test_an_unknown_workflow_is_told_what_to_do(tmp_path: Path):
    """Wiring that is missing, or the name that was probably meant."""
    with pytest.raises(UnknownWorkflow, match=r"there is no workflow 'film' — set_workflow_provider"):
        find_document("film")
    (tmp_path / "film.yaml").write_text(FILM)
    with pytest.raises(UnknownWorkflow, match="did you mean 'film'"):
        find_document("flim", config(workflow_dir=tmp_path))
    with pytest.raises(UnknownWorkflow, match=r"has film$"):
        find_document("other", config(workflow_dir=tmp_path))


def test_a_pipeline_owns_the_list_of_nodes():
    """The document may fill in what the pipeline left open, key by key."""
    set_workflow_provider(pipeline_schema={"archive": OWNED}.get)
    document = complete_document(crawl({"id": "fetch", "timeout_s": 60, "inputs": {"url": "x"}}))
    assert [node.id for node in document.nodes] == ["fetch", "store"]
    assert document.snapshot()["nodes"][0] == {
        "id": "fetch",
        "module": "fetch",
        "inputs": {"depth": 1, "url": "x"},
        "timeout_s": 60.0,
    }
    assert OWNED[0]["inputs"] == {"depth": 1}
    assert load_document(document.snapshot()) == document


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([{"id": "feed"}], "node 'feed', field id: the pipeline 'archive' has no node 'feed'"),
        ([{"id": "fetch", "module": "x"}], "node 'fetch', field module: is fixed by the pipeline 'archive'"),
        (
            [{"id": "fetch", "inputs": {"depth": 2}}],
            "node 'fetch', field inputs.depth: is fixed by the pipeline",
        ),
        ([{"id": "store", "depends_on": []}], "node 'store', field depends_on: is fixed by the pipeline"),
        ([{"id": "store", "quee": "cpu"}], "node 'store', field quee: there is no such field; did you mean"),
        (["store"], "node '#1', field id: the pipeline 'archive' has no node None"),
    ],
)
def test_what_a_document_may_not_say_of_a_pipelines_nodes(nodes: list[Any], said: str):
    """Neither other nodes nor other values than the pipeline's."""
    with pytest.raises(DocumentError) as caught:
        complete_document(crawl(*nodes), config=config(pipeline_schema={"archive": OWNED}.get))
    assert str(caught.value).startswith(f"the document: {said}")


@pytest.mark.parametrize(
    ("schema", "error", "said"),
    [
        (None, DocumentError, "no pipeline_schema is set"),
        ({}.get, DocumentError, "there is no pipeline 'archive'"),
        ({"archive": {"nodes": []}}.get, ConfigurationError, "must give a list of nodes"),
        ({"archive": [{"module": "x"}]}.get, ConfigurationError, "must give a list of nodes"),
        ({"archive": [{"id": "a", "module": object()}]}.get, DocumentError, "object is not JSON"),
    ],
)
def test_a_pipeline_that_gives_no_nodes(schema: Any, error: type[Exception], said: str):
    """Whose mistake it is can be told from the error."""
    with pytest.raises(error, match=said):
        complete_document(crawl(), config=config(pipeline_schema=schema))


def test_a_workflow_that_starts_unknown_ones(tmp_path: Path):
    """They are told beforehand, where there is anybody to ask."""
    (tmp_path / "short.yaml").write_text(FILM)
    (tmp_path / "broken.yaml").write_text("nodes: []")
    names = ("short", "shrot", "broken", "self")
    nodes = [{"id": f"n{at}", "type": "workflow", "workflow": name} for at, name in enumerate(names)]
    document = load_document({"name": "self", "nodes": nodes})
    told = [str(problem) for problem in unknown_workflows(document, config(workflow_dir=tmp_path))]
    place = "the document: node '{}', field workflow: "
    assert told == [
        place.format("n1") + "there is no workflow 'shrot' — did you mean 'short'?",
        place.format("n2") + f"{tmp_path}/broken.yaml:1: field nodes: must have at least one node",
    ]
    assert unknown_workflows(document, config()) == []


def test_wiring_adds_up_and_is_taken_back(tmp_path: Path):
    """What is not given stays, None takes it back, and nonsense is refused where it is written."""
    set_workflow_provider(load_workflow=len)
    set_workflow_provider(pipeline_schema=repr)
    assert (current_config().load_workflow, current_config().pipeline_schema) == (len, repr)
    set_workflow_provider(load_workflow=None)
    assert (current_config().load_workflow, current_config().pipeline_schema) == (None, repr)
    set_workflow_dir(str(tmp_path / "x" / ".."))
    assert current_config().workflow_dir == tmp_path
    for wrong in (
        lambda: set_workflow_provider(load_workflow="film"),  # type: ignore[arg-type]
        lambda: set_workflow_dir(tmp_path / "missing"),
        lambda: set_ref_resolver({}),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError):
            wrong()
    set_workflow_dir(None)
    assert current_config().workflow_dir is None
