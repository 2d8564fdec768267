"""Programs that plugins need, a row for each machine: queued, running while somebody installs it, then final.

                  ┌──────── claim ────────┐          ┌─ installed ── gone from the disk ──┐
    queued ───────┴──────> running ───────┼──────────┴─ failed ── after a delay ──────────┴──> claimed again
                                          └─ queued    its installer let go of it

The claim of a row is what makes two workers of one machine install once: its lease and its attempt are the
fence of all that is written for it, as those of a job are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from queue_workflows.errors import LeaseLost
from queue_workflows.repositories.claims.end import ERROR_TEXT
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import texts
from queue_workflows.repositories.sql.awaitable import awaitable
from queue_workflows.repositories.sql.table import Filters, Repository, Table
from queue_workflows.states import BinaryStatus

if TYPE_CHECKING:
    from queue_workflows.models import Binary

_TABLE: Final[Table[Binary]] = Table("binaries")
# What a lost lease of a program calls it.
BINARY: Final = "binary"
# The reason of a hold; its key is that of `hold_key`.
BINARY_MISSING: Final = "binary_missing"
# A failed installation is tried again after a minute, later after longer.
BACKOFF_S: Final = 60.0
LONGEST_BACKOFF_S: Final = 3600.0

# What nobody could install is tried again at once for a plugin that names another provider.
WANT: Final = """
INSERT INTO binaries (machine_id, name, bin_providers, overrides)
VALUES (%(machine_id)s::bigint, %(name)s::text, %(bin_providers)s::text, %(overrides)s::jsonb)
ON CONFLICT (machine_id, name) DO UPDATE SET status = 'queued', updated_at = statement_timestamp()
WHERE binaries.status = 'failed' AND NOT string_to_array(excluded.bin_providers, ',')
    <@ string_to_array(COALESCE(binaries.bin_providers, ''), ',')
