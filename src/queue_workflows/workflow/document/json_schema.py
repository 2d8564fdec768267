"""The JSON Schema of documents, for editors and other programs; what it lets pass is checked further."""

from __future__ import annotations

from typing import Any, Final

from queue_workflows.workflow.document.document import Document

_META_SCHEMA: Final = "https://json-schema.org/draft/2020-12/schema"


def document_schema() -> dict[str, Any]:
    """The schema of a document as it stands in a file; the file's name is the default of its `name`."""
    schema = Document.model_json_schema(by_alias=True, mode="validation")
    _strip(schema)
    schema["required"] = [field for field in schema["required"] if field != "name"]
    schema["patternProperties"] = {"^x-": {"description": "The author's own, as for YAML anchors."}}
    for properties in (schema["properties"]["inputs"], schema["$defs"]["InputNode"]["properties"]["schema"]):
        properties["anyOf"][0]["additionalProperties"] = {"$ref": _META_SCHEMA}
    return {
        "$schema": _META_SCHEMA,
        "title": "A workflow of queue_workflows",
        "description": "What a workflow document may say.",
        **{key: value for key, value in schema.items() if key not in {"title", "description"}},
    }


def _strip(part: Any) -> None:
    """Leave out titles that only repeat names, and defaults that say that there is none."""
    if isinstance(part, list):
        for child in part:
            _strip(child)
    if not isinstance(part, dict):
        return
    if isinstance(part.get("title"), str):
        del part["title"]
    if "default" in part and part["default"] is None:
        del part["default"]
    for key, child in part.items():
        if key != "default":
            _strip(child)
