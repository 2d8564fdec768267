"""Settings: where each value comes from, and how a wrong one is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from queue_workflows.errors import ConfigurationError, ExitCode
from queue_workflows.settings import (
    Layer,
    Settings,
    UnknownVariable,
    load_settings,
    settings_table,
    unknown_variables,
)

ROOT = Path(__file__).parents[3]
GOOD = {
    "log_level": "debug",
    "log_format": "json",
    "backoff_jitter": "0.5",
    "db_url": "postgresql://u:secret@h/d",
    "direct_db_url": "host=/tmp dbname=d",
    "listen": "off",
    "data_dir": "/srv/qwf",
    "pg_bindir": "/usr/bin",
    "embedded_user": "nobody",
    "app": "films.wiring",
    "host_label": "gpu-7",
    "container_prefix": "films-",
    "hook_dirs": "plugins:/srv/plugins",
    "lock_dir": "/run/films",
    "host_priority_first": "low",
    "lease_s_by_queue": "fetch=60",
    "budget_s_by_queue": "fetch=60",
    "limits": "host:*=4,unpaywall=10/s",
    "renew_s": "4",
    "deadman": "no",
    "model_memory_learned": "no",
    "wait_causes": "off",
}


def load(environ: dict[str, str] | None = None, start: Path = Path("/"), **layers: object) -> Settings:
    return load_settings(environ=environ or {}, start_dir=start, **layers)


def refusal(environ: dict[str, str] | None = None, start: Path = Path("/"), **layers: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(environ, start, **layers)
    assert caught.value.exit_code == ExitCode.CONFIGURATION
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_of_the_design():
    """The engine's defaults are those that the design promises."""
    settings = load()
    assert (settings.lease_s, settings.lease_for("gpu"), settings.lease_for("cpu")) == (30, 300, 30)
    assert (settings.poll_s, settings.max_attempts) == (1, 3)
    assert (settings.backoff_s, settings.backoff_jitter) == (60, 0.2)
    assert (settings.ingest_default_budget_s, settings.stale_heartbeat_s) == (3600, 30)
    assert (settings.stall_timeout_s, settings.container_prefix) == (120, "ai_leads-")
    assert (settings.db_url, settings.listen, settings.deadman) == (None, True, True)
    assert {settings.source_of(name) for name in Settings.model_fields} == {"default"}


@pytest.mark.parametrize("name", Settings.model_fields)
@pytest.mark.parametrize("prefix", ["QWF_", "AI_LEADS_"])
def test_every_setting_has_its_variable_and_its_older_name(name: str, prefix: str):
    """Each setting can be given by QWF_* and by AI_LEADS_*, and says which it was."""
    value = GOOD.get(name, "50" if name != "poll_s" else "0.5")
    if name.startswith("payload"):
        value = "4096" if name.endswith("bytes") else "7"
    variable = prefix + name.upper()
    settings = load({variable: value})
    assert getattr(settings, name) != getattr(load(), name)
    assert settings.source_of(name) == variable


def test_first_layer_that_has_it_wins(tmp_path: Path):
    """argument > configure() > QWF_ > AI_LEADS_ > file > default, taken away one by one."""
    (tmp_path / "qwf.toml").write_text("lease_s = 15\n")
    environ = {"QWF_LEASE_S": "13", "AI_LEADS_LEASE_S": "14"}
    everything = {"arguments": {"lease_s": 11}, "overrides": {"lease_s": 12}}
    seen = []

    def look(**layers: object) -> None:
        settings = load(environ, tmp_path, **layers)
        seen.append((settings.lease_s, settings.source_of("lease_s"), settings.layer_of("lease_s").name))

    look(**everything)
    look(overrides=everything["overrides"])
    look()
    del environ["QWF_LEASE_S"]
    look()
    del environ["AI_LEADS_LEASE_S"]
    look()
    (tmp_path / "qwf.toml").unlink()
    look()
    assert seen == [
        (11, "argument", "ARGUMENT"),
        (12, "configure()", "CONFIGURE"),
        (13, "QWF_LEASE_S", "ENVIRONMENT"),
        (14, "AI_LEADS_LEASE_S", "OLDER_ENVIRONMENT"),
        (15, str(tmp_path / "qwf.toml"), "FILE"),
        (30, "default", "DEFAULT"),
    ]


