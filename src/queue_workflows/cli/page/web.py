"""`qwf web`: the operator's page, for the user of this machine."""

from __future__ import annotations

import re
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import asking_user, say
from queue_workflows.errors import ConfigurationError, ExitCode

if TYPE_CHECKING:
    from queue_workflows.db.connections.engine import Database
    from queue_workflows.web.serving import Served

# An address of IPv6 has colons, and stands in brackets only before a port.
_HOST_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
_NEEDED = ("starlette", "uvicorn", "jinja2")


def _names(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Names as they stand in a browser's address, without a scheme or a port."""
    for name in given:
        if _HOST_NAME.fullmatch(name) is None:
            raise click.BadParameter(f"{name[:80]!r} is no host name: write it as in ops.internal")
    return given


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The loopback address to bind to.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8427,
    show_default=True,
    help="The port; 0 takes a free one and says which.",
)
@click.option("--read-only", is_flag=True, help="Show everything, change nothing.")
@click.option("--open", "opens", is_flag=True, help="Open it in a browser.")
@click.option(
    "--name",
    "names",
    multiple=True,
    callback=_names,
    metavar="HOST",
    help="Another host name that it answers to; may be repeated.",
)
@click.option(
    "--mcp", "has_mcp", is_flag=True, help="Let programs ask at /mcp, by the token that is printed."
)
@click.option(
    "--allow-acts",
    "acts",
    multiple=True,
    metavar="NAME",
    help="With --mcp: let programs do this act too, such as job.retry; may be repeated.",
)
@click.option(
    "--link",
    "wants_link",
    is_flag=True,
    help="Serve nothing: print an address that signs in another browser at the page that runs on --port.",
)
@click.pass_obj
def web(
    invocation: Invocation,
    *,
    host: str,
    port: int,
    read_only: bool,
    opens: bool,
    names: tuple[str, ...],
    has_mcp: bool,
    acts: tuple[str, ...],
    wants_link: bool,
) -> ExitCode:
    """Serve the operator's page until Ctrl-C: everything that `qwf` knows, live, in a browser.

    It is for you on this machine: the printed address signs in the browser that opens it first. It binds to
    loopback only; docs/how-to/dashboard.md says how to mount it in an application that knows its users.
    """
    from queue_workflows.cli.log.logs import log_to_stderr
    from queue_workflows.config import effective_settings
    from queue_workflows.db.connections.engine import Database
    from queue_workflows.roles.loop import Halt, Waiter

    check_installed()
    if wants_link:
        return _link(host, port, opens=opens)
    from queue_workflows.web.serving import freeze_what_is_loaded, served_page

    mcp_acts = _mcp_acts(acts) if has_mcp or acts else None
    settings = effective_settings()
    log_to_stderr(invocation, settings)
    with (
        Waiter() as waiter,
        Database.open(invocation.db_url, role="web", creates=False) as database,
        served_page(
            database,
            user=asking_user(),
            settings=settings,
            host=host,
            port=port,
            read_only=read_only,
            names=names,
            mcp_acts=mcp_acts,
        ) as served,
    ):
        freeze_what_is_loaded()
        halt = Halt(waiter.ring)
        with halt.on_signals():
            click.echo(served.first_url)
            if served.mcp_token is not None:
                click.echo(f"{served.url}/mcp Authorization: Bearer {served.mcp_token}")
            say(f"{database.redacted}: open the address above; its token is good once; Ctrl-C stops")
            if opens:
                webbrowser.open(served.first_url)
            while not halt.urgency:
                waiter.wait(3600)
    return halt.exit_code


def _link(host: str, port: int, *, opens: bool) -> ExitCode:
    """Print the way in for one more browser of this user."""
    from queue_workflows.config import effective_settings
    from queue_workflows.web.serving import further_url

    if port == 0:
        raise click.BadParameter("name the port of the page that runs", param_hint="--port")
    url = further_url(effective_settings(), host=host, port=port)
    click.echo(url)
    say("open it within five minutes; its token is good once")
    if opens:
        webbrowser.open(url)
    return ExitCode.DONE


@contextmanager
def page_beside(
    database: str | Database | None, *, port: int | None = None, keeps_key: bool = True
) -> Iterator[Served | None]:
    """The page beside other roles; None where it is not installed. On a free port, if its own is taken."""
    if not _is_installed():
        yield None
        return
    from queue_workflows.config import effective_settings
    from queue_workflows.web.serving import PORT, freeze_what_is_loaded, served_page

    settings, user = effective_settings(), asking_user()
    with ExitStack() as until_the_end:
        try:
            page = served_page(
                database,
                user=user,
                settings=settings,
                port=PORT if port is None else port,
                keeps_key=keeps_key,
            )
            served = until_the_end.enter_context(page)
        except ConfigurationError:
            if port is not None:
                raise
            page = served_page(database, user=user, settings=settings, port=0, keeps_key=keeps_key)
            served = until_the_end.enter_context(page)
        freeze_what_is_loaded()
        yield served


def _mcp_acts(acts: tuple[str, ...]) -> tuple[str, ...]:
    from queue_workflows.cli.page.mcp import check_acts
    from queue_workflows.web import mcp

    mcp.check_installed()
    check_acts(acts)
    return acts


def check_installed() -> None:
    """Say what to install, if the page's extra is not."""
    if not _is_installed():
        raise ConfigurationError(
            "the page is not installed", advice="install it with: pip install 'queue-workflows[web]'"
        )


def _is_installed() -> bool:
    """By importing it: what is there in part, without what it needs in its turn, is not there."""
    try:
        for name in _NEEDED:
            import_module(name)
    except ModuleNotFoundError:
        return False
    return True
