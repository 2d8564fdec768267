#!/usr/bin/env python3
"""Installs a program with pip, into a virtual environment of its own in the working directory.

`overrides` may name what to install: `{"pip": {"packages": [...]}}`; else it is the name itself.
"""

import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path


def main() -> int:
    """Print the program's record, or say why there is none."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--overrides", type=json.loads, default={})
    asked, _ = parser.parse_known_args()
    own = asked.overrides.get("pip", {})
    packages = own.get("packages", own.get("install_args", [asked.name]))
    place = Path("pip").absolute()
    if not (place / "bin" / "pip").exists():
        try:
            venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(place)
        except (OSError, subprocess.CalledProcessError) as wrong:
            print(f"no virtual environment could be made in {place}: {wrong}", file=sys.stderr)
            return 1
    install = [
        str(place / "bin" / "pip"),
        "install",
        "--disable-pip-version-check",
        "--quiet",
        "--timeout=15",
        *packages,
    ]
    done = subprocess.run(install, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    program = place / "bin" / asked.name
    if done.returncode or not os.access(program, os.X_OK):
        why = f"pip ended with {done.returncode}" if done.returncode else f"there is no {program}"
        print(f"{' '.join(packages)} brought no {asked.name}: {why}", file=sys.stderr)
        return 1
    record = {"type": "Binary", "name": asked.name, "abspath": str(program), "provider": "pip"}
    print(json.dumps(record | {"version": version_of(place, packages[0])}))
    return 0


def version_of(place: Path, package: str) -> str | None:
    """The version of the package that was asked for."""
    show = [str(place / "bin" / "pip"), "--disable-pip-version-check", "show", package.partition("[")[0]]
    said = subprocess.run(show, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    lines = [line for line in said.stdout.splitlines() if line.startswith("Version: ")]
    return lines[0].removeprefix("Version: ") if lines else None


if __name__ == "__main__":
    sys.exit(main())
