"""What every command takes before its name or after it: `--db`, `--app`, `--debug` and `--quiet`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from functools import partial
from importlib import import_module
from typing import Any, Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.error_exit import in_one_line
from queue_workflows.errors import ConfigurationError, QwfError

# What needs nothing of the host app.
WITHOUT_APP: Final = ("completion", "run-job")
# What has a protocol on standard output, in which nothing that the host app's wiring prints may come.
SPEAKS_ON_STDOUT: Final = ("mcp",)
_MARK: Final = "queue_workflows_after_the_command"


def root_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options before the command, with their help."""
    for option in reversed(_options(hidden=False)):
        command = option(command)
    return command


def with_root_options(command: click.Command) -> click.Command:
    """The command, which takes the options also after its name; the last that says something counts.

    Its `--app` imports the host app's wiring, given or not, before any other option is looked at. Its help
    has them in a section of their own, below what is the command's alone.
    """
    if isinstance(command, click.Group) or command.name in WITHOUT_APP or hasattr(command, _MARK):
        return command
    setattr(command, _MARK, True)
    for option in _options(hidden=True):
        option(command)
    command.format_options = partial(_format_options, command)  # type: ignore[method-assign]
    return command


def _format_options(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    """The command's options, and those of every command, which are hidden among them."""
    click.Command.format_options(command, context, formatter)
    shown = [option(click.Command(None)) for option in _options(hidden=False)]
    with formatter.section("Options of every command"):
        formatter.write_dl([one.params[-1].get_help_record(context) for one in shown])


def tell(context: click.Context, **changes: Any) -> None:
    """Note what was asked for in every context from this one to the root's, which `report` looks at."""
    told = (context.find_root().obj or Invocation())._replace(**changes)
    each: click.Context | None = context
    while each is not None:
        each.obj = told
        each = each.parent


def typed_again(invocation: Invocation) -> str:
    """How a command begins that goes with this one: on the same database, with the same wiring.

    A password is not repeated.
    """
    words = [*_before_qwf(sys.orig_argv), "qwf"]
    if invocation.db_url is not None:
        from queue_workflows.db.connections.dsn import redact_dsn

        words += ["--db", redact_dsn(invocation.db_url)]
    return shlex.join([*words, *(["--app", invocation.app] if invocation.app else [])])


def _before_qwf(argv: list[str]) -> list[str]:
    """`python manage.py` where that was asked, for it names the database and the app of its project."""
    script = argv[1] if argv[2:3] == ["qwf"] else ""
    return ["python", script] if script.endswith("manage.py") else []


def is_quiet() -> bool:
    """Whether the command line that runs in this thread is to say nothing but its output and errors."""
    context = click.get_current_context(silent=True)
    told = context.find_root().obj if context is not None else None
    return isinstance(told, Invocation) and told.quiet


def _options(*, hidden: bool) -> list[Callable[[Any], Any]]:
    beside: dict[str, Any] = {"expose_value": False, "is_eager": True, "hidden": hidden}
    return [
        click.option(
            "--db",
            "db_url",
            metavar="URL",
            callback=_noted,
            help="The database; else QWF_DB_URL, qwf.toml, or an embedded one.",
            **beside,
        ),
        click.option(
            "--app",
            metavar="MODULE",
            callback=_wired if hidden else _noted,
            help="Import the host app's wiring first; else QWF_APP or qwf.toml.",
            **beside,
        ),
        click.option(
            "--debug",
            is_flag=True,
            default=None,
            callback=_noted,
            help="Show the full traceback of an error.",
            **beside,
        ),
        click.option(
            "--quiet",
            is_flag=True,
            default=None,
            callback=_noted,
            help="Say nothing on stderr but errors: no remarks, no progress.",
            **beside,
        ),
    ]


def _noted(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value is not None:
        tell(context, **{str(option.name): value})


def _wired(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Import the wiring that is named, here or before the command, else the one of the settings."""
    _noted(context, option, value)
    if context.resilient_parsing or context.parent is None:
        return
    app = (context.obj or Invocation()).app
    if app is None:
        from queue_workflows.settings import load_settings

        app = load_settings().app
    if app:
        is_kept = context.find_root().invoked_subcommand in SPEAKS_ON_STDOUT
        with redirect_stdout(sys.stderr) if is_kept else nullcontext():
            _import_app(app)


def _import_app(module: str) -> None:
    """Import the host app's wiring, which calls `configure()`; it may lie in the current directory."""
    if not all(part.isidentifier() for part in module.split(".")):
        raise ConfigurationError(
            f"--app takes a module, not {module!r}", advice="write it as in an import, such as shop.wiring"
        )
    # As `python -m` does: a console script has its own directory there instead.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        import_module(module)
    except QwfError:
        raise
    except (Exception, SystemExit) as exc:
        raise ConfigurationError(
            f"the host app's wiring {module} could not be imported: {in_one_line(exc)}",
            advice="mend it, or name another with --app or QWF_APP; --debug shows the traceback",
        ) from exc
