"""Three Postgres servers under a real Patroni, with a real etcd, by the file of docs/deploy/patroni."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil
import yaml
from support.fleet.link import Link
from support.fleet.parents import dies_with_us
from support.servers.cluster import free_port
from support.suite.missing import missing

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "deploy" / "patroni" / "patroni.yml"
_PATIENCE_S = 300.0
# As soon as Patroni lets it be: what a test waits for after the loss of a whole machine.
_QUICKER = {"ttl": 20, "loop_wait": 2, "retry_timeout": 5, "primary_start_timeout": 0}


class Member:
    """One of the servers: its Patroni, which runs its Postgres."""

    def __init__(self, home: Path, number: int) -> None:
        self.name, self.home = f"pg{number}", home / f"pg{number}"
        self.port, self.api = free_port(), free_port()
        # By these it reaches etcd, and the others reach it; clients do not need them.
        self._links: list[Link] = []
        self._suspended: list[psutil.Process] = []
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, etcd: int, postgres: Path) -> None:
        """The file of the docs, with the addresses and places of a test."""
        to_etcd, shown, shown_api = self._links = [Link(port) for port in (etcd, self.port, self.api)]
        config = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
        config["name"] = self.name
        config["restapi"] = {
            "listen": f"127.0.0.1:{self.api}",
            "connect_address": f"127.0.0.1:{shown_api.port}",
        }
        # Without discovery, which would lead past the link.
        config["etcd3"] = {"hosts": f"127.0.0.1:{to_etcd.port}", "use_proxies": True}
        config["bootstrap"]["dcs"] |= _QUICKER
        config["postgresql"] |= {
            "listen": f"127.0.0.1:{self.port}",
            "connect_address": f"127.0.0.1:{shown.port}",
            "data_dir": str(self.home / "data"),
            "bin_dir": str(postgres),
            "pgpass": str(self.home / "pgpass"),
            "pg_hba": ["local all all trust", "host all all 127.0.0.1/32 trust", _REPLICATION],
            "parameters": {"unix_socket_directories": str(self.home), "fsync": "off", "max_connections": 100},
        }
        self.home.mkdir()
        (self.home / "patroni.yml").write_text(yaml.safe_dump(config), encoding="utf-8")

    def start(self, account: pwd.struct_passwd | None) -> None:
        as_account: dict[str, Any] = (
            {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
        )
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                # By SIGTERM it ends its Postgres too, which would outlive it by far.
                [*dies_with_us("TERM"), "/usr/bin/patroni", str(self.home / "patroni.yml")],
                **as_account,
                cwd=self.home,
                stdout=log,
                stderr=log,
                env={"PATH": "/usr/bin:/bin", "HOME": str(self.home), "LANG": "C.UTF-8"},
            )

    def state(self) -> dict[str, Any]:
        """What it says of itself; nothing where it does not answer."""
        with (
            suppress(OSError, ValueError),
            urllib.request.urlopen(f"http://127.0.0.1:{self.api}/patroni", timeout=3) as said,
        ):
            return dict(json.load(said))
        return {}

    def answers(self, role: str) -> bool:
        """Whether it says of itself that it has this role."""
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.api}/{role}", timeout=10).close()
        except OSError:
            return False
        return True

    def is_primary(self) -> bool:
        said = self.state()
        return (said.get("role"), said.get("state")) in (("master", "running"), ("primary", "running"))

    def receivers(self) -> list[psutil.Process]:
        """What writes down here what the primary sends."""
        below = [each for postmaster in self._postmaster() for each in _below(postmaster)]
        return [each for each in below if "walreceiver" in _title(each)]

    def _postmaster(self) -> list[psutil.Process]:
        """Its Postgres, which is no child of its Patroni; none where that does not run."""
        data = (self.home / "data").resolve()
        with suppress(OSError, ValueError, IndexError, psutil.Error):
            process = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
            # The file outlives a server that was killed, and its number is soon that of anything else.
            if process.cwd() == str(data):
                return [process]
        return []

    def cut_off(self) -> None:
        """From now on a black hole lies between it and etcd, and between it and the others."""
        for link in self._links:
            link.pause()

    def heal(self) -> None:
        for link in self._links:
            link.resume()

    def suspend(self, *, only_patroni: bool) -> None:
        """Stop it where it is, as a hypervisor does; its Postgres too, unless it is only for its Patroni."""
        assert self.process is not None
        found = [psutil.Process(self.process.pid)]
        if not only_patroni:
            postgres = self._postmaster()
            found += [*postgres, *(below for each in postgres for below in _below(each))]
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        self._suspended = found

    def resume(self) -> None:
        """Have it go on, all at once but Patroni last, which is the worst for it."""
        for process in reversed(self._suspended):
            with suppress(psutil.NoSuchProcess):
                process.resume()
        self._suspended = []

    def close(self) -> None:
        """End all that is left of it."""
        self.resume()
        self.kill()
        for link in self._links:
            link.close()

    def kill(self) -> None:
        """SIGKILL to Patroni and to all of its Postgres at once, as by the loss of its machine."""
        lives = self.process is not None and self.process.poll() is None
        found = [psutil.Process(self.process.pid)] if self.process and lives else []
        found += self._postmaster()
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in [*found, *(below for each in found for below in _below(each))]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self.process:
            self.process.wait(60)


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def _title(process: psutil.Process) -> str:
    """What it calls itself; nothing where it has just ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


