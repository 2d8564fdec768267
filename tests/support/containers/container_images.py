"""Images built from a Dockerfile by buildah, without a registry of images, and run without an engine.

What a Dockerfile begins with is made of the packages of this machine, which has to be a Debian 12:
what it fetches from a registry of packages is there already, or handed in as wheels.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.suite.missing import missing

DEBIAN = "docker.io/library/debian:12-slim"
DISTROLESS = "gcr.io/distroless/python3-debian12"
# What the second is made of, beside the libraries below; no shell, and nothing that would run one.
_PYTHON = (
    "libc6 libgcc-s1 libstdc++6 libssl3 libffi8 libexpat1 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1"
    " libncursesw6 libtinfo6 libreadline8"
    " libcrypt1 libdb5.3 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3"
    " libkrb5support0 libcom-err2 libkeyutils1 zlib1g media-types tzdata"
    " python3-minimal python3.11-minimal libpython3.11-minimal libpython3-stdlib libpython3.11-stdlib"
    " python3.11"
)
_TOOLS = "python3-venv dash coreutils"
_LEFT_OUT = re.compile(r"/usr/share/(doc|man|locale|lintian|bug)/")
_PASSWD = "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"


class Builder:
    """Builds in a directory of its own."""

    def __init__(self, home: Path) -> None:
        for program in ("buildah", "unshare", "chroot"):
            if shutil.which(program) is None:
                missing(f"there is no {program} on PATH")
        if os.geteuid() != 0:
            pytest.skip("only root builds images here")
        if platform.freedesktop_os_release().get("VERSION_CODENAME") != "bookworm":
            pytest.skip("the images that the Dockerfile begins with can only be made on a Debian 12")
        self._options = [
            "--root",
            str(home / "root"),
            "--runroot",
            str(home / "run"),
            "--storage-driver",
            "vfs",
        ]
        self._home = home

    def stand_in(self, name: str, wheels: Path) -> None:
        """Make one of the two that are not to be had from a registry; its pip looks into `wheels` alone."""
        root = self._home / name.replace("/", "-")
        packages = _PYTHON.split() if name == DISTROLESS else _with_dependencies(_TOOLS.split())
        _copy(packages, root)
        for directory, mode in (
            ("proc", 0o755),
            ("dev", 0o755),
            ("sys", 0o755),
            ("etc", 0o755),
            ("tmp", 0o1777),
        ):
            (root / directory).mkdir(exist_ok=True)
            (root / directory).chmod(mode)
        (root / "etc" / "passwd").write_text(_PASSWD, encoding="ascii")
        # A package makes it when it is installed.
        (root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs")
        if name == DEBIAN:
            # What it would install is there.
            (root / "usr/bin/apt-get").write_text("#!/bin/sh\n", encoding="ascii")
            (root / "usr/bin/apt-get").chmod(0o755)
            shutil.copytree(wheels, root / "wheels")
            pip = "[global]\nno-index = true\nfind-links = /wheels\n"
            (root / "etc/pip.conf").write_text(pip, encoding="ascii")
        container = self._run("from", "scratch")
        self._run("copy", "--quiet", container, str(root), "/")
        self._run("commit", "--quiet", "--rm", container, name)
        shutil.rmtree(root)

    def build(self, dockerfile: Path, context: Path) -> Image:
        """The image of a Dockerfile."""
        self._run(
            *("build", "--isolation", "chroot", "--pull-never", "--quiet", "--tag", "built"),
            *("--file", str(dockerfile), str(context)),
        )
        config = json.loads(self._run("inspect", "--type", "image", "built"))["OCIv1"]["config"]
        container = self._run("from", "--pull-never", "built")
        return Image(Path(self._run("mount", container)), config)

    def _run(self, *arguments: str) -> str:
        # What is set for the pip of this machine would hold for that in the image.
        env = {"PATH": os.environ["PATH"], "HOME": str(self._home)}
        done = subprocess.run(
            ["buildah", *self._options, *arguments], env=env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout.strip()


class Image:
    """A file system with what its image says of how it is run."""

    def __init__(self, root: Path, config: Mapping[str, Any]) -> None:
        self.root, self.config = root, config

    @property
    def environ(self) -> dict[str, str]:
        """The variables of its ENV."""
        return dict(each.split("=", 1) for each in self.config["Env"])

    def start(
        self, arguments: Sequence[str] | None, environ: Mapping[str, str], *, user: str
    ) -> subprocess.Popen[str]:
        """Its entry point as PID 1 of namespaces of its own, by default with its own arguments.

        The file system is for reading, but for a /tmp in memory.
        """
        given = self.config["Cmd"] if arguments is None else list(arguments)
        prepares = """set -e; chroot=$1; root=$2; user=$3; shift 3
own=$PATH; PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount --bind "$root" "$root"; mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"; mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"; mount --rbind /dev "$root/dev"
export PATH="$own"; exec "$chroot" --userspec="$user" --groups= "$root" "$@"
"""
        apart = [
            str(shutil.which("unshare")),
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation",
            "private",
        ]
        chroot = str(shutil.which("chroot"))
        within = ["/bin/sh", "-c", prepares, "sh", chroot, str(self.root), user]
        return subprocess.Popen(
            [*apart, *within, *self.config["Entrypoint"], *given],
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def first_process(container: subprocess.Popen[str]) -> psutil.Process:
    """PID 1 of what `Image.start` started."""
    (first,) = psutil.Process(container.pid).children()
    return first


def _with_dependencies(names: Iterable[str]) -> list[str]:
    """These packages with all that they depend on, of those that are installed."""
    told = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${Package}\t${Provides}\t${Depends}, ${Pre-Depends}\n"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    needs, provided = {}, {}
    for line in told.splitlines():
        package, provides, depends = line.split("\t")
        needs[package] = [_names(each) for each in depends.split(",") if each.strip()]
        provided.update({name: package for each in provides.split(",") for name in _names(each)})
    found: list[str] = []
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        package = name if name in needs else provided.get(name)
        if package is None:
            missing(f"the package {name} is not installed")
        if package not in found:
            found.append(package)
            known = [[each for each in some if each in needs or each in provided] for some in needs[package]]
            waiting += [some[0] for some in known if some]
    return found


def _names(alternatives: str) -> list[str]:
    return [each.split("(")[0].split(":")[0].strip() for each in alternatives.split("|") if each.strip()]


def _copy(packages: Iterable[str], root: Path) -> None:
    """The files of packages, below another root."""
    listed = subprocess.run(["dpkg", "-L", *packages], capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    files = {
        line
        for line in listed.stdout.splitlines()
        if line.count("/") > 1
        and not _LEFT_OUT.match(line)
        and (os.path.islink(line) or os.path.isfile(line))
    }
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    pack = ["tar", "--create", "--file", "-", "--directory", "/", "--no-recursion", "--files-from", "-"]
    packed = subprocess.run(
        pack,
        input="\n".join(sorted(line.lstrip("/") for line in files)).encode(),
        capture_output=True,
        check=True,
    ).stdout
    subprocess.run(["tar", "--extract", "--file", "-", "--directory", str(root)], input=packed, check=True)
