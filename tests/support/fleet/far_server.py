"""A server that is far away, by the link that the benchmarks have: each byte takes its time each way."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
sys.path.append(str(SCRIPTS))

from bench.harness.distance import Distance  # noqa: E402

__all__ = ["Distance"]
