"""Workers look in turn only with those of the same database, however it is named."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from queue_workflows.roles.worker.common.parts import place_of


def test_what_comes_from_the_environment_names_the_place(
    qwf_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One DSN may mean two servers, where libpq takes the address from variables."""
    whole = conninfo_to_dict(qwf_dsn)
    with psycopg.connect(qwf_dsn) as connection:
        place = place_of(connection)
    for name, variable in (("host", "PGHOST"), ("port", "PGPORT")):
        if name in whole:
            monkeypatch.setenv(variable, str(whole.pop(name)))
    with psycopg.connect(**whole) as connection:  # type: ignore[arg-type]
        assert place_of(connection) == place
    assert f"host={conninfo_to_dict(qwf_dsn).get('host')}" in place
