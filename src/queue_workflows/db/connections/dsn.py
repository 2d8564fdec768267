"""What a DSN says, without ever repeating the secrets in it.

libpq parses what libpq would connect with; a URL that names a driver (`postgresql+psycopg://`) is
SQLAlchemy's dialect of a URL, so SQLAlchemy parses that, unless the two would read it alike. libpq's own
messages quote pieces of the text, which may be pieces of a badly quoted password: none of them is passed on.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from urllib.parse import quote

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queue_workflows.errors import ConfigurationError

_SCHEME = re.compile(r"([a-z][a-z0-9.+-]*)://", re.IGNORECASE)
_LIBPQ_DRIVERS = frozenset({"psycopg", "psycopg_async", "psycopg2", "psycopg2cffi", "psycopgbinary"})
# What SQLAlchemy and libpq read alike: no escape in what only one of them decodes, and no parameters.
_SAME_TO_BOTH = re.compile(
    r"[a-z][a-z0-9.+-]*://(?:(?:[\w.~-]|%[2-7][0-9a-f])+(?::(?:[\w.~!$*()+,;=-]|%[2-7][0-9a-f])+)?@)?"
    r"[a-z0-9.-]+(?::[1-9][0-9]{0,4})?/[\w.~-]+",
    re.IGNORECASE | re.ASCII,
)
_WORD = re.compile(r"[A-Za-z_]{2,40}")
_MAY_HOLD_SECRET = re.compile(r"://[^/]*:.*@|pass|secret|key", re.IGNORECASE)
_QUOTED = re.compile(r'"([^"]*)"')
_KEYWORDS = {option.keyword.decode(): option.dispchar for option in pq.Conninfo.get_defaults()}
_SECRETS = frozenset({word for word, shown in _KEYWORDS.items() if shown == b"*"}) | {
    "password",
    "sslpassword",
    "oauth_client_secret",
    "scram_client_key",
    "scram_server_key",
}
_MASK = "***"
_ENCODE = (
    "percent-encode special characters in the user and the password (@ is %40, / is %2F, : is %3A, % is %25)"
)
_SHAPE = "write postgresql://user:password@host:5432/dbname, or libpq keywords such as `host=db dbname=app`"

# Which part of libpq's complaint means what, in words that quote nothing of the DSN.
_COMPLAINTS = (
    ("percent-encoded", "it has a % that starts no valid escape", _ENCODE),
    ("unterminated quoted string", "a quote is not closed", r"write \' for a quote inside a quoted value"),
    ('missing "="', "a word in it has no value", "quote values that hold spaces, as in password='two words'"),
    ("unexpected spaces", "it holds a space", "write %20 for a space"),
    ("IPv6", "the IPv6 address is not closed", "write it in brackets, as in postgresql://[::1]:5432/dbname"),
    ("missing key/value separator", "a parameter after the ? has no value", _SHAPE),
    ("unexpected character", "it has a character where none can stand", _ENCODE),
)


def parse_dsn(dsn: str) -> dict[str, str]:
    """The libpq parameters of a URL or keyword string; else a ConfigurationError without secrets."""
    text = dsn.strip()
    if not text:
        raise ConfigurationError("the database DSN is empty", advice=_SHAPE)
    if "\0" in text:
        raise ConfigurationError("the database DSN holds a NUL character", advice=_SHAPE)
    scheme, driver = _scheme_of(text)
    params = _parse_sqlalchemy_url(text) if driver else _parse_libpq(text, is_url=bool(scheme))
    _refuse_misread(params)
    return params


def foreign_driver(dsn: str) -> str | None:
    """The driver that a URL names, if it does not use libpq; we connect with psycopg all the same."""
    match = _SCHEME.match(dsn.strip())
    driver = match.group(1).lower().partition("+")[2] if match else ""
    return driver if driver and driver not in _LIBPQ_DRIVERS else None


def redact_dsn(dsn: str) -> str:
    """The DSN as it may stand in a log: same place, options kept, secrets masked."""
    try:
        params = parse_dsn(dsn)
    except ConfigurationError:
        return "(a DSN that cannot be read)"
    shown = {word: _MASK if word in _SECRETS else value for word, value in params.items()}
    return as_url(shown) if _SCHEME.match(dsn.strip()) else make_conninfo("", **shown)


def place_of(params: Mapping[str, str]) -> str:
    """Where a connection goes, for messages: `user@host:port/dbname`."""
    hosts = _hosts(params) or ["the local socket"]
    user = f"{params['user']}@" if params.get("user") else ""
    return f"{user}{','.join(hosts)}/{params.get('dbname', '')}".rstrip("/")


def secrets_of(params: Mapping[str, str]) -> list[str]:
    """The values that must not be shown.

    A password equal to the user name is no secret that masking could keep, and would hide what went wrong.
    """
    public = {value for word, value in params.items() if word not in _SECRETS}
    return [params[word] for word in _SECRETS & params.keys() if params[word] and params[word] not in public]


def mask_secrets(text: str, params: Mapping[str, str]) -> str:
    """Text of a server or driver on one line, with the DSN's secrets masked wherever they stand in it."""
    line = " ".join(text.split())
    for secret in secrets_of(params):
        line = line.replace(secret, _MASK).replace(quote(secret, safe=""), _MASK)
    return line