def test_a_value_equal_to_the_default_still_wins():
    """Unset is not the same as default: an override of 30 beats a variable of 60."""
    settings = load({"QWF_LEASE_S": "60"}, overrides={"lease_s": 30})
    assert (settings.lease_s, settings.source_of("lease_s")) == (30, "configure()")


@pytest.mark.parametrize("empty", ["", "  "])
def test_empty_variable_is_unset(empty: str):
    """An empty QWF_ variable leaves the older name and the default standing."""
    assert load({"QWF_LEASE_S": empty}).source_of("lease_s") == "default"
    assert load({"QWF_DB_URL": empty, "AI_LEADS_DB_URL": "postgresql:///x"}).db_url == "postgresql:///x"


def test_none_is_not_given():
    """None as an argument or in configure() is no value: a CLI option that was not passed changes nothing."""
    settings = load({"QWF_LEASE_S": "60"}, arguments={"lease_s": None}, overrides={"lease_s": None})
    assert (settings.lease_s, settings.source_of("lease_s")) == (60, "QWF_LEASE_S")


def test_leases_by_queue_keep_the_defaults_of_queues_not_named():
    """Naming one queue's lease leaves `gpu` at its own default; a table in a file does the same as pairs."""
    for settings in (
        load({"QWF_LEASE_S_BY_QUEUE": " fetch = 60 , load=90,"}),
        load(overrides={"lease_s_by_queue": {"fetch": 60, "load": 90}}),
    ):
        assert [settings.lease_for(queue) for queue in ("gpu", "fetch", "load", "cpu")] == [300, 60, 90, 30]
    assert load({"QWF_LEASE_S": "50", "QWF_LEASE_S_BY_QUEUE": "gpu=500"}).lease_for("gpu") == 500


def test_renewal_is_a_third_of_the_lease_and_at_most_ten_seconds():
    """Unset, the renewal follows the lease of each queue; set, it is what was said."""
    settings = load({"QWF_LEASE_S": "6"})
    assert (settings.renew_for("cpu"), settings.renew_for("gpu")) == (2, 10)
    assert load({"QWF_RENEW_S": "5"}).renew_for("gpu") == 5


def test_renewal_must_leave_room_for_a_second_try():
    """A renewal interval above half of the shortest lease is refused, wherever the lease came from."""
    assert "QWF_RENEW_S='16' is more than half of the shortest lease (30 s)" in refusal({"QWF_RENEW_S": "16"})
    assert "(2 s)" in refusal({"QWF_RENEW_S": "1.5", "QWF_LEASE_S_BY_QUEUE": "fetch=2"})
    assert load({"QWF_RENEW_S": "15"}).renew_s == 15


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("lease_s", "abc", "QWF_LEASE_S='abc' is not allowed, it must be a number from 0.5 to 86,400"),
        ("lease_s", "0", "a number from 0.5 to 86,400"),
        ("lease_s", "nan", "a number from 0.5"),
        ("lease_s", "inf", "a number from 0.5"),
        ("lease_s", "-1", "QWF_LEASE_S='-1'"),
        ("max_attempts", "2.5", "a whole number from 1 to 1,000"),
        ("listen", "perhaps", "QWF_LISTEN='perhaps' is not allowed, it must be on or off"),
        ("host_label", "a:b", "letters, digits"),
        ("host_label", "*", "letters, digits"),
        ("app", "os; rm", "a dotted module name"),
        ("lease_s_by_queue", "gpu", "pairs"),
        ("lease_s_by_queue", "gpu=soon", "pairs"),
        ("lease_s_by_queue", "g pu=3", "pairs"),
        ("lease_s_by_queue", "gpu=0", "pairs"),
        ("budget_s_by_queue", "gpu=0", "pairs"),
        ("budget_s_by_queue", "g pu=3", "pairs"),
    ],
)
def test_wrong_variable_is_named_with_what_is_allowed(name: str, value: str, says: str):
    """One line with the variable, the value, and what it may be."""
    assert says in refusal({"QWF_" + name.upper(): value})


def test_all_wrong_values_are_named_at_once():
    """Two wrong variables do not need two attempts."""
    said = refusal({"QWF_LEASE_S": "x", "AI_LEADS_POLL_S": "y"})
    assert "QWF_LEASE_S='x'" in said
    assert "AI_LEADS_POLL_S='y'" in said


@pytest.mark.parametrize("value", [True, "", [], object()])
def test_wrong_python_values_are_refused(value: object):
    """`lease_s=True` is no lease of one second."""
    assert "configure(lease_s=" in refusal(overrides={"lease_s": value})
    assert "argument lease_s=" in refusal(arguments={"lease_s": value})


