"""`qwf doctor`: what is checked about a database and this set-up, as plain data."""

from queue_workflows.db.doctor.examination import examine

__all__ = ["examine"]
