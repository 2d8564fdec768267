"""`retry_run` with another document: what it changes runs again, what it leaves alone keeps its results."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from queue_workflows import PayloadError, RunRefused, UnknownNode, set_workflow_provider
from queue_workflows.config import reset_config
from queue_workflows.engine.operate.many_runs import Refusal, foretell_retry, retry_each
from queue_workflows.engine.runs.retry import RunRetry, retry_run
from queue_workflows.errors import DocumentError
from queue_workflows.repositories import RunRepository
from queue_workflows.repositories.audit_log import AuditRepository

ONCE = {"max_attempts": 1}
FILM: dict[str, Any] = {
    "name": "film",
    "inputs": {"brief": {"type": "string"}},
    "nodes": [
        {"id": "plan", "module": "work", "retry": ONCE},
        {"id": "draw", "module": "work", "for_each": [1, 2], "depends_on": ["plan"], "retry": ONCE},
        {"id": "title", "module": "work", "retry": ONCE},
        {"id": "cut", "module": "fail", "inputs": {"pictures": {"$from": "draw"}}, "retry": ONCE},
        {"id": "old", "module": "work", "retry": ONCE},
    ],
    "outputs": {"film": {"$from": "cut.did"}},
    "on_failure": "continue",
}


class Film:
    """A run of the film that failed, and what was done in it since."""

    def __init__(self, jobs: Any) -> None:
        self.jobs = jobs
        self.done: Counter[str] = Counter()
        self.modules = {"work": self._work, "fail": self._fail}
        self.run = jobs.run_workflow(FILM, {"brief": "b"}, self.modules)
        assert (self.run.status, self.run.nodes["cut"]) == ("failed", "failed")
        self.done.clear()

    def _work(self, inputs: dict[str, Any], *, ctx: Any) -> dict[str, Any]:
        self.done[ctx.node_id] += 1
        return {"did": ctx.node_id}

    def _fail(self, inputs: dict[str, Any]) -> None:
        raise ValueError("the old way")

    def retry(self, document: Any = None, **how: Any) -> RunRetry:
        with self.jobs.conn.transaction():
            return retry_run(self.run.id, document=document, conn=self.jobs.conn, **how)

    def row(self) -> Any:
        return RunRepository(self.jobs.conn).fetch(self.run.id)


def changed(**nodes: dict[str, Any] | None) -> dict[str, Any]:
    """The film with nodes changed, added, or, by None, left out."""
    document = deepcopy(FILM)
    known = {node["id"]: node for node in document["nodes"]}
    for name, change in nodes.items():
        known[name] = {} if change is None else {**known.get(name, {"id": name}), **change}
    document["nodes"] = [node for node in known.values() if node]
    return document


@pytest.fixture
def film(qwf_jobs: Any) -> Film:
    return Film(qwf_jobs)


def test_only_what_changed_runs_again_and_what_follows(film: Film) -> None:
    """The dry run says so first; then the run goes on by the new document, which it keeps."""
    now = changed(cut={"module": "work"}, extra={"module": "work", "depends_on": ["title"]}, old=None)
    told = film.retry(now, dry_run=True)
    assert (set(told.changed), told.removed) == ({"cut", "extra"}, ("old",))
    assert (set(told.again), set(told.kept)) == ({"cut", "extra"}, {"plan", "draw", "title"})
    assert film.row().status == "failed"
    assert film.retry(now, actor="ann") == told
    film.jobs.drain(modules=film.modules)
    row = film.row()
    assert (row.status, row.outputs, film.done) == ("completed", {"film": "cut"}, {"cut": 1, "extra": 1})
    assert {node["id"] for node in row.spec["nodes"]} == {"plan", "draw", "title", "cut", "extra"}
    (entry,) = AuditRepository(film.jobs.conn).of("run", str(film.run.id))
    assert entry.details["document"] == row.spec_hash != entry.details["document_was"]


def test_a_changed_list_runs_again_whole(film: Film) -> None:
    """None of its elements is kept, though they have the same items; what needs it follows."""
    film.retry(changed(draw={"timeout_s": 60}, cut={"module": "work"}))
    film.jobs.drain(modules=film.modules)
    assert (film.row().status, film.done) == ("completed", {"draw": 2, "cut": 1})


def test_a_document_that_changes_nothing_is_a_plain_retry(film: Film) -> None:
    """What failed runs again, and no more."""
    retry = film.retry(FILM)
    assert (retry.changed, retry.removed, retry.again) == ((), (), ("cut",))


def test_other_outputs_are_put_together_without_a_node(film: Film) -> None:
    """Of a run that completed, too."""
    film.retry(changed(cut={"module": "work"}))
    film.jobs.drain(modules=film.modules)
    film.done.clear()
    other = {**changed(cut={"module": "work"}), "outputs": {"title": {"$from": "title.did"}}}
    assert film.retry(other).again == ()
    film.jobs.drain(modules=film.modules)
    assert (film.row().outputs, film.done) == ({"title": "title"}, {})


def test_the_latest_document_is_found_by_its_name(film: Film, tmp_path: Path) -> None:
    """As for a new run; a file will do as well."""
    now = changed(cut={"module": "work"})
    file = tmp_path / "film.yaml"
    file.write_text(yaml.safe_dump(now))
    assert film.retry(file, dry_run=True).changed == ("cut",)
    set_workflow_provider(load_workflow=lambda name: now if name == "film" else None)
    try:
        assert film.retry(latest=True, dry_run=True).changed == ("cut",)
    finally:
        reset_config()


def test_inputs_are_those_of_the_new_document(film: Film) -> None:
    """Its defaults are filled in; where it wants what the run was not given, nothing is changed."""
    filled = changed(cut={"module": "work", "inputs": {"n": {"$from": "inputs.n"}}})
    filled["inputs"] = {**FILM["inputs"], "n": {"type": "integer", "default": 3}}
    film.retry(filled)
    assert film.row().inputs == {"brief": "b", "n": 3}
    film.jobs.drain(modules=film.modules)
    wanting = {**changed(), "inputs": {"brief": {"type": "integer"}}}
    before = film.row().spec_hash
    with pytest.raises(PayloadError):
        film.retry(wanting, from_node="plan")
    assert (film.row().status, film.row().spec_hash) == ("completed", before)


def test_of_many_runs_one_that_does_not_fit_keeps_none_from_going_on(film: Film, tmp_path: Path) -> None:
    """By its inputs or by its nodes; where it is the only one, that is raised."""
    other = film.jobs.run_workflow(FILM, {"brief": "c"}, film.modules)
    file = tmp_path / "film.yaml"
    narrow = {**changed(cut={"module": "work"}), "inputs": {"brief": {"const": "c"}}}
    file.write_text(yaml.safe_dump(narrow))
    how: dict[str, Any] = {"from_node": None, "dry_run": False, "actor": "ann", "reason": None}
    runs = [film.run.id, other.id]
    refused, retried = retry_each(film.jobs.conn, runs, document=file, **how)
    assert isinstance(refused, Refusal)
    assert "inputs.brief" in refused.why
    assert (film.row().status, retried.run_id) == ("failed", other.id)
    with pytest.raises(PayloadError):
        list(retry_each(film.jobs.conn, [film.run.id], document=file, **how))
    strange = how | {"from_node": "nobody", "dry_run": True}
    assert [type(one) for one in retry_each(film.jobs.conn, runs, **strange)] == [Refusal, Refusal]
    with pytest.raises(UnknownNode):
        list(retry_each(film.jobs.conn, [film.run.id], **strange))


def test_one_whose_stored_document_is_bad_keeps_none_of_many_from_going_on(film: Film) -> None:
    """Neither from being foretold nor from being retried; where it is the only one, that is raised."""
    other = film.jobs.run_workflow(FILM, {"brief": "c"}, film.modules)
    film.jobs.conn.execute(
        "UPDATE workflow_runs SET spec = '{\"nodes\": 1}', spec_hash = 'bad' WHERE id = %s", [film.run.id]
    )
    how: dict[str, Any] = {"from_node": None, "dry_run": True, "actor": "ann", "reason": None}
    runs = [film.run.id, other.id]
    foretold = foretell_retry(film.jobs.conn, runs, from_node=None)
    refused, retried = foretold
    assert isinstance(refused, Refusal)
    assert (refused.run_id, type(retried)) == (film.run.id, RunRetry)
    assert list(retry_each(film.jobs.conn, runs, **how)) == foretold
    with pytest.raises(DocumentError):
        foretell_retry(film.jobs.conn, [film.run.id], from_node=None)
    with pytest.raises(DocumentError):
        list(retry_each(film.jobs.conn, [film.run.id], **how))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({**FILM, "name": "other"}, "it is one of 'film', and this is the document of 'other'"),
        (changed(title={"for_each": [1]}), "node 'title' was a task and is a task for each element now"),
        (changed(old={"type": "wait", "seconds": 1, "module": None, "retry": None}), "node 'old' was a task"),
    ],
)
def test_a_document_that_cannot_take_its_place_is_refused(
    film: Film, document: dict[str, Any], says: str
) -> None:
    """With what is in the way; nothing is changed."""
    for node in document["nodes"]:
        for name in [name for name, value in node.items() if value is None]:
            del node[name]
    before = film.row().spec_hash
    with pytest.raises(RunRefused, match=says):
        film.retry(document)
    assert (film.row().status, film.row().spec_hash) == ("failed", before)
