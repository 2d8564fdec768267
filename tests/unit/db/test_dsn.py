"""DSNs: what is understood, what is refused, and that no secret is ever repeated."""

import contextlib
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from queue_workflows.db.connections.dsn import (
    _SAME_TO_BOTH,
    foreign_driver,
    mask_secrets,
    parse_dsn,
    place_of,
    redact_dsn,
)
from queue_workflows.errors import ConfigurationError, ExitCode

SECRET = "s3cr3t-pa55"
AWKWARD = "p@ss/w:rd%#?& 'x\\+"


@pytest.mark.parametrize(
    "scheme",
    [
        "postgresql",
        "postgres",
        "POSTGRESQL",
        "postgresql+psycopg",
        "postgresql+psycopg2",
        "postgresql+asyncpg",
    ],
)
def test_every_spelling_of_the_scheme_means_the_same(scheme):
    """A host app's URL is taken as it is, whichever driver it names."""
    assert parse_dsn(f"{scheme}://app:{SECRET}@db:5433/work?sslmode=require") == {
        "host": "db",
        "port": "5433",
        "user": "app",
        "password": SECRET,
        "dbname": "work",
        "sslmode": "require",
    }


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_special_characters_survive_percent_encoding(scheme):
    """Any character can stand in user, password and name, percent-encoded."""
    word = quote(AWKWARD, safe="")
    params = parse_dsn(f"{scheme}://{word}:{word}@db/{quote('näme x', safe='')}")
    assert (params["user"], params["password"], params["dbname"]) == (AWKWARD, AWKWARD, "näme x")


def test_keyword_strings_with_quotes():
    """libpq's keyword form is understood with its quoting, and blanks around the DSN do not matter."""
    dsn = f"  {make_conninfo('', host='/var/run/pg', dbname='a b', password=AWKWARD)}\n"
    assert parse_dsn(dsn) == {"host": "/var/run/pg", "dbname": "a b", "password": AWKWARD}


def test_several_hosts_in_both_dialects():
    """Several hosts keep their ports: libpq's comma form and SQLAlchemy's repeated parameter."""
    libpq = parse_dsn("postgresql://u@a:1,b:2/db")
    alchemy = parse_dsn("postgresql+psycopg://u@/db?host=a:1&host=b:2")
    assert libpq == alchemy == {"user": "u", "dbname": "db", "host": "a,b", "port": "1,2"}
    assert place_of(libpq) == "u@a:1,b:2/db"


def test_options_of_a_sqlalchemy_url_keep_their_spaces():
    """SQLAlchemy writes a space in a query as +, which libpq would take literally."""
    dsn = "postgresql+psycopg://u@db/x?options=-c+search_path%3Dapp"
    assert parse_dsn(dsn)["options"] == "-c search_path=app"


@pytest.mark.parametrize(
    "rest",
    [
        "h/d",
        "u@h/d",
        "u:pw@db.example:5432/film-db",
        "a.b:s$e=c+r;t@h:1/x",
        "u:p%40q%2Fr%25@h:65535/d",
        "u%2Bv:x%7fy@h/d_1",
    ],
)
def test_a_plain_url_is_read_as_sqlalchemy_reads_it(rest):
    """Without SQLAlchemy, which a process that only connects need not load."""
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
    from sqlalchemy.engine import make_url

    url = f"postgresql+psycopg://{rest}"
    assert _SAME_TO_BOTH.fullmatch(url)
    _, keywords = PGDialect_psycopg().create_connect_args(make_url(url))
    assert parse_dsn(url) == {word: str(value) for word, value in keywords.items()}


@pytest.mark.parametrize(
    "rest", ["u:p@w@h/d", "u@h/a%20b", "u@h:05/d", "u:%ff@h/d", "u:%00@h/d", "u@h/d?a=b", "u@[::1]/d"]
)
def test_what_only_one_of_the_two_reads_is_left_to_sqlalchemy(rest):
    """Escapes in a name, bytes that are no text, parameters."""
    assert not _SAME_TO_BOTH.fullmatch(f"postgresql+psycopg://{rest}")


def test_asyncpgs_ssl_is_libpqs_sslmode():
    """The URL of a host app on asyncpg keeps its TLS setting."""
    assert parse_dsn("postgresql+asyncpg://u@db/x?ssl=verify-full")["sslmode"] == "verify-full"


def test_a_foreign_driver_is_named():
    """Drivers over libpq mean no difference; others are named, so that a user can be told."""
    assert foreign_driver("postgresql+asyncpg://h/d") == "asyncpg"
    assert foreign_driver("postgresql+psycopg2://h/d") is None
    assert foreign_driver("postgresql://h/d") is None
    assert foreign_driver("host=h") is None


