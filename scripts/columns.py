"""Writes src/queue_workflows/models/columns.py anew, from the models; with --check, says whether it is stale.

It is a script of its own because what `docs.py` imports reads the module that is written here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# So that the models are those of this checkout, whatever is installed.
sys.path.insert(0, str(ROOT / "src"))

from sqlalchemy.dialects import postgresql  # noqa: E402

from queue_workflows.models.tables import Base  # noqa: E402

PATH = "src/queue_workflows/models/columns.py"
HEAD = '''"""The columns of every table, each with its type; generated from the models by `make docs`.

Statements are put together with it where no model is loaded: to load them takes SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TYPES: Final[Mapping[str, Mapping[str, str]]] = {
'''


def module() -> str:
    """The module's text."""
    return "".join([HEAD, *_lines(), "}\n"])


def _lines() -> Iterator[str]:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    for name, table in sorted(Base.metadata.tables.items()):
        yield f'    "{name}": {{\n'
        for column in table.columns:
            yield f'        "{column.key}": "{column.type.compile(dialect)}",\n'
        yield "    },\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the columns of the models anew.")
    parser.add_argument("--check", action="store_true", help="only say whether it is stale; fail if it is")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose module is meant")
    options = parser.parse_args()
    path = options.root / PATH
    text = module()
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return 0
    if not options.check:
        path.write_text(text, encoding="utf-8")
    print(f"columns: {PATH} {'stale, run `make docs`' if options.check else 'written anew'}")
    return 1 if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
