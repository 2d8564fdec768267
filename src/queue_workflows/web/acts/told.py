"""A preview as it may be shown, on its page and to programs: its sentences quote operators and prompts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from queue_workflows.web.access.redaction import Redaction
from queue_workflows.web.acts.act import Line, Preview


def redacted_preview(preview: Preview, redaction: Redaction) -> Preview:
    """Its sentences as they may be shown; what is typed into it stays as it was typed."""
    return replace(
        preview,
        text=redaction.shown("note", preview.text) if preview.text else "",
        lines=redacted_lines(preview.lines, redaction),
        notes=tuple(redaction.shown("note", note) for note in preview.notes),
    )


def redacted_lines(lines: Iterable[Line], redaction: Redaction) -> tuple[Line, ...]:
    """What became of each, or would, as it may be shown."""
    return tuple(replace(line, said=redaction.shown("note", line.said)) for line in lines)


def preview_json(preview: Preview) -> dict[str, Any]:
    """What an act would be, for programs: all that its page has, but the mark that lets its button act."""
    return {
        "headline": preview.headline,
        "text": preview.text,
        "count": preview.count,
        "is_capped": preview.is_capped,
        "lines": [{"name": line.name, "said": line.said} for line in preview.lines],
        "notes": list(preview.notes),
        "fields": [asdict(one) for one in preview.fields],
        "command": preview.command,
        "is_ready": preview.is_ready,
    }
