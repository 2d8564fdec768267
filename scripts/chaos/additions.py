"""What a history may have beside jobs, runs and trouble: rows that no application writes, and hooks.

Drawn by dice of their own after all else, so that each seed keeps what it had before there were these.
"""

from __future__ import annotations

import random
from typing import Any, Final

# A column of a job that a producer may write, and a value as SQL that it would not.
HOSTILE: Final = tuple(
    (column, value)
    for columns, values in (
        (
            ("limit_key", "host_lock", "reason", "dedupe_key"),
            ("''", "'*'", "'a*'", "' a '", "chr(1)", "'elsewhere:'", "'../../etc/x'", "repeat('x', 60000)"),
        ),
        (
            ("args",),
            ("'null'", "'[]'", "'1'", "'{\"x\": 1e5000}'", "jsonb_build_object('x', repeat('x', 2000000))"),
        ),
        (
            ("timeout_s", "stall_timeout_s", "backoff_s"),
            ("'NaN'", "'Infinity'", "-1", "0", "1e308", "1e-308"),
        ),
        (("priority", "max_attempts"), ("-32768", "-1", "0", "32767")),
        (("position",), ("-9223372036854775808", "-1", "0", "9223372036854775807")),
    )
    for column in columns
    for value in values
)
_ENDS: Final = (0, 0, 0, 1, 2, 78, 143)


def raw_rows(dice: random.Random) -> list[dict[str, str]]:
    """Some bad values, each in a row of its own."""
    return [
        dict(zip(("column", "value"), dice.choice(HOSTILE), strict=True)) for _ in range(dice.randint(1, 5))
    ]


def plugin(dice: random.Random) -> tuple[dict[str, str], bool]:
    """The files of a plugin, and whether each hook of it ends well."""
    files, ends_well = {}, True
    for number in range(dice.randint(1, 4)):
        place = f"on_Page__{dice.choice((1, 1, 2, 5))}{number}_h{number}"
        if dice.random() < 0.3:
            deaf = dice.random() < 0.3
            trap = "trap '' TERM" if deaf else "trap 'exit 0' TERM"
            files[f"{place}.bg.sh"] = f"#!/bin/sh\n{trap}\nwhile :; do sleep 0.1; done\n"
            at_seal = "kill" if dice.random() < 0.7 else "wait"
            files["config.json"] = f'{{"x-bg-at-seal": "{at_seal}"}}'
            continue
        status = dice.choice(_ENDS)
        ends_well = ends_well and status == 0
        files[f"{place}.sh"] = _script(dice, status)
    # What is not ended with the last foreground hook goes on until its time is over, as where there is none.
    in_background = [name for name in files if ".bg." in name]
    is_endless = "wait" in files.get("config.json", "") or len(in_background) == len(files) - 1
    return files, ends_well and not (in_background and is_endless)


def _script(dice: random.Random, status: int) -> str:
    lines = ["#!/bin/sh", f"sleep {dice.choice((0, 0.05, 0.3))}"]
    if dice.random() < 0.7:
        lines.append('echo \'{"type": "Result", "n": 1}\'')
    if dice.random() < 0.2:
        lines.append("printf '\\377\\000no json\\n{\"type\": 3}\\n'")
    if dice.random() < 0.2:
        lines.append("(setsid sleep 300 >/dev/null 2>&1 </dev/null &)")
    return "\n".join([*lines, f"exit {status}", ""])


def add(make: Any, seed: int) -> None:
    """To a history that is made but for these."""
    dice = make.dice = random.Random(f"{seed}: additions")
    if dice.random() < 0.2:
        make.add(make.at(), "raw", rows=raw_rows(dice))
    if dice.random() < 0.06:
        if not any(step["do"] == "start" and step["command"][0] == "orchestrator" for step in make.steps):
            make.role("orchestrator")
        for _ in range(dice.choice((1, 1, 2))):
            make.role("worker", "--queue", "hooks", "--concurrency", dice.choice(("1", "3")))
        scripts, ends_well = plugin(dice)
        make.add(make.at(), "hooks", name="hooks", scripts=scripts, ends_well=ends_well, takes_s=20)
