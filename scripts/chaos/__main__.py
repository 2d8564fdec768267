"""Attacks the engine with histories from seeds, and says which of them broke a promise.

    .venv/bin/python scripts/chaos run --seed 7
    .venv/bin/python scripts/chaos run --histories 1000 --jobs 4 --first-seed 1 [--without KNOWN …]
    .venv/bin/python scripts/chaos replay FILE [--times 5]
    .venv/bin/python scripts/chaos shrink FILE
    .venv/bin/python scripts/chaos scenarios [NAME …]

Exit status: 0 no violation, 1 a violation, 2 wrong arguments, 130 interrupted. A failing history is kept as a
file, and its seed is printed.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Our parent on the path, and not our own directory.
    sys.path[0] = str(Path(__file__).resolve().parents[1])


if __name__ == "__main__":
    from chaos.commands import main

    # What rows hold of numbers is no concern of ours, however long they are.
    sys.set_int_max_str_digits(0)
    sys.exit(main(sys.argv[1:]))
