#!/usr/bin/env python3
"""Installs a program with npm, below the working directory.

`overrides` may name what to install: `{"npm": {"packages": [...]}}`; else it is the name itself.
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
    own = asked.overrides.get("npm", {})
    packages = own.get("packages", own.get("install_args", [asked.name]))
    if shutil.which("npm") is None:
        print("npm is not installed on this machine", file=sys.stderr)
        return 1
    install = ["npm", "install", "--prefix", "npm", "--no-fund", "--no-audit", *packages]
    done = subprocess.run(install, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    program = os.path.join("npm", "node_modules", ".bin", asked.name)
    if done.returncode or not os.access(program, os.X_OK):
        print(
            f"{' '.join(packages)} brought no {asked.name}: npm ended with {done.returncode}", file=sys.stderr
        )
        return 1
    record = {"type": "Binary", "name": asked.name, "abspath": os.path.abspath(program), "provider": "npm"}
    print(json.dumps(record | {"version": version_of(packages[0])}))
    return 0


def version_of(package: str) -> str | None:
    """The version of the package that was asked for."""
    name = package[:1] + package[1:].partition("@")[0]  # a scope begins with one
    try:
        with open(os.path.join("npm", "node_modules", name, "package.json"), encoding="utf-8") as file:
            version = json.load(file).get("version")
    except (OSError, ValueError):
        return None
    return version if isinstance(version, str) else None


if __name__ == "__main__":
    sys.exit(main())
