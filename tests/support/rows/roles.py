"""The six roles of docs/deploy/least-privilege.md, made by the very scripts of the docs."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

DEPLOY = Path(__file__).resolve().parents[3] / "docs" / "deploy"
NAMES = ("migrator", "orchestrator", "scheduler", "worker", "producer", "reader")


class Roles:
    """Roles are shared by all databases of a server, so each test's end in `qwf_role_suffix` and more."""

    def __init__(self, admin_dsn: str, suffix: str, schema: str = "public") -> None:
        self.admin_dsn = admin_dsn
        self.schema = schema
        self.suffix = f"{secrets.token_hex(2)}_{suffix}"
        self._password = secrets.token_hex(16)

    def name(self, role: str) -> str:
        """The group role as it is called here."""
        return f"qwf_{role}_{self.suffix}"

    def login(self, role: str) -> str:
        """The user that logs in and is a member of the group role, as in a deployment."""
        return f"login_{role}_{self.suffix}"

    def dsn(self, role: str) -> str:
        """The test's database as the user of that role."""
        return make_conninfo(self.admin_dsn, user=self.login(role), password=self._password)

    def connect(self, role: str) -> psycopg.Connection:
        """An autocommit connection as the user of that role."""
        return psycopg.connect(self.dsn(role), autocommit=True)

    @contextmanager
    def granted(self, role: str, to: str) -> Iterator[None]:
        """While one role has the rights of another too, as that of workers whose tasks enqueue."""
        groups = [sql.Identifier(self.name(one)) for one in (role, to)]
        with psycopg.connect(self.admin_dsn, autocommit=True) as admin:
            admin.execute(sql.SQL("GRANT {} TO {}").format(*groups))
            yield
            admin.execute(sql.SQL("REVOKE {} FROM {}").format(*groups))

    def script(self, name: str) -> str:
        """A script of the docs with this test's role names in it."""
        text = (DEPLOY / name).read_text(encoding="utf-8")
        text = re.sub(r"\bSCHEMA public\b", f"SCHEMA {self.schema}", text)
        return re.sub(rf"\bqwf_({'|'.join(NAMES)})\b", lambda found: self.name(found[1]), text)

    def create(self) -> None:
        """What the administrator does once: roles.sql, and a user for each role."""
        with psycopg.connect(self.admin_dsn, autocommit=True) as admin:
            admin.execute(self.script("roles.sql"))
            for role in NAMES:
                group, user = sql.Identifier(self.name(role)), sql.Identifier(self.login(role))
                admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(user, self._password))
                admin.execute(sql.SQL("GRANT {} TO {}").format(group, user))
                admin.execute(sql.SQL("ALTER ROLE {} SET search_path = {}").format(user, self.schema))
            admin.execute(
                sql.SQL("ALTER ROLE {} SET role = {}").format(
                    sql.Identifier(self.login("migrator")), self.name("migrator")
                )
            )

    def grant(self) -> None:
        """What the migrator does after every upgrade: grants.sql."""
        with self.connect("migrator") as migrator:
            migrator.execute(self.script("grants.sql"))

    def drop(self) -> None:
        """Leave the server as it was; the database itself is somebody else's to drop."""
        with psycopg.connect(self.admin_dsn, autocommit=True) as admin:
            for role in NAMES:
                for name in (self.login(role), self.name(role)):
                    if admin.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).rowcount:
                        admin.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(name)))
                        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@contextmanager
def least_privilege(admin_dsn: str, suffix: str, schema: str = "public") -> Iterator[Roles]:
    """The roles in an empty database, until the end of the block; `admin_dsn` is a superuser's."""
    roles = Roles(admin_dsn, suffix, schema)
    try:
        roles.create()
        yield roles
    finally:
        roles.drop()
