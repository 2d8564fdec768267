"""configure(): what a host app may say, how calls add up, and which database comes out of it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData
from sqlalchemy.orm import DeclarativeBase

from queue_workflows import config
from queue_workflows.config import (
    EngineConfig,
    HostMigrations,
    configure,
    current_config,
    effective_settings,
    reset_config,
    resolve_dsn,
)
from queue_workflows.errors import ConfigurationError

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No test sees the configuration, the DSN variables or the file of another."""
    for prefix in ("QWF_", "AI_LEADS_"):
        for name in ("DB_URL", "DIRECT_DB_URL", "LEASE_S", "POLL_S"):
            monkeypatch.delenv(prefix + name, raising=False)
    monkeypatch.chdir(tmp_path)
    before = current_config()
    reset_config()
    yield
    reset_config()
    configure(
        db_url_env=before.db_url_env,
        ingest_queues=before.ingest_queues,
        host_migrations=before.host_migrations,
        **before.overrides,
    )


def test_safe_defaults():
    """A host app that says nothing gets the two ingest queues and the embedded server."""
    assert current_config() == EngineConfig()
    assert current_config().ingest_queues == {"fetch", "load"}
    assert current_config().host_migrations is None
    chosen = resolve_dsn()
    assert (chosen.dsn, chosen.source, chosen.direct_dsn) == (None, "embedded server", None)


def test_a_second_call_adds_to_the_first():
    """What the later call gives wins, what it does not mention stays, and None takes back."""
    configure(lease_s=60, poll_s=2, ingest_queues={"mail"}, db_url_env="FILM_DB")
    configure(lease_s=90)
    settings = effective_settings()
    assert (settings.lease_s, settings.poll_s) == (90, 2)
    assert current_config().ingest_queues == {"mail"}
    configure(lease_s=None, ingest_queues=None, db_url_env=None)
    assert (effective_settings().lease_s, effective_settings().poll_s) == (30, 2)
    assert current_config() == EngineConfig(overrides={"poll_s": 2})


def test_a_refused_call_changes_nothing():
    """One wrong argument, and none of the call's others is in force."""
    configure(lease_s=60)
    before = current_config()
    for wrong in ({"poll_s": -1}, {"ingest_queues": {"cpu"}}, {"leases": 3}, {"host_migrations": "x"}):
        with pytest.raises(ConfigurationError):
            configure(**{"lease_s": 90, **wrong})
    assert current_config() is before


def test_calls_from_two_threads_both_count(monkeypatch: pytest.MonkeyPatch):
    """A call that comes while another merges waits for it, and neither is lost."""
    merge = config.replace
    other = threading.Thread(target=configure, kwargs={"poll_s": 7})

    def merge_while_the_other_calls(*args: object, **changes: object) -> EngineConfig:
        monkeypatch.setattr(config, "replace", merge)
        other.start()
        other.join(timeout=0.3)
        return merge(*args, **changes)

    monkeypatch.setattr(config, "replace", merge_while_the_other_calls)
    configure(lease_s=60)
    other.join()
    assert current_config().overrides == {"lease_s": 60, "poll_s": 7}


def test_configuration_handed_out_cannot_be_changed():
    """Only configure() changes it."""
    with pytest.raises(TypeError):
        configure(lease_s=60).overrides["lease_s"] = 1  # type: ignore[index]
    with pytest.raises(AttributeError):
        current_config().ingest_queues = frozenset()  # type: ignore[misc]


def test_precedence_of_configure(monkeypatch: pytest.MonkeyPatch):
    """An argument beats configure(), which beats the environment even with the default's own value."""
    monkeypatch.setenv("QWF_LEASE_S", "60")
    assert effective_settings().lease_s == 60
    configure(lease_s=30)
    assert effective_settings().source_of("lease_s") == "configure()"
    assert effective_settings().lease_s == 30
    assert effective_settings({"lease_s": 5}).lease_s == 5


def test_unknown_keyword_is_refused_with_the_nearest():
    """A misspelt keyword is not silently a setting nobody reads."""
    with pytest.raises(ConfigurationError, match="did you mean 'ingest_queues'"):
        configure(ingest_queue={"fetch"})
    with pytest.raises(ConfigurationError, match="did you mean 'container_prefix'"):
        configure(container_prefx="x")
    with pytest.raises(ConfigurationError, match=r"configure\(lease_s='x'\) is not allowed"):
        configure(lease_s="x")


