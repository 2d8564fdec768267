"""Writes the generated parts of docs/ anew; with --check, says which are stale and changes nothing.

A page is written by hand but for what stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`.
What is in FILES is generated as a whole. The plans in docs/reference/statements.md need a server: without
--plans they stay as they are, and with it they are asked anew, of an embedded server or of an empty, migrated
database that it names.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# So that the tables are those of this checkout, whatever is installed.
sys.path.insert(0, str(ROOT / "src"))

import json_reference  # noqa: E402
import statements  # noqa: E402

from queue_workflows import errors, states  # noqa: E402
from queue_workflows.settings import settings_table  # noqa: E402
from queue_workflows.telemetry import names  # noqa: E402
from queue_workflows.workflow.document.json_schema import document_schema  # noqa: E402

TERMINAL = {
    "run": states.RUN_TERMINAL,
    "node": states.NODE_OVER,
    "node job": states.JOB_TERMINAL,
    "ingest job": states.JOB_TERMINAL,
    "binary": states.BINARY_FINAL,
}
FIRST = {
    "run": ["queued"],
    "node": ["waiting"],
    "node job": ["scheduled", "queued"],
    "ingest job": ["scheduled", "queued"],
    "binary": ["queued", "installed"],
}
ENUMS = {"run": states.RunStatus, "node": states.NodeState, "binary": states.BinaryStatus}
# What the column of the terminal statuses is called where they end nothing for good.
FINAL = {"binary": "final"}


def diagram(family: str) -> str:
    """A state diagram of one family."""
    moves = states.MOVES[family]
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"  [*] --> {status}" for status in FIRST[family]]
    lines += [f"  {old} --> {new}" for old in in_order(family, moves) for new in in_order(family, moves[old])]
    return "\n".join([*lines, "```"])


def table_of_moves(family: str) -> str:
    """One row a status: whether it ends the matter, and what may follow it."""
    rows = [f"| status | {FINAL.get(family, 'terminal')} | may become |", "|---|---|---|"]
    for old in in_order(family, states.MOVES[family]):
        followers = ", ".join(f"`{new}`" for new in in_order(family, states.MOVES[family][old]))
        rows.append(f"| `{old}` | {'yes' if old in TERMINAL[family] else ''} | {followers} |")
    return "\n".join(rows)


def in_order(family: str, statuses: Container[str]) -> list[str]:
    """The order in which the enum declares them; sets and the tables made of them have none."""
    enum = ENUMS.get(family, states.JobStatus)
    return [status.value for status in enum if status in statuses]


def exit_codes() -> str:
    """One row a code: its sentence, and the errors of ours that end a process with it."""
    rows = ["| code | name | meaning | errors that end so |", "|---:|---|---|---|"]
    for code in errors.ExitCode:
        names = ", ".join(f"`{error.__name__}`" for error in error_tree() if error.exit_code is code)
        rows.append(f"| {code.value} | `{code.name}` | {code.meaning} | {names} |")
    return "\n".join(rows)


def error_tree(base: type[errors.QwfError] = errors.QwfError) -> Iterator[type[errors.QwfError]]:
    """Every error of `errors`, parents first, in the order of its modules."""
    if base.__module__ == errors.__name__:
        yield base
    for child in base.__subclasses__():
        yield from error_tree(child)


def table_of_settings() -> str:
    """One row a setting: the name in a file, its variable, what it may be, what it is for."""
    rows = ["| setting | variable | default | may be | what it is |", "|---|---|---|---|---|"]
    rows += [
        f"| `{row.name}` | `{row.variable}` | {row.default} | {row.allowed} | {row.description} |"
        for row in settings_table()
    ]
    return "\n".join(rows)


def table_of_metrics(metrics: Iterable[names.Metric]) -> str:
    """One row a metric: its two names, what it is, what it is told apart by."""
    rows = ["| metric | in Prometheus | kind | unit | attributes | what it is |", "|---|---|---|---|---|---|"]
    for one in metrics:
        attributes = ", ".join(f"`{each}`" for each in one.attributes if each != names.SYSTEM)
        row = (f"`{one.name}`", f"`{one.prometheus}`", one.kind, one.unit, attributes, one.what)
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join(rows)


def moves(family: str) -> Callable[[], str]:
    return lambda: f"{diagram(family)}\n\n{table_of_moves(family)}"


BLOCKS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "docs/reference/states.md": {
        "run moves": moves("run"),
        "node moves": moves("node"),
        "node job moves": moves("node job"),
        "ingest job moves": moves("ingest job"),
        "binary moves": moves("binary"),
    },
    "docs/reference/exit-codes.md": {"exit codes": exit_codes},
    "docs/reference/configuration.md": {"settings": table_of_settings},
    "docs/reference/telemetry.md": {
        "instruments": lambda: table_of_metrics(names.INSTRUMENTS),
        "figures": lambda: table_of_metrics(names.FIGURES),
    },
}


def workflow_schema() -> str:
    """The JSON Schema of documents, as `qwf run schema` prints it."""
    return json.dumps(document_schema(), indent=2, ensure_ascii=False) + "\n"


# Each is given the page as it is.
FILES: Mapping[str, Callable[[str], str]] = {
    "docs/reference/json.md": lambda _: json_reference.page(),
    "docs/reference/workflow.schema.json": lambda _: workflow_schema(),
    "docs/reference/statements.md": lambda before: statements.page(statements.plans_in(before)),
}


def asked_plans(dsn: str | None) -> dict[str, str]:
    """The plans as a server makes them now."""
    from bench.harness.servers import open_server
    from statement_plans import plans

    if dsn is not None:
        return plans(dsn)
    with open_server(None) as server:
        return plans(server.database())


def renewed(page: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """The page with each of its blocks written anew."""
    for name, render in blocks.items():
        start, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            sys.exit(f"docs: exactly one block {start} … {end} is needed")
        block = f"{start}\n\n{render()}\n\n{end}"
        page = pattern.sub(lambda _match, text=block: text, page)
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the generated tables of docs/ anew.")
    parser.add_argument("--check", action="store_true", help="only name what is stale; fail if anything is")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose pages are meant")
    parser.add_argument("--plans", nargs="?", const="", metavar="DSN", help="ask a server for the plans too")
    options = parser.parse_args()
    files = dict(FILES)
    if options.plans is not None:
        plans = asked_plans(options.plans or None)
        files["docs/reference/statements.md"] = lambda _: statements.page(plans)
    stale = []
    for name in (*BLOCKS, *files):
        path = options.root / name
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        after = files[name](before) if name in files else renewed(before, BLOCKS[name])
        if before == after:
            continue
        stale.append(name)
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(after, encoding="utf-8")
    verb = "stale, run `make docs`" if options.check else "written anew"
    for name in stale:
        print(f"docs: {name} {verb}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
