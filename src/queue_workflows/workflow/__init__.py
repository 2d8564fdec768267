"""The pure part of workflows: the document, its references, and what a run does next; no database."""