@pytest.mark.parametrize("name", ["cpu", "gpu", "hooks", "GPU"])
def test_reserved_queues_are_refused(name: str):
    """The node queues are not for ingest jobs."""
    with pytest.raises(ConfigurationError, match=f"{name} is reserved"):
        configure(ingest_queues=["fetch", name])


@pytest.mark.parametrize("name", ["", "a b", "a:b", "*", "1st", "a" * 64, "a\n", "ä", 3, None])
def test_queue_names_are_checked(name: object):
    """A name that NOTIFY, worker ids or the operator's `*` could not carry is refused."""
    with pytest.raises(ConfigurationError, match="is no queue name"):
        configure(ingest_queues=[name])


@pytest.mark.parametrize("queues", ["fetch", 3])
def test_queues_are_a_collection(queues: object):
    """A bare string would be six queues of one letter."""
    with pytest.raises(ConfigurationError, match="must be a collection of names"):
        configure(ingest_queues=queues)


def test_the_dsn_and_who_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """argument > configure() > QWF_DB_URL > AI_LEADS_DB_URL > file > embedded server."""
    seen = []
    (tmp_path / "qwf.toml").write_text('db_url = "postgresql:///file"\n')
    seen.append(resolve_dsn())
    monkeypatch.setenv("AI_LEADS_DB_URL", "postgresql:///older")
    seen.append(resolve_dsn())
    monkeypatch.setenv("QWF_DB_URL", "postgresql:///env")
    seen.append(resolve_dsn())
    configure(db_url="postgresql:///configured")
    seen.append(resolve_dsn())
    seen.append(resolve_dsn("postgresql:///argument"))
    assert [(choice.dsn, choice.source) for choice in seen] == [
        ("postgresql:///file", str(tmp_path / "qwf.toml")),
        ("postgresql:///older", "AI_LEADS_DB_URL"),
        ("postgresql:///env", "QWF_DB_URL"),
        ("postgresql:///configured", "configure()"),
        ("postgresql:///argument", "argument"),
    ]


def test_renamed_dsn_variable(monkeypatch: pytest.MonkeyPatch):
    """configure(db_url_env=…) reads that variable and not another host app's."""
    monkeypatch.setenv("FILM_DB", "postgresql:///film")
    monkeypatch.setenv("AI_LEADS_DB_URL", "postgresql:///other")
    configure(db_url_env="FILM_DB")
    assert (resolve_dsn().dsn, resolve_dsn().source) == ("postgresql:///film", "FILM_DB")
    with pytest.raises(ConfigurationError, match="must be the name of an environment variable") as caught:
        configure(db_url_env="postgresql://u:s3cret@h/d")
    assert "s3cret" not in str(caught.value)


def test_a_function_that_names_the_dsn(monkeypatch: pytest.MonkeyPatch):
    """It is asked each time and beats the environment; None from it is as if nothing was given."""
    monkeypatch.setenv("QWF_DB_URL", "postgresql://env/there")
    said: list[str | None] = ["postgresql://host/one", "postgresql://host/two", None]
    configure(db_url=lambda: said.pop(0), lease_s=7)
    assert [resolve_dsn().dsn for _ in range(3)] == [
        "postgresql://host/one",
        "postgresql://host/two",
        "postgresql://env/there",
    ]
    assert resolve_dsn("postgresql://host/argument").dsn == "postgresql://host/argument"
    said += ["postgresql://host/three"] * 2
    assert (resolve_dsn().source, effective_settings({"lease_s": 9}).lease_s) == ("configure()", 9)
    configure(db_url=None)
    assert resolve_dsn().dsn == "postgresql://env/there"


def test_direct_dsn_belongs_to_the_dsn(monkeypatch: pytest.MonkeyPatch):
    """A direct DSN from a weaker place was written for another database; migrations must not go there."""
    monkeypatch.setenv("QWF_DB_URL", "postgresql:///proxy")
    monkeypatch.setenv("QWF_DIRECT_DB_URL", "postgresql:///direct")
    assert resolve_dsn().direct_dsn == "postgresql:///direct"
    assert resolve_dsn("postgresql:///elsewhere").direct_dsn is None
    configure(db_url="postgresql:///configured")
    assert resolve_dsn().direct_dsn is None
    configure(direct_db_url="postgresql:///configured-direct")
    assert resolve_dsn().direct_dsn == "postgresql:///configured-direct"