@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        (f"mysql://u:{SECRET}@h/d", "mysql"),
        (f"postgresql://u:{SECRET}%zz@h/d", "%25"),
        (f"postgresql://u:{SECRET}%00@h/d", "percent-encode"),
        (f"postgresql://u:a@{SECRET}@h/d", "%40"),
        (f"postgresql://u:{SECRET}/x@h/d", "%2F"),
        (f"postgresql+psycopg://u:a@h:{SECRET}/d", "cannot be read"),
        (f"postgresql+psycopg:/{SECRET}", "cannot be read"),
        (f"postgresql://u:{SECRET}@h:99999/d", "65535"),
        (f"postgresql://u:{SECRET}@[::1/d", "bracket"),
        (f"postgresql://u:{SECRET}@h/d?sslmod=require", "`sslmode`"),
        (f"postgresql+asyncpg://u:{SECRET}@h/d?prepared_statement_cache_size=0", "libpq"),
        (f"password=my {SECRET}", "quote values"),
        (f"password='{SECRET}", "quote"),
        (f"password=a {SECRET}=b", "libpq"),
        (f"host=h password={SECRET}\0", "NUL"),
        (SECRET, "no value"),
    ],
)
def test_unreadable_dsns_are_one_clear_line_without_the_secret(dsn, says):
    """What cannot be read is a configuration error that says why and repeats nothing secret."""
    with pytest.raises(ConfigurationError) as caught:
        parse_dsn(dsn)
    text = str(caught.value)
    assert says in text
    assert SECRET not in text
    assert "\n" not in text
    assert caught.value.exit_code == ExitCode.CONFIGURATION
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert SECRET not in redact_dsn(dsn)


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        (
            f"postgresql+psycopg://u:{SECRET}@db:5433/work?sslmode=require&sslpassword={SECRET}",
            "postgresql://u:***@db:5433/work?sslmode=require&sslpassword=***",
        ),
        (f"postgresql://db/work?user=u&password={SECRET}", "postgresql://u:***@db/work"),
        ("postgresql://u@/work?host=/run/pg&port=6", "postgresql://u@/work?host=/run/pg&port=6"),
        ("postgresql://u@[::1]:7/work", "postgresql://u@[::1]:7/work"),
        (f"host=db user=u password={SECRET} passfile=/x", "host=db user=u password=*** passfile=/x"),
        (f"host=db password='{SECRET} with blank'", "host=db password=***"),
    ],
)
def test_redaction_keeps_the_place_and_masks_the_secrets(dsn, shown):
    """A log line says where the connection goes, never with what."""
    assert sorted(redact_dsn(dsn).split()) == sorted(shown.split())


def test_a_redacted_url_is_still_a_url_to_the_same_place():
    """Redaction changes nothing but the secrets."""
    dsn = (
        f"postgresql://{quote('ä b@', safe='')}:{SECRET}@a:1,b:2/{quote('x/y', safe='')}?application_name=me"
    )
    assert parse_dsn(redact_dsn(dsn)) == {**parse_dsn(dsn), "password": "***"}


@given(
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), min_size=6).filter(
        lambda s: s.strip("* ") and s not in "password=*** host=somewhere user=postgresql://"
    )
)
def test_no_password_survives_redaction(password):
    """Whatever the password is made of, neither form of DSN lets it through."""
    for dsn in (
        make_conninfo("", host="somewhere", user="u", password=password),
        f"postgresql://u:{quote(password, safe='')}@somewhere",
    ):
        assert parse_dsn(dsn)["password"] == password
        assert password not in redact_dsn(dsn)
        assert quote(password, safe="") not in redact_dsn(dsn)


@given(st.text(max_size=60))
def test_parsing_never_fails_otherwise(text):
    """Any text at all is parsed or refused as configuration, and can be redacted."""
    for dsn in (text, "postgresql://" + text, "postgresql+psycopg://" + text):
        with contextlib.suppress(ConfigurationError):
            parse_dsn(dsn)
        redact_dsn(dsn)


def test_masking_in_a_message():
    """Text of others goes on one line, masked; a password that is also the user name hides nothing."""
    assert mask_secrets(f"bad\n\t{SECRET} there", {"password": SECRET}) == "bad *** there"
    assert mask_secrets('user "app"', {"password": "app", "user": "app"}) == 'user "app"'


@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        ("host=db sslmod=require", "an option `sslmod` that libpq does not know — did you mean `sslmode`?"),
        ("postgresql://u@h/d?frobnicate=1", "an option `frobnicate` that libpq does not know"),
        ("postgresql+psycopg://u:pw@h/d?sslmod=x", "an option `sslmod` that"),
    ],
)
def test_an_unknown_option_is_named(dsn, says):
    """Whoever mistyped one is told which."""
    with pytest.raises(ConfigurationError) as caught:
        parse_dsn(dsn)
    assert says in str(caught.value)


@pytest.mark.parametrize("dsn", ["host=db password=blue zebra=9", "postgresql://u:blue@h/d?x=1&zebra=9"])
def test_what_may_be_a_piece_of_a_password_is_not_named(dsn):
    """A blank or an ampersand in a password makes an option of its rest."""
    with pytest.raises(ConfigurationError) as caught:
        parse_dsn(dsn)
    assert "zebra" not in str(caught.value)
