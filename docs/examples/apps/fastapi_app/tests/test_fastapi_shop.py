"""What customers get, and when."""

from __future__ import annotations

from fastapi.testclient import TestClient

from queue_workflows.testing import JobTester

ORDER = {"item": "map", "email": "ada@example.org"}


def test_an_order_gets_its_receipt(client: TestClient, qwf_jobs: JobTester) -> None:
    """The job is there with the order, and writes the receipt."""
    order = client.post("/orders", json=ORDER).json()["id"]
    qwf_jobs.assert_enqueued("send_receipt", args={"order_id": order})
    assert client.get(f"/orders/{order}").json() == {"item": "map", "receipt": None}
    assert [job.status for job in qwf_jobs.drain()] == ["completed"]
    assert client.get(f"/orders/{order}").json() == {"item": "map", "receipt": "map for ada@example.org"}


def test_what_is_refused_leaves_no_job(client: TestClient, qwf_jobs: JobTester) -> None:
    """The request raised after it had enqueued, and all of it was rolled back."""
    assert client.post("/orders", json={**ORDER, "item": "unicorn"}).status_code == 409
    qwf_jobs.refute_enqueued()


def test_a_report(client: TestClient, qwf_jobs: JobTester) -> None:
    """The workflow's steps run one after the other, and the run has the text."""
    client.post("/orders", json={**ORDER, "item": "globe"})
    run = client.post("/reports", params={"title": "Today"}).json()["id"]
    qwf_jobs.drain()
    report = client.get(f"/reports/{run}").json()
    assert report["status"] == "completed"
    assert report["outputs"]["text"].splitlines()[:2] == ["Today", "globe: 1"]
