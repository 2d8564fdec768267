#!/usr/bin/env python3
"""Finds a program that is installed: by PATH, or where `overrides` say (`{"env": {"abspath": ...}}`)."""

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
    wanted = asked.overrides.get("env", {}).get("abspath", asked.name)
    found = shutil.which(wanted)
    if found is None:
        print(f"{wanted} is not on PATH ({os.environ.get('PATH', '')})", file=sys.stderr)
        return 1
    record = {"type": "Binary", "name": asked.name, "abspath": os.path.abspath(found), "provider": "env"}
    print(json.dumps(record | {"version": version_of(found)}))
    return 0


def version_of(program: str) -> str | None:
    """What it says of itself, if it does so at once."""
    try:
        said = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = said.stdout.decode("utf-8", "replace").strip().splitlines()
    return lines[0][:100] if lines else None


if __name__ == "__main__":
    sys.exit(main())
