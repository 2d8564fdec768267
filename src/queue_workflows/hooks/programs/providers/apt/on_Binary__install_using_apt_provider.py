#!/usr/bin/env python3
"""Installs a program with apt, for the whole machine, which is root's to do.

`overrides` may name what to install: `{"apt": {"packages": [...]}}`; else it is the name itself.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys


def main() -> int:
    """Print the program's record, or say why there is none."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--overrides", type=json.loads, default={})
    asked, _ = parser.parse_known_args()
    own = asked.overrides.get("apt", {})
    packages = own.get("packages", own.get("install_args", [asked.name]))
    if shutil.which("apt-get") is None:
        print("apt-get is not on this machine", file=sys.stderr)
        return 1
    if os.geteuid() != 0:
        print("apt-get installs for root alone, and this is another user", file=sys.stderr)
        return 1
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    done = subprocess.run(
        install,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        check=False,
    )
    program = shutil.which(asked.name)
    if done.returncode or program is None or not os.access(program, os.X_OK):
        print(
            f"{' '.join(packages)} brought no {asked.name}: apt-get ended with {done.returncode}",
            file=sys.stderr,
        )
        return 1
    record = {"type": "Binary", "name": asked.name, "abspath": os.path.abspath(program), "provider": "apt"}
    print(json.dumps(record | {"version": version_of(packages[0])}))
    return 0


def version_of(package: str) -> str | None:
    """The version of the package that was asked for."""
    show = ["dpkg-query", "--show", "--showformat=${Version}", package.partition("=")[0]]
    said = subprocess.run(show, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return said.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
