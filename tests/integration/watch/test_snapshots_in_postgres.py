"""What a run stores of its document is, after Postgres had it, still the same document."""

from __future__ import annotations

import json
from typing import Any

import psycopg
from hypothesis import example, given, settings
from support.reference.examples import PATIENT, examples
from support.reference.json_values import documents

from queue_workflows.workflow.document.load import CompiledDocuments, load_document


@settings(PATIENT, max_examples=examples(150))
@example(inputs=[100.0, 1e2, 1e300, 1e22, 5e-324, -0.0, 0.1, 2**70])
@given(inputs=documents)
def test_a_snapshot_keeps_its_hash(qwf_conn: psycopg.Connection, inputs: Any):
    """Reordered keys and respelt numbers change nothing, so that a run's document is parsed once."""
    node = {"id": "a", "module": "m", "inputs": {"x": {"$value": inputs}}, "timeout_s": 60}
    document = load_document({"name": "w", "nodes": [node]})
    row = qwf_conn.execute("SELECT %s::jsonb::text", [json.dumps(document.snapshot())]).fetchone()
    assert row is not None
    snapshot = json.loads(row[0])
    assert load_document(snapshot).hash == document.hash
    kept = CompiledDocuments()
    assert kept.compiled(snapshot, document.hash) is kept.find(document.hash)