_REPLICATION = "host replication all 127.0.0.1/32 trust"


class PatroniCluster:
    """Three of them, ready once one is the primary and another its synchronous standby."""

    def __init__(self) -> None:
        for program in ("/usr/bin/patroni", "/usr/bin/etcd"):
            if not os.path.exists(program):
                missing(f"there is no {program}: `apt-get install patroni etcd-server`")
        try:
            # Postgres refuses to be root's.
            self._account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
            postgres = max(Path("/usr/lib/postgresql").glob("*/bin/postgres")).parent
        except (KeyError, ValueError):
            missing("there is no Postgres of Debian's here: `apt-get install postgresql`")
        self.home = Path(tempfile.mkdtemp(prefix="qwf-patroni-", dir="/tmp"))
        self.home.chmod(0o755)
        self._etcd_port, peers = free_port(), free_port()
        self.members = [Member(self.home, number) for number in (1, 2, 3)]
        with (self.home / "etcd.log").open("wb") as log:
            self._etcd = subprocess.Popen(
                [
                    *dies_with_us(),
                    *("etcd", "--data-dir", str(self.home / "etcd"), "--name", "one"),
                    *("--listen-client-urls", f"http://127.0.0.1:{self._etcd_port}"),
                    *("--advertise-client-urls", f"http://127.0.0.1:{self._etcd_port}"),
                    *("--listen-peer-urls", f"http://127.0.0.1:{peers}"),
                    *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peers}"),
                    *("--initial-cluster", f"one=http://127.0.0.1:{peers}"),
                ],
                stdout=log,
                stderr=log,
            )
        for member in self.members:
            member.write(self._etcd_port, postgres)
            for place in (member.home, member.home / "patroni.yml") if self._account else ():
                shutil.chown(place, self._account.pw_uid, self._account.pw_gid)

    @property
    def dsn(self) -> str:
        """Of all three, as the docs have it."""
        ports = ",".join(str(member.port) for member in self.members)
        hosts = ",".join(["127.0.0.1"] * len(self.members))
        return f"host={hosts} port={ports} user=postgres dbname=postgres connect_timeout=5"

    def _has_decided(self) -> bool:
        """Whether etcd says its version: a Patroni that asks before that ends with a ValueError."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._etcd_port}/version", timeout=5) as answer:
                version = json.load(answer)["etcdcluster"]
        except (OSError, ValueError):
            return False
        return str(version) != "not_decided"

    def start(self) -> None:
        self._until(self._has_decided, "etcd came to no version")
        self.members[0].start(self._account)
        self._until(self.members[0].is_primary, "the first became no primary")
        for member in self.members[1:]:
            member.start(self._account)
        self.until_synchronous()

    def primary(self) -> Member:
        """The one that takes writes, as soon as there is one."""
        self._until(lambda: any(member.is_primary() for member in self.members), "there is no primary")
        return next(member for member in self.members if member.is_primary())

    def until_standby(self, member: Member) -> None:
        """Wait until this one follows another."""
        self._until(lambda: member.answers("replica"), f"{member.name} became no standby")

    def until_synchronous(self) -> None:
        self._until(self._is_synchronous, "no standby became synchronous")

    def switch_over(self) -> None:
        """Have another take over, in order; it ends once that has been done."""
        before = self.primary()
        leader = json.dumps({"leader": before.name}).encode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{before.api}/switchover", data=leader, method="POST"
        )

        def is_done() -> bool:
            # Refused as long as no standby is written down as the one that may take over.
            with suppress(urllib.error.HTTPError):
                urllib.request.urlopen(asked, timeout=_PATIENCE_S).close()
                return True
            return False

        self._until(is_done, "nobody may take over")

    def come_back(self, member: Member) -> None:
        member.start(self._account)
        self.until_synchronous()

    def _is_synchronous(self) -> bool:
        """Whether one of them may take over, as Patroni has written down a moment after it is so."""
        return any(member.answers("synchronous") for member in self.members)

    def _until(self, look: Any, otherwise: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not look():
            assert time.monotonic() < deadline, f"{otherwise}: {self._logs()}"
            time.sleep(0.2)

    def _logs(self) -> str:
        return "\n".join(file.read_text(errors="replace")[-1500:] for file in self.home.glob("*/log"))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for member in self.members:
            member.close()
        self._etcd.kill()
        self._etcd.wait(60)
        shutil.rmtree(self.home, ignore_errors=True)
