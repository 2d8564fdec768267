"""What of payloads, results and errors is shown: secrets masked, cut to what a page can carry.

A host app's `redact(kind, value)` goes first and may give back anything that JSON knows; `kind` is "payload",
"result", "error", or "note" for what people wrote beside the work: labels of runs, prompts of questions,
reasons and details in the audit log. What it raises is no reason to show the value: a mark stands in its
place.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from queue_workflows.engine.execution.redaction import MASK, Redactor

_log = logging.getLogger(__name__)

Kind = Literal["payload", "result", "error", "note"]
Redact = Callable[[str, Any], Any]

LONGEST_SHOWN: Final = 65_536
_DEEPEST: Final = 60
_MOST_ENTRIES: Final = 2_000
_SECRET_NAMES: Final = (
    "password", "passwd", "passphrase", "secret", "token", "api_key", "apikey", "access_key", "private_key",
    "authorization", "cookie", "credential", "dsn", "signature",
)  # fmt: skip
_REFUSED: Final = "(not shown: the host app's redact raised)"
# The columns of jobs and runs that are a host app's own, and what each of them is.
KINDS: Final[Mapping[str, Kind]] = {
    "args": "payload",
    "inputs": "payload",
    "payload": "payload",
    # Of a hook's record: it quotes the line that is none.
    "warning": "payload",
    "context_delta": "result",
    "outputs": "result",
    "progress": "result",
    "result": "result",
    "error": "error",
    "errors": "error",
    "last_error": "error",
    "message": "error",
    "cancel_reason": "note",
    "details": "note",
    "labels": "note",
    "prompt": "note",
    "reason": "note",
    "state_reason": "note",
}


class Redaction:
    """What a page and its JSON show of a host app's own values."""

    def __init__(self, redact: Redact | None = None, secrets: Sequence[str] = ()) -> None:
        self._redact = redact
        self._redactor = Redactor(secrets)

    def value(self, kind: Kind, value: Any) -> Any:
        """A value of the host app's, as JSON that may be shown."""
        if self._redact is not None:
            try:
                value = self._redact(kind, value)
            except Exception:
                _log.exception("the host app's redact raised for a %s", kind)
                return _REFUSED
        return self._masked(value, 0)

    def shown(self, kind: Kind, value: Any) -> str:
        """The value as text for a page, cut where it is too long."""
        told = self.value(kind, value)
        text = told if isinstance(told, str) else json.dumps(told, indent=2, ensure_ascii=False, default=str)
        return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}\n… cut here"

    def labels(self, labels: Mapping[str, Any]) -> list[str]:
        """The labels of a run, each as it may be shown."""
        told = self.value("note", labels)
        return (
            [f"{name}={value}" for name, value in told.items()] if isinstance(told, Mapping) else [str(told)]
        )

    def columns(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of ours: what is the host app's in it is redacted, wherever it stands."""
        return {name: self._column(name, value) for name, value in row.items()}

    def document(self, value: Any) -> Any:
        """A whole answer of a command: rows and lists of rows."""
        if isinstance(value, Mapping):
            return self.columns(value)
        if isinstance(value, (list, tuple)):
            return [self.document(one) for one in value]
        return value

    def _column(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if name in KINDS:
            return self.value(KINDS[name], value)
        return self.document(value)

    def _masked(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if depth >= _DEEPEST and isinstance(value, (Mapping, list, tuple)):
            return "… nested deeper than is shown"
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, (list, tuple)):
            told = [self._masked(one, depth + 1) for one in value[:_MOST_ENTRIES]]
            return told + (
                [f"… and {len(value) - _MOST_ENTRIES:,} more"] if len(value) > _MOST_ENTRIES else []
            )
        return value

    def _mapping(self, value: Mapping[str, Any], depth: int) -> dict[str, Any]:
        told = {}
        for number, (name, inner) in enumerate(value.items()):
            if number >= _MOST_ENTRIES:
                told["…"] = f"and {len(value) - _MOST_ENTRIES:,} more"
                break
            is_secret = _is_secret(str(name)) and not isinstance(inner, (bool, type(None)))
            told[str(name)] = MASK if is_secret else self._masked(inner, depth + 1)
        return told

    def _text(self, text: str) -> str:
        if len(text) > LONGEST_SHOWN:
            return (
                self._redactor.mask(text[:LONGEST_SHOWN])
                + f"… and {len(text) - LONGEST_SHOWN:,} characters more"
            )
        return self._redactor.mask(text)


def _is_secret(name: str) -> bool:
    plain = name.lower().replace("-", "_")
    return any(word in plain for word in _SECRET_NAMES)
