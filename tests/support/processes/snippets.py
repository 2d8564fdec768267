"""Runs the fenced snippets of one page of the documentation, in the order in which a reader would.

A page is one scenario in one fresh process and one empty directory: `python` blocks share a namespace,
`console` blocks run each `$ ` line in a shell and compare what follows it, `sql` runs in the database of
QWF_DB_URL, `toml` and `json` must parse, `yaml` too where a parser is installed. A comment on the line before
a fence says otherwise:

    <!-- not run: reason -->      the block is exempt, and the tests list it
    <!-- file: shop/jobs.py -->   the block is that file, for the blocks below it to use
    <!-- in the background: why --> its one command runs on beside the blocks below, which begin when it has
                                  printed what the page shows; at the end of the page it is asked to stop

In expected output a line `...` stands for any lines, and `...` within a line for any text; a console block
without output lines says nothing about output. Two blanks or more stand for as many as there are, for a
column is wider where a time of yesterday has its date. What a command exports holds for those below it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from queue_workflows.host.processes.launcher import Child, spawn
from queue_workflows.host.processes.tree_by_mark import kill_tree

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w+-]*)\s*$")
REMARK = re.compile(r"^\s*<!--\s*(?P<kind>not run|file|in the background):\s*(?P<text>.*?)\s*-->\s*$")
# A role that a supervisor names: `gpu/1: started`, or `running orchestrator/1, cpu/1; Ctrl-C stops them all`.
ROLE = re.compile(r"\b([a-z]+)/\w+(?=, |; |: started)")
COMMAND_TIMEOUT_S = 300
LOOK_EVERY_S = 0.05
# How a command may end that was asked to stop, or was done by itself.
STOPPED = (0, 143, -signal.SIGTERM)


@dataclass(frozen=True)
class Snippet:
    """One fenced block: where it stands, what it is, and what a remark above it says."""

    page: str
    line: int
    language: str
    body: str
    not_run: str | None = None
    file: str | None = None
    background: str | None = None

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Step:
    """One command of a console block, and the lines that shall follow it."""

    command: str
    expected: tuple[str, ...]


class SnippetFailed(Exception):
    """A snippet does not do what the page says."""


def find_snippets(text: str, page: str) -> list[Snippet]:
    """Every fenced block of a page, in order; one that never ends is an error of the page."""
    snippets: list[Snippet] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if not opening:
            number += 1
            continue
        start, indent = number, len(opening["indent"])
        body: list[str] = []
        number += 1
        while number < len(lines) and lines[number].strip() != "```":
            body.append(lines[number][indent:])
            number += 1
        if number == len(lines):
            raise SnippetFailed(f"{page}:{start + 1}: this block never ends")
        remark = REMARK.match(lines[start - 1]) if start else None
        said = {remark["kind"]: remark["text"]} if remark else {}
        snippets.append(
            Snippet(
                page,
                start + 1,
                opening["language"],
                "\n".join(body) + "\n",
                said.get("not run"),
                said.get("file"),
                said.get("in the background"),
            )
        )
        number += 1
    return snippets


def console_steps(body: str) -> Iterator[Step]:
    """The commands of a console block; a trailing backslash continues one on the next line."""
    command: str | None = None
    expected: list[str] = []
    continued = False
    for line in body.splitlines():
        if continued and command is not None:
            command += "\n" + line.removeprefix("> ")
        elif line.startswith("$ "):
            if command is not None:
                yield Step(command, tuple(expected))
            command, expected = line[2:], []
        elif command is None and line.strip():
            raise SnippetFailed(f"output before any command: {line!r}")
        elif command is not None:
            expected.append(line)
        continued = command is not None and not expected and line.endswith("\\")
    if command is not None:
        yield Step(command, tuple(expected))


def _pattern(line: str) -> str:
    any_text = re.escape(line).replace(r"\.\.\.", ".*")
    return re.sub(r"(?:\\ ){2,}", " {2,}", any_text) + r"\n"


def output_matches(expected: tuple[str, ...], got: str) -> bool:
    """Whether the output is what the page shows; trailing blanks and a final empty line do not count."""
    wanted = [line.rstrip() for line in expected]
    while wanted and not wanted[-1]:
        wanted.pop()
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else _pattern(line) for line in wanted)
    shown = "".join(f"{line.rstrip()}\n" for line in got.rstrip().splitlines())
    return re.fullmatch(pattern, shown) is not None


def run_page(text: str, page: str) -> list[str]:
    """Run a page's snippets in this process and directory; returns the names of those that were exempt."""
    # A module that can be found by its name, for what looks annotations or classes up there.
    main = sys.modules["__main__"] = ModuleType("__main__")
    namespace = vars(main)
    exported = Path(os.environ["SNIPPETS_EXPORTED"])
    exported.touch()
    runners: dict[str, Callable[[Snippet], None]] = {
        "python": lambda snippet: _run_python(snippet, namespace),
        "console": lambda snippet: _run_console(snippet, exported),
        "sql": _run_sql,
        "toml": lambda snippet: _check(snippet, tomllib.loads),
        "json": lambda snippet: _check(snippet, json.loads),
        "yaml": _check_yaml,
    }
    exempt = []
    with contextlib.ExitStack() as background:
        for snippet in find_snippets(text, page):
            if snippet.not_run is not None:
                exempt.append(f"{snippet.name} ({snippet.language or 'text'}): {snippet.not_run}")
            elif snippet.file is not None:
                _write(snippet)
            elif snippet.background is not None:
                background.enter_context(_in_the_background(snippet, exported))
            elif snippet.language in runners:
                runners[snippet.language](snippet)
            elif snippet.language in {"bash", "sh", "shell"}:
                raise SnippetFailed(
                    f"{snippet.name}: write commands as a `console` block, so that they are run"
                )
    return exempt