RETURNING id
"""
NAMED: Final = _TABLE.sql("""
SELECT {columns} FROM binaries
WHERE machine_id = %(machine_id)s::bigint AND name = ANY (%(names)s::text[])
ORDER BY name
""")
OF_HOSTS: Final = _TABLE.sql("""
SELECT machines.host_label, {columns} FROM binaries JOIN machines ON machines.id = binaries.machine_id
WHERE machines.host_label = COALESCE(%(host_label)s::text, machines.host_label)
ORDER BY machines.host_label, binaries.name
LIMIT %(limit)s::bigint
""")
# Nobody waits for a row that is being claimed at this moment. The row says what is tried.
CLAIM: Final = """
WITH free AS MATERIALIZED (
    SELECT id FROM binaries
    WHERE id = %(id)s::bigint AND (
        status = 'queued' OR (status = 'running' AND lease_expires_at < statement_timestamp())
        OR (status = 'failed' AND (retry_at <= statement_timestamp() OR %(at_once)s::boolean))
    )
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE binaries SET
    status = 'running', attempt = attempt + 1, claimed_by = %(claimed_by)s::text,
    lease_expires_at = statement_timestamp() + make_interval(secs => %(lease_s)s::float8),
    bin_providers = COALESCE(%(bin_providers)s::text, bin_providers),
    overrides = COALESCE(%(overrides)s::jsonb, overrides), updated_at = statement_timestamp()
FROM free WHERE binaries.id = free.id
RETURNING attempt
"""
_FENCE: Final = """id = %(id)s::bigint AND attempt = %(attempt)s::integer
    AND claimed_by = %(claimed_by)s::text AND status = 'running'"""
RENEW: Final = f"""
UPDATE binaries SET lease_expires_at = statement_timestamp() + make_interval(secs => %(lease_s)s::float8)
WHERE {_FENCE} RETURNING id
"""  # noqa: S608 - a fragment of our own
INSTALLED: Final = f"""
UPDATE binaries SET
    status = 'installed', abspath = %(abspath)s::text, version = %(version)s::text, sha256 = %(sha256)s::text,
    provider = %(provider)s::text, error = NULL, failures = 0, retry_at = NULL, claimed_by = NULL,
    lease_expires_at = NULL, updated_at = statement_timestamp()
WHERE {_FENCE} RETURNING id
"""  # noqa: S608 - a fragment of our own
FAILED: Final = f"""
UPDATE binaries SET
    status = 'failed', error = %(error)s::text, failures = failures + 1, claimed_by = NULL,
    lease_expires_at = NULL, updated_at = statement_timestamp(),
    retry_at = statement_timestamp() + make_interval(
        secs => LEAST(%(longest_s)s::float8, %(backoff_s)s::float8 * 2 ^ LEAST(failures, 20)))
WHERE {_FENCE} RETURNING id
"""  # noqa: S608 - a fragment of our own
RELEASED: Final = f"""
UPDATE binaries SET
    status = 'queued', claimed_by = NULL, lease_expires_at = NULL, updated_at = statement_timestamp()
WHERE {_FENCE} RETURNING id
"""  # noqa: S608 - a fragment of our own
# What a hook found by itself; a worker that installs it at this moment has the last word.
REPORT: Final = """
INSERT INTO binaries (machine_id, name, status, abspath, version, sha256, provider)
VALUES (%(machine_id)s::bigint, %(name)s::text, 'installed', %(abspath)s::text, %(version)s::text,
    %(sha256)s::text, %(provider)s::text)
ON CONFLICT (machine_id, name) DO UPDATE SET
    status = 'installed', abspath = excluded.abspath, version = excluded.version, sha256 = excluded.sha256,
    provider = excluded.provider, error = NULL, failures = 0, retry_at = NULL,
    updated_at = statement_timestamp()
WHERE binaries.status <> 'running'
RETURNING id
"""
# Only while it is the same installation that somebody found gone.
GONE: Final = """
UPDATE binaries SET status = 'queued', error = %(error)s::text, updated_at = statement_timestamp()
WHERE id = %(id)s::bigint AND status = 'installed' AND abspath = %(abspath)s::text
RETURNING id
"""


OF_KEY: Final = _TABLE.sql("""
SELECT {columns} FROM binaries JOIN machines ON machines.id = binaries.machine_id
WHERE machines.host_label = %(host_label)s::text AND binaries.name = %(name)s::text
""")


def hold_key(host_label: str, name: str) -> str:
    """What a hook waits for, as its row says it; no program's name has a slash."""
    return f"{host_label}/{name}"


def waited_for(key: str) -> tuple[str, str]:
    """The host and the program of such a key."""
    host_label, _, name = key.rpartition("/")
    return host_label, name


class BinaryFence(NamedTuple):
    """The claim that every write for a binary has to show while it is being installed."""

    id: int
    attempt: int
    claimed_by: str


class Installed(NamedTuple):
    """A program as it was found on a machine."""

    name: str
    abspath: str
    version: str | None
    sha256: str | None
    provider: str | None


class BinaryRepository(Repository["Binary"]):
    """Binaries on the caller's connection."""

    _table = _TABLE

    def want(
        self, machine_id: int, name: str, *, bin_providers: str | None, overrides: dict[str, Any] | None
    ) -> None:
        """Have a row for a program that a plugin needs; a failed one is tried again if a provider is new."""
        params = {
            "machine_id": machine_id,
            "name": check.text("name", name),
            "bin_providers": check.text_or_none("bin_providers", bin_providers),
            "overrides": self._limits.json_object("overrides", overrides),
        }
        self._sql.rows(WANT, params)

    def named(self, machine_id: int, names: Collection[str]) -> dict[str, Binary]:
        """Some of a machine's programs, by their names."""
        found = self._all(NAMED, {"machine_id": machine_id, "names": texts(names)})
        return {binary.name: binary for binary in found}

    def waited_for(self, key: str) -> Binary | None:
        """The program that the key of a hold names."""
        host_label, name = waited_for(key)
        return self._first(OF_KEY, {"host_label": host_label, "name": name})

    def claim(
        self,
        binary_id: int,
        *,
        claimed_by: str,
        lease_s: float,
        at_once: bool = False,
        bin_providers: str | None = None,
        overrides: dict[str, Any] | None = None,
    ) -> BinaryFence | None:
        """Become the installer of a program; None while another is, or before it may be tried again.

        `at_once`, for an operator, does not wait for that. The row says then which providers are asked.
        """
        params = {
            "id": binary_id,
            "claimed_by": claimed_by,
            "lease_s": lease_s,
            "at_once": at_once,
            "bin_providers": check.text_or_none("bin_providers", bin_providers),
            "overrides": None if overrides is None else self._limits.json_object("overrides", overrides),
        }
        rows = self._sql.rows(CLAIM, params)
        return BinaryFence(binary_id, rows[0][0], claimed_by) if rows else None

    def renew(self, fence: BinaryFence, lease_s: float) -> None:
        """Keep on; `LeaseLost` if somebody else has taken over."""
        self._write(RENEW, fence, lease_s=lease_s)

    def installed(self, fence: BinaryFence, found: Installed) -> None:
        """End an installation well."""
        self._write(INSTALLED, fence, **_checked(found))

    def failed(self, fence: BinaryFence, error: str) -> None:
        """End an installation that nobody could do; it may be tried again later."""
        clean = error.replace("\x00", "").encode("utf-8", "backslashreplace").decode()[:ERROR_TEXT]
        self._write(FAILED, fence, error=clean, backoff_s=BACKOFF_S, longest_s=LONGEST_BACKOFF_S)

    def released(self, fence: BinaryFence) -> None:
        """Let go of an installation that was told to stop."""
        self._write(RELEASED, fence)

    def report(self, machine_id: int, found: Installed) -> None:
        """Keep what a hook has found or installed by itself."""
        self._sql.rows(REPORT, _checked(found) | {"machine_id": machine_id})

    def gone(self, binary: Binary, why: str) -> None:
        """Queue a program again that is not where it was installed, or will not do."""
        self._sql.rows(GONE, {"id": binary.id, "abspath": binary.abspath, "error": why})

    def of_hosts(self, host_label: str | None = None, *, limit: int = 10_000) -> list[tuple[str, Binary]]:
        """The programs of one machine, or of all, with the labels of their hosts."""
        rows = self._sql.rows(OF_HOSTS, {"host_label": host_label, "limit": limit})
        loaded = self._table.load([row[1:] for row in rows])
        return list(zip((row[0] for row in rows), loaded, strict=True))

    def _write(self, sql: str, fence: BinaryFence, **values: Any) -> None:
        if not self._sql.rows(sql, fence._asdict() | values):
            raise LeaseLost(BINARY, fence.id, fence.attempt)

    # Last, because its name hides the builtin from the annotations below it.
    def list(
        self,
        *,
        machine_id: int | None = None,
        status: str | None = None,
        limit: int = 1_000,
        after: int | None = None,
    ) -> list[Binary]:
        """Programs in the order in which they were first asked for."""
        filters = Filters()
        filters.add("machine_id = %(machine_id)s::bigint", machine_id=machine_id)
        filters.status(status, BinaryStatus)
        return self._page(filters, by="id", after=after, limit=limit, newest_first=False)

    # Awaited, on an asynchronous connection.
    anamed = awaitable(named)
    aof_hosts = awaitable(of_hosts)
    alist = awaitable(list)


def _checked(found: Installed) -> dict[str, Any]:
    return {
        "name": check.text("name", found.name),
        "abspath": check.text("abspath", found.abspath, max_bytes=check.TEXT_BYTES),
        "version": check.text_or_none("version", found.version),
        "sha256": check.text_or_none("sha256", found.sha256),
        "provider": check.text_or_none("provider", found.provider),
    }