def test_empty_path_and_url_are_refused_in_python():
    """`qwf --db "$UNSET"` must not quietly mean the embedded server."""
    assert "argument db_url=(not shown) is not allowed" in refusal(arguments={"db_url": ""})
    assert "configure(lock_dir='') is not allowed" in refusal(overrides={"lock_dir": ""})


def test_unknown_name_is_refused_with_the_nearest():
    """A misspelt keyword names the setting that was meant."""
    assert "did you mean 'lease_s'?" in refusal(overrides={"leases": 3})
    assert "did you mean 'lease_s'?" in refusal(arguments={"QWF_LEASE_S": 3})
    assert "docs/reference/configuration.md" in refusal(overrides={"xyzzy": 3})


@pytest.mark.parametrize("where", ["db_url", "host_label", "lease_s_by_queue", "file"])
def test_no_password_in_a_refusal_or_a_repr(where: str, tmp_path: Path):
    """Whichever setting a DSN was put into by mistake, its password stays out of the message."""
    dsn = "postgresql://user:s3cret@host/db"
    if where == "file":
        (tmp_path / "qwf.toml").write_text(f'host_label = "{dsn}"\ndb_url = 3\n')
        said = refusal(start=tmp_path)
    elif where == "db_url":
        said = repr(load({"QWF_DB_URL": dsn, "QWF_DIRECT_DB_URL": dsn}))
    else:
        said = refusal({"QWF_" + where.upper(): dsn})
    assert "s3cret" not in said


def test_unknown_variable_brings_a_warning_with_the_nearest_name():
    """A typing error in the environment does not pass in silence; the tests' own variables do."""
    with pytest.warns(
        UnknownVariable, match=r"QWF_LEASES is set but nothing reads it: did you mean QWF_LEASE_S\?"
    ):
        load({"QWF_LEASES": "3"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load({"QWF_TEST_DB_URL": "x", "AI_LEADS_ANYTHING": "x", "HOME": "/"})


def test_variables_that_our_scripts_and_plugin_read_bring_no_warning():
    """What scripts/ and the pytest plugin read is no typing error."""
    root = Path(__file__).resolve().parents[3]
    readers = [*(root / "scripts").iterdir(), *(root / "src/queue_workflows/testing").glob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in readers if path.is_file())
    names = set(re.findall(r"\bQWF_[A-Z_]*[A-Z]\b(?!…)", text))
    assert {"QWF_PYTHON", "QWF_DISABLE_EMBEDDED", "QWF_DISABLE_TESTCONTAINERS"} <= names
    assert unknown_variables(dict.fromkeys(names, "1")) == {}


def test_renamed_dsn_variable_replaces_both_names():
    """db_url_env names the only variable that is read, and says so when another one is set instead."""
    environ = {
        "FILM_DB": "postgresql:///film",
        "QWF_DB_URL": "postgresql:///q",
        "AI_LEADS_DB_URL": "postgresql:///a",
    }
    settings = load(environ, db_url_env="FILM_DB")
    assert (settings.db_url, settings.source_of("db_url")) == ("postgresql:///film", "FILM_DB")
    del environ["FILM_DB"]
    with pytest.warns(
        UnknownVariable, match="configure\\(db_url_env=…\\) names FILM_DB, which is unset"
    ) as seen:
        assert load(environ, db_url_env="FILM_DB").db_url is None
    assert len(seen) == 2


def test_file_is_found_upwards_and_only_the_nearest_counts(tmp_path: Path):
    """The nearest file wins as a whole; a pyproject.toml that does not speak of us is passed over."""
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "qwf.toml").write_text("lease_s = 40\npoll_s = 2\n")
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert load(start=deep).lease_s == 40
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.qwf]\nlease_s = 50\n")
    settings = load(start=deep)
    assert (settings.lease_s, settings.poll_s) == (50, 1)
    assert settings.source_of("lease_s") == str(tmp_path / "a" / "pyproject.toml")
    (tmp_path / "a" / "qwf.toml").write_text("[lease_s_by_queue]\ngpu = 70\n")
    settings = load(start=deep)
    assert (settings.lease_s, settings.lease_for("gpu")) == (30, 70)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("qwf.toml", "lease_s = 3\nlease = 4\n", "qwf.toml:2: unknown key 'lease' — did you mean 'lease_s'?"),
        ("qwf.toml", "\n\npoll_s = 1\nlease_s = 'long'\n", "qwf.toml:4: lease_s = 'long' is not allowed"),
        ("qwf.toml", "lease_s = true\n", "qwf.toml:1: lease_s = True is not allowed"),
        ("qwf.toml", "a = 1\nb = = 2\n", "qwf.toml:2: not valid TOML"),
        ("qwf.toml", "a = [\n", "qwf.toml:1: not valid TOML"),
        ("qwf.toml", "a = " + "[" * 20_000, "not valid TOML"),
        ("qwf.toml", "[lease_s_by_queue]\ngpu = true\n", "qwf.toml:1: lease_s_by_queue"),
        ("qwf.toml", "lease-s = 3\n", "unknown key 'lease-s' — did you mean 'lease_s'?"),
        ("qwf.toml", "db_url = ''\n", "qwf.toml:1: db_url = (not shown) is not allowed"),
        ("pyproject.toml", "[project]\nx = 1\n\n[tool.qwf]\nx = 2\n", "pyproject.toml:5: unknown key 'x'"),
        ("pyproject.toml", "[tool]\nqwf = 3\n", "`tool.qwf` must be a table"),
        ("pyproject.toml", "[tool.qwf]\nlease_s = \n", "pyproject.toml:2: not valid TOML"),
    ],
)
def test_broken_file_is_named_with_its_line(tmp_path: Path, name: str, text: str, says: str):
    """File, line, and what is wrong, whether it is the syntax, a key or a value."""
    (tmp_path / name).write_text(text)
    assert says in refusal(start=tmp_path)