@contextlib.contextmanager
def _in_the_background(snippet: Snippet, exported: Path) -> Iterator[None]:
    """Run the block's command until the page ends; it is there when it has printed what the page shows."""
    (step,) = console_steps(snippet.body)
    with tempfile.TemporaryFile("w+") as output:
        # It ends with this process, also if that is killed.
        process = spawn(["sh", "-c", f". {exported}\nexec {step.command}"], stdout=output, stderr=output)
        try:
            _await_beginning(snippet, step, process, output)
            _await_roles(step, output)
            yield
            process.terminate()
            if process.wait(COMMAND_TIMEOUT_S) not in STOPPED:
                how = f"ended with status {process.returncode}"
                raise SnippetFailed(f"{snippet.name}: `{step.command}` {how}:\n{_said(output)}")
        finally:
            if process.returncode is None:
                kill_tree(process.pid, grace_s=0, mark=process.mark)
                process.wait()


def _await_beginning(snippet: Snippet, step: Step, process: Child, output: TextIO) -> None:
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    while True:
        # Asked first: what it prints before it ends is read below.
        is_over = process.poll() is not None or time.monotonic() > deadline
        said = _said(output)
        if output_matches((*step.expected, "..."), said):
            return
        if is_over:
            shown = "\n".join(step.expected)
            raise SnippetFailed(
                f"{snippet.name}: `{step.command}` printed\n{said}\nbut the page says\n{shown}"
            )
        time.sleep(LOOK_EVERY_S)


def _await_roles(step: Step, output: TextIO) -> None:
    """Wait until the roles that it says it runs can be seen by others, as a reader who types has to."""
    named = {*ROLE.findall(_said(output)), *(["orchestrator"] if "--orchestrator" in step.command else [])}
    if not named:
        return
    import psycopg

    from queue_workflows.repositories.reports.presence import PresenceRepository

    queues = named - {"orchestrator", "scheduler", "janitor", "web"}
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    with psycopg.connect(os.environ["QWF_DB_URL"], autocommit=True) as connection:
        while time.monotonic() < deadline:
            present = PresenceRepository(connection).of(queues, stale_s=COMMAND_TIMEOUT_S)
            if present.served == queues and present.has_orchestrator >= ("orchestrator" in named):
                return
            time.sleep(LOOK_EVERY_S)


def _said(output: TextIO) -> str:
    """What a command has printed so far; it writes at the same place of the file that we would read from."""
    return os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0).decode(errors="replace")


def _write(snippet: Snippet) -> None:
    assert snippet.file is not None
    target = Path(snippet.file)
    if target.is_absolute() or ".." in target.parts:
        raise SnippetFailed(f"{snippet.name}: {snippet.file} lies outside the page's directory")
    if target.suffix == ".py":
        compile(snippet.body, snippet.name, "exec")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(snippet.body)


def _run_python(snippet: Snippet, namespace: dict[str, Any]) -> None:
    # Padded, so that a traceback names the line of the page.
    source = "\n" * snippet.line + snippet.body
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(source, snippet.page, "exec", dont_inherit=True), namespace)
    except BaseException as exc:
        raise SnippetFailed(f"{snippet.name}: {traceback.format_exc()}{printed.getvalue()}") from exc


def _run_console(snippet: Snippet, exported: Path) -> None:
    for step in console_steps(snippet.body):
        done = subprocess.run(
            f". {exported}\n{step.command}\nstatus=$?; export -p >{exported}; exit $status",
            shell=True,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=COMMAND_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise SnippetFailed(
                f"{snippet.name}: `{step.command}` ended with status {done.returncode}:\n{done.stdout}"
            )
        if any(line.strip() for line in step.expected) and not output_matches(step.expected, done.stdout):
            wanted = "\n".join(step.expected)
            raise SnippetFailed(
                f"{snippet.name}: `{step.command}` printed\n{done.stdout}\nbut the page says\n{wanted}"
            )


def _run_sql(snippet: Snippet) -> None:
    import psycopg

    try:
        with psycopg.connect(os.environ["QWF_DB_URL"]) as connection:
            connection.execute(snippet.body)
    except psycopg.Error as exc:
        raise SnippetFailed(f"{snippet.name}: {exc}") from exc


def _check(snippet: Snippet, parse: Callable[[str], Any]) -> None:
    try:
        parse(snippet.body)
    except ValueError as exc:
        raise SnippetFailed(f"{snippet.name}: {exc}") from exc


def _check_yaml(snippet: Snippet) -> None:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        return
    try:
        yaml.safe_load(snippet.body)
    except yaml.YAMLError as exc:
        raise SnippetFailed(f"{snippet.name}: {exc}") from exc


def main(arguments: list[str]) -> int:
    """`snippets.py PAGE NAME`: run one page and print what was exempt, a line each."""
    path, page = arguments
    # What the page writes is importable; this file's neighbours are not.
    sys.path[0] = ""
    try:
        exempt = run_page(Path(path).read_text(), page)
    except SnippetFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    for name in exempt:
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