def test_direct_dsn_alone_is_refused(monkeypatch: pytest.MonkeyPatch):
    """Whoever gave only the direct one did not ask for an embedded server."""
    monkeypatch.setenv("QWF_DIRECT_DB_URL", "postgresql:///direct")
    with pytest.raises(ConfigurationError, match=r"QWF_DIRECT_DB_URL.*set QWF_DB_URL as well"):
        resolve_dsn()


def test_no_password_in_what_is_printed():
    """The choice and the configuration can be logged."""
    configure(db_url="postgresql://u:s3cret@h/d", direct_db_url="postgresql://u:s3cret@h/e")
    assert "s3cret" not in f"{resolve_dsn()!r} {current_config()!r} {effective_settings()!r}"


def host(**changes: object) -> HostMigrations:
    given = {"versions": ".", "version_table": "film_schema_version", "metadata": MetaData(), **changes}
    return HostMigrations(**given)


def test_host_migrations_are_kept_with_an_absolute_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A relative directory is that of the call, whatever the process does to its working directory later."""
    (tmp_path / "versions").mkdir()
    chain = host(versions="versions")
    monkeypatch.chdir("/")
    assert configure(host_migrations=chain).host_migrations is chain
    assert chain.directory == chain.versions == tmp_path / "versions"


def test_host_migrations_inside_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`package:directory` finds the revisions where the package is installed, without importing it."""
    (tmp_path / "film_app" / "db" / "versions").mkdir(parents=True)
    (tmp_path / "film_app" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir("/")
    assert host(versions="film_app:db/versions").directory == tmp_path / "film_app" / "db" / "versions"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"versions": "nowhere"}, "nowhere is no directory — create it"),
        ({"versions": ""}, "must be a path"),
        ({"versions": 3}, "must be a path"),
        ({"versions": "no_such_package_of_ours:versions"}, "there is no package no_such_package_of_ours"),
        ({"versions": "no_such.package:versions"}, "there is no package no_such.package"),
        ({"versions": "queue_workflows:nowhere"}, "is no directory"),
        ({"version_table": "queue_schema_version"}, "the engine's own version table"),
        ({"version_table": "QUEUE_SCHEMA_VERSION"}, "the engine's own version table"),
        ({"version_table": "a b"}, "is no table name"),
        ({"version_table": "a" * 64}, "is no table name"),
        ({"version_table": 'x"; drop'}, "is no table name"),
        ({"version_table": None}, "is no table name"),
        ({"metadata": None}, "must be a sqlalchemy.MetaData, not NoneType"),
        ({"include_name": "yes"}, "must be a function or None"),
    ],
)
def test_host_migrations_are_checked_at_once(wrong: dict[str, object], says: str):
    """What would fail in the middle of a migration fails where it is written."""
    with pytest.raises(ConfigurationError) as caught:
        host(**wrong)
    assert says in str(caught.value)


def test_a_declarative_base_in_place_of_its_metadata():
    """The commonest slip is answered with what was meant."""

    class Base(DeclarativeBase):
        pass

    with pytest.raises(ConfigurationError, match=r"give Base\.metadata"):
        host(metadata=Base)


def test_configure_alone_loads_no_sqlalchemy():
    """A producer's wiring does not pay for what only the database needs."""
    code = (
        "import sys; from queue_workflows import configure; configure(lease_s=60);"
        "print([name for name in ('sqlalchemy', 'alembic', 'psycopg') if name in sys.modules])"
    )
    env = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_hooks_on_the_end_of_runs_add_up():
    """In the order of their registration; one that is read again takes the place of its older self."""

    def of_a_closure(name: str):
        return lambda run: name

    one, two = of_a_closure("one"), of_a_closure("two")
    assert config.on_run_finished(one) is one
    config.on_run_finished(two)
    config.on_run_finished(one)
    assert current_config().run_finished_hooks == (two, one)
    source = "def tell(run): return {}"
    readings = []
    for version in (1, 2):
        space: dict[str, Any] = {"__name__": "film.hooks"}
        exec(source.format(version), space)
        readings.append(config.on_run_finished(space["tell"]))
    assert current_config().run_finished_hooks == (two, one, readings[1])
    with pytest.raises(ConfigurationError, match="must be a function"):
        config.on_run_finished(None)