def _scheme_of(text: str) -> tuple[str, str]:
    match = _SCHEME.match(text)
    if match is None:
        return "", ""
    scheme, _, driver = match.group(1).lower().partition("+")
    if scheme not in {"postgresql", "postgres"}:
        raise ConfigurationError(f"the database DSN is for {scheme}, this needs PostgreSQL", advice=_SHAPE)
    return scheme, driver


def _parse_libpq(text: str, *, is_url: bool) -> dict[str, str]:
    if is_url:
        # libpq compares the scheme by case; a URL's scheme has none.
        text = _SCHEME.sub(lambda match: match.group(0).lower(), text, count=1)
    try:
        return {word: str(value) for word, value in conninfo_to_dict(text).items()}
    except psycopg.Error as exc:
        raise _unreadable(str(exc), text) from None


def _parse_sqlalchemy_url(text: str) -> dict[str, str]:
    if _SAME_TO_BOTH.fullmatch(text):
        return _parse_libpq(f"postgresql://{text.partition('://')[2]}", is_url=True)
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        _, keywords = PGDialect_psycopg().create_connect_args(make_url(text))  # type: ignore[no-untyped-call]
    except (ArgumentError, ValueError):
        raise ConfigurationError("the database DSN cannot be read", advice=f"{_SHAPE}; {_ENCODE}") from None
    given = {word: str(value) for word, value in keywords.items() if value is not None}
    if "ssl" in given:
        # asyncpg's word for libpq's sslmode, with the same values.
        given.setdefault("sslmode", "require" if given["ssl"] == "true" else given["ssl"])
        del given["ssl"]
    try:
        return {word: str(value) for word, value in conninfo_to_dict(make_conninfo("", **given)).items()}
    except psycopg.Error as exc:
        raise _unreadable(str(exc), text) from None


def _unreadable(complaint: str, text: str) -> ConfigurationError:
    if "invalid connection option" in complaint or "invalid URI query parameter" in complaint:
        return _unknown_option(complaint, text)
    for part, what, advice in _COMPLAINTS:
        if part in complaint:
            return ConfigurationError(f"the database DSN cannot be read: {what}", advice=advice)
    return ConfigurationError("the database DSN cannot be read", advice=_SHAPE)


def _unknown_option(complaint: str, text: str) -> ConfigurationError:
    """It is named if it can be no piece of a badly quoted password: there is none, or it is a near miss."""
    quoted = _QUOTED.search(complaint)
    option = quoted.group(1) if quoted else ""
    near = difflib.get_close_matches(option, _KEYWORDS, n=1)
    safe = _WORD.fullmatch(option) and (near or not _MAY_HOLD_SECRET.search(text))
    named = f" `{option}`" if safe else ""
    meant = f"did you mean `{near[0]}`?" if near else "it takes libpq's options only, such as `sslmode`"
    return ConfigurationError(
        f"the database DSN has an option{named} that libpq does not know",
        advice=meant,
    )


def _refuse_misread(params: Mapping[str, str]) -> None:
    """An unescaped @ or / in a password still parses, with the rest of it taken for host, port or name."""
    ports = [port for port in params.get("port", "").split(",") if port]
    if "@" in params.get("host", "") or not all(port.isascii() and port.isdigit() for port in ports):
        raise ConfigurationError("the database DSN has no readable host and port", advice=_ENCODE)
    if not all(0 < int(port) < 65536 for port in ports):
        raise ConfigurationError("the database DSN has a port outside 1 to 65535")


def _hosts(params: Mapping[str, str]) -> list[str]:
    hosts = (params.get("host") or params.get("hostaddr") or "").split(",")
    ports = params.get("port", "").split(",")
    if len(ports) < len(hosts):
        ports = ports[:1] * len(hosts)
    named = [f"[{host}]" if ":" in host else host for host in hosts]
    return [f"{host}:{port}" if port else host for host, port in zip(named, ports, strict=False) if host]


def as_url(params: Mapping[str, str]) -> str:
    """The parameters as a URL; the reverse of `parse_dsn`, secrets and all."""

    def encoded(value: str) -> str:
        return quote(value, safe="*")

    rest = {word: value for word, value in params.items() if word not in {"user", "password", "dbname"}}
    where = ""
    if params.get("host") and "/" not in params["host"]:
        where = ",".join(_hosts(params))
        rest.pop("host")
        rest.pop("port", None)
    account = encoded(params.get("user", ""))
    if "password" in params:
        account += ":" + encoded(params["password"])
    query = "&".join(f"{word}={quote(value, safe='*/,=:')}" for word, value in rest.items())
    name = encoded(params.get("dbname", ""))
    return f"postgresql://{account}{'@' if account else ''}{where}/{name}{'?' if query else ''}{query}"
