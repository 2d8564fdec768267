#!/usr/bin/env python3
"""Installs a program with Homebrew.

`overrides` may name what to install: `{"brew": {"packages": [...]}}`; else it is the name itself.
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
    own = asked.overrides.get("brew", {})
    packages = own.get("packages", own.get("install_args", [asked.name]))
    if shutil.which("brew") is None:
        print("brew is not installed on this machine", file=sys.stderr)
        return 1
    install = ["brew", "install", "--quiet", *packages]
    done = subprocess.run(install, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    program = shutil.which(asked.name)
    if done.returncode or program is None or not os.access(program, os.X_OK):
        print(
            f"{' '.join(packages)} brought no {asked.name}: brew ended with {done.returncode}",
            file=sys.stderr,
        )
        return 1
    record = {"type": "Binary", "name": asked.name, "abspath": os.path.abspath(program), "provider": "brew"}
    print(json.dumps(record | {"version": version_of(packages[0])}))
    return 0


def version_of(package: str) -> str | None:
    """The version of the package that was asked for."""
    show = ["brew", "list", "--versions", package]
    said = subprocess.run(show, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return said.stdout.split()[-1] if said.stdout.split() else None


if __name__ == "__main__":
    sys.exit(main())
