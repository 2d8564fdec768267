"""A little shop: orders, receipts that a job sends, and a report that a workflow writes."""
