"""Commands on a database that waits for an upgrade: what they are asked for, or one line that says so."""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.rows.revisions import HEAD

from queue_workflows.cli.main import cli, run
from queue_workflows.db import migrations
from queue_workflows.db.migrations.chain.chains import engine_chain

# The last one without a column that lists of schedules read.
BEFORE_SCHEDULES = "0029"
# The last one without a column that an explanation reads.
BEFORE_TREES = "0035"
# What goes on until it is told to stop, needs no schema, or makes its own.
NOT_ASKED = {
    *("up", "demo", "worker", "orchestrator", "scheduler", "supervisor", "janitor", "run-job", "hw"),
    *("metrics", "web", "mcp", "db", "completion", "doctor"),
}


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All that the command line has, however it is nested."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif (*path, name)[0] not in NOT_ASKED:
            yield (*path, name), command


def word(param: click.Parameter, directory: Path) -> str:
    """Something that its type takes."""
    kind = param.type
    if isinstance(kind, click.Choice):
        return str(kind.choices[0])
    if isinstance(kind, click.Path | click.File):
        (directory / "file").write_text("")
        return str(directory / "file")
    if "RUN" in (param.metavar or param.human_readable_name.upper()):
        return str(uuid.UUID(int=7))
    if "JOB" in (param.metavar or param.human_readable_name.upper()):
        return "node:7"
    return "7" if kind.name in ("integer", "float", "integer range", "float range") else "anything"


def words(command: click.Command, directory: Path) -> list[str]:
    """What it cannot do without, and that nobody is to be asked."""
    made: list[str] = []
    for param in command.params:
        if isinstance(param, click.Option):
            if param.required:
                made += [param.opts[0], word(param, directory)]
            elif "--yes" in param.opts:
                made.append("--yes")
        else:
            made.append(word(param, directory))
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "revision",
    [pytest.param("0016", marks=pytest.mark.nightly), BEFORE_SCHEDULES, BEFORE_TREES, HEAD],
)
def test_every_command_says_that_the_schema_is_behind(
    empty: str, revision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never the server's word of a column that is missing; at the head none of them says it."""
    monkeypatch.setenv("QWF_DB_URL", empty)
    monkeypatch.chdir(tmp_path)
    asked = list(commands(cli))
    behind: set[str] = set()
    migrations.upgrade(empty, chains=[engine_chain()], revision=revision)
    for path, command in asked:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = run([*path, *words(command, tmp_path)])
        said = err.getvalue()
        assert "does not exist" not in said, (path, said)
        assert "--debug" not in said, (path, said)
        if status == 79:
            assert len(said.splitlines()) == 1, said
            assert f"is at {revision}, this needs " in said, said
            assert "run `qwf db upgrade`" in said, said
            behind.add(" ".join(path))
    assert ("explain" in behind) == (revision != HEAD)
    assert ("schedule list" in behind) == (revision <= BEFORE_SCHEDULES)
    assert revision != HEAD or behind == set()
    assert len(asked) > 40
