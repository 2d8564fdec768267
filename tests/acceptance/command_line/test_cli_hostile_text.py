"""Whatever text a command line is given, it answers in one line or with what it found."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any, Final

import click
import pytest

from queue_workflows.cli.main import cli, run

# What has no end of its own, changes the schema, or runs a command: tests of their own check their words.
LEFT_OUT: Final = (
    "up",
    "demo",
    "db",
    "worker",
    "supervisor",
    "janitor",
    "orchestrator",
    "scheduler",
    "metrics",
    "web",
    "mcp",
    "run-job",
)
# Asks package managers, as root, for whatever it is told.
INSTALLS: Final = ("binaries", "ensure")
# Ends with 2 for a document that it cannot read, and counts those.
IN_ITS_OWN_WORDS: Final = (["run", "check"],)
ENDLESS: Final = {"--watch", "--wait", "--debug", "-y", "--yes"}
RUN: Final = "0198c0de-0000-7000-8000-000000000000"
HOSTILE: Final = (
    "'",
    '"; DROP TABLE ingest_jobs; --',
    "%s %(x)s %",
    "a\0b",
    "-1",
    "x" * 100_000,
    "",
    "\udcff",
    "9" * 400,
    "*",
    "ingest:99999999999999999999",
    "../../../etc/passwd",
    "\\",
    "é💥\u202e\ufeff\u2028",
    "NaN",
    " \n\t",
    "1e999",
    "{",
    "[" * 5000,
    '{"a": "\\u0000"}',
    "node:-1",
    "=",
    "a=" + "[" * 5000,
    "2026-13-45T99:99",
    "0001-01-01",
    "9999-12-31T23:59:59Z",
    RUN,
    "-",
)
# How many of them each option is given where time counts; each gets others than the one before it.
FEW: Final = 4


def _leaves(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (path or name not in LEFT_OUT) and (*path, name) != INSTALLS:
                found = command.get_command(context, name)
                assert found is not None
                yield from _leaves(found, (*path, name))
    else:
        yield path, command


COMMANDS: Final = dict(_leaves(cli, ()))


def _plain(parameter: click.Parameter) -> str:
    """What is in order for a parameter that has to be there."""
    if isinstance(parameter.type, click.Choice):
        return str(parameter.type.choices[0])
    return "fetch" if "queue" in str(parameter.name) else "plain"


def _lines(
    path: tuple[str, ...], command: click.Command, values: Iterator[str], each: int
) -> Iterator[list[str]]:
    """Command lines in which one parameter is hostile and every other one that has to be there is plain."""
    as_json = ["--json"] if any("--json" in one.opts for one in command.params) else []
    for parameter in command.params:
        # The options of `qwf` itself stand hidden behind each command.
        if getattr(parameter, "hidden", False):
            continue
        if (
            getattr(parameter, "is_flag", False)
            or isinstance(parameter.type, click.Choice)
            or ENDLESS & {*parameter.opts}
        ):
            continue
        needed = [
            _plain(one)
            for one in command.params
            if one.param_type_name == "argument" and one.required and one is not parameter
        ]
        for value in islice(values, each):
            if "\0" in value and (isinstance(parameter.type, click.Path) or "--dir" in parameter.opts):
                continue  # a process is never given such a word, and no file can have it as its name
            words = [*path, *as_json]
            if parameter.param_type_name == "option":
                repeated = [value] * max(1, parameter.nargs)
                words += (
                    [f"{parameter.opts[-1]}={value}"]
                    if parameter.nargs == 1 and parameter.opts[-1][:2] == "--"
                    else [parameter.opts[-1], *repeated]
                )
                yield [*words, "--", *needed] if needed else words
            else:
                before = [one for one in command.params if one.param_type_name == "argument"].index(parameter)
                yield [*words, "--", *needed[:before], value, *needed[before:]]


def _check(dsn: str, words: list[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(["--db", dsn, *words])
    said, shown = err.getvalue(), [word[:60] for word in words]
    assert status in (0, 1, 2, 73, 78), (shown, status, said[:500])
    assert "--debug" not in said, (shown, said[:500])
    assert "Traceback" not in said + out.getvalue(), (shown, said[:500])
    if status:
        # One line of ours; what was asked about and failed is said in the command's own words.
        last = said.rstrip("\n").split("\n")[-1]
        assert last.startswith("qwf: ") or status == 1 or words[:2] in IN_ITS_OWN_WORDS, (shown, said[:500])
        assert len(last) < 3000, (shown, len(last))
    elif "--json" in words:
        for line in [out.getvalue()] if out.getvalue().strip() else []:
            _parsed(line)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def nobody_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """No question is waited for, and what lies in the directory is nobody's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_hostile_text_is_answered(qwf_dsn: str, nobody_answers: None, path: tuple[str, ...]) -> None:
    """A few of the hostile words for each option and argument, others for each."""
    begin = list(COMMANDS).index(path)
    for words in _lines(path, COMMANDS[path], islice(cycle(HOSTILE), begin, None), FEW):
        _check(qwf_dsn, words)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_all_hostile_text_is_answered(qwf_dsn: str, nobody_answers: None, path: tuple[str, ...]) -> None:
    """Every hostile word for each option and argument."""
    for words in _lines(path, COMMANDS[path], cycle(HOSTILE), len(HOSTILE)):
        _check(qwf_dsn, words)