def test_file_of_another_encoding_is_refused(tmp_path: Path):
    """A qwf.toml that is no UTF-8 is an error of ours, not a traceback."""
    (tmp_path / "qwf.toml").write_bytes(b"app = '\xff'")
    assert "qwf.toml: cannot be read" in refusal(start=tmp_path)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[project\n", b"tool = 3 # qwf\n"])
def test_a_stranger_s_broken_pyproject_is_none_of_our_business(tmp_path: Path, text: bytes):
    """A broken pyproject.toml further up that does not speak of us does not stop us."""
    (tmp_path / "pyproject.toml").write_bytes(text)
    assert load(start=tmp_path).lease_s == 30


def test_paths_are_absolute_and_relative_to_where_they_were_written(tmp_path: Path):
    """A path in a file is relative to the file, in a variable to the working directory."""
    deep = tmp_path / "deep"
    deep.mkdir()
    (tmp_path / "qwf.toml").write_text('data_dir = "state"\nlock_dir = "~/locks"\n')
    settings = load({"QWF_PG_BINDIR": "../bin"}, deep)
    assert settings.data_dir == tmp_path / "state"
    assert settings.pg_bindir == tmp_path / "bin"
    assert settings.lock_dir == Path(os.path.expanduser("~")) / "locks"
    (tmp_path / "qwf.toml").unlink()
    assert load(start=deep).data_dir == deep / ".qwf"


def test_settings_do_not_change():
    """Nobody can turn a knob behind the others' backs."""
    with pytest.raises(ValueError, match="frozen"):
        load().lease_s = 3  # type: ignore[misc]
    with pytest.raises(ConfigurationError, match="'leases' is no setting"):
        load().source_of("leases")


def test_working_directory_that_is_gone_is_one_clear_line(tmp_path: Path):
    """A shell left in a deleted directory gets told so."""
    code = (
        "import os, sys\nfrom queue_workflows.settings import load_settings\nos.rmdir(os.getcwd())\n"
        "try: load_settings(environ={})\nexcept Exception as e: print(type(e).__name__, e)"
    )
    here = tmp_path / "gone"
    here.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("ConfigurationError the working directory does not exist any more")


def test_every_setting_explains_itself():
    """The documentation's table has a default, a range and a sentence for each."""
    for row in settings_table():
        assert row.default
        assert row.allowed
        assert row.description.endswith(".")


def test_layers_are_in_the_order_of_precedence():
    """A smaller layer is a stronger one; `resolve_dsn` leans on it."""
    assert sorted(Layer) == [
        Layer.ARGUMENT,
        Layer.CONFIGURE,
        Layer.ENVIRONMENT,
        Layer.OLDER_ENVIRONMENT,
        Layer.FILE,
        Layer.DEFAULT,
    ]
