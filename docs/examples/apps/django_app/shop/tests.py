"""What customers get, and when; `manage.py test` runs it on a database of its own, with all tables there."""

from django.db import connection
from django.test import TestCase

from queue_workflows.testing import assert_enqueued, drain, refute_enqueued

ORDER = {"item": "map", "email": "ada@example.org"}
JSON = "application/json"


class ShopTests(TestCase):
    """Each test is a transaction, in which its jobs run, too, and which is rolled back."""

    def test_an_order_gets_its_receipt(self) -> None:
        """The job is there with the order, and writes the receipt."""
        order = self.client.post("/orders", ORDER, JSON).json()["id"]
        assert_enqueued("send_receipt", args={"order_id": order}, conn=connection)
        self.assertEqual(self.client.get(f"/orders/{order}").json(), {"item": "map", "receipt": None})
        self.assertEqual([job.status for job in drain(conn=connection)], ["completed"])
        receipt = self.client.get(f"/orders/{order}").json()["receipt"]
        self.assertEqual(receipt, "map for ada@example.org")

    def test_what_is_refused_leaves_no_job(self) -> None:
        """The block raised after it had enqueued, and all of it was rolled back."""
        refused = self.client.post("/orders", {**ORDER, "item": "unicorn"}, JSON)
        self.assertEqual(refused.status_code, 409)
        refute_enqueued(conn=connection)

    def test_a_report_begins(self) -> None:
        """The run is there with the request's transaction."""
        run = self.client.post("/reports").json()["id"]
        self.assertEqual(self.client.get(f"/reports/{run}").json(), {"status": "queued", "outputs": None})
