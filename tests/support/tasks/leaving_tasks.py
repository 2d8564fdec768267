"""The wiring of a host app whose tasks leave processes behind."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from queue_workflows import ingest_task

# Nobody's child by the time it has said its pid, and in a session of its own.
_DAEMON = "({prefix} setsid sh -c 'echo $$ > {file}.new; mv {file}.new {file}; exec sleep 1000' &)"

# It comes when the worker wakes up, which QWF_POLL_S has it do several times a second.
_IS_LOST_AFTER_S = 5.0


def _daemon(file: Path, prefix: str = "") -> int:
    subprocess.run(["sh", "-c", _DAEMON.format(file=file, prefix=prefix)], check=True)
    while not file.exists():
        time.sleep(0.01)
    return int(file.read_text())


def _exit_in(thread: int, meets: Sequence[str]) -> None:
    """As what limits a call's time and does not see its end: once it waits, and at each of these calls.

    Until its first step a thread that the worker starts bears the number of its starter, and may get it
    instead: so what waits on gets another.
    """
    for call, following in zip(("listener._sleep", *meets), (*meets, None), strict=True):
        while call not in _calls(thread):
            time.sleep(0.0002)
        _raise_in(thread)
        sent = time.monotonic()
        while following is not None and following not in (calls := _calls(thread)):
            if call in calls and time.monotonic() - sent > _IS_LOST_AFTER_S:
                _raise_in(thread)
                sent = time.monotonic()
            time.sleep(0.0002)


def _raise_in(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))


def _calls(thread: int) -> set[str]:
    """The functions of ours that a thread is in, with the names of their files."""
    frame, found = sys._current_frames().get(thread), set()
    while frame is not None:
        found |= {frame.f_code.co_name, f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"}
        frame = frame.f_back
    return found


@ingest_task("leaves")
def leaves(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Leaves a child, perhaps deaf to SIGTERM, a daemon and one without our environment; tells their pids."""
    directory = Path(args["directory"])
    directory.mkdir()
    deaf = f"trap 'touch {directory}/asked' TERM; touch {directory}/begun; while :; do sleep 0.1; done"
    command = deaf if args.get("deaf") else f"touch {directory}/begun; exec sleep 1000"
    child = subprocess.Popen(["sh", "-c", command])
    while not (directory / "begun").exists():
        time.sleep(0.01)
    pids = [child.pid, _daemon(directory / "daemon"), _daemon(directory / "sly", "env -i PATH=$PATH")]
    (directory / "new").write_text(" ".join(map(str, pids)))
    (directory / "new").rename(directory / "pids")
    if args.get("empties"):
        os.environ.clear()
    if args.get("exits"):
        threading.Thread(target=_exit_in, args=(threading.get_ident(), args["exits"]), daemon=True).start()
    if args.get("keeps"):
        ExitStack().enter_context(ctx.host_lock(args["keeps"]))  # and never leaves the block
    if args.get("waits"):
        ctx.sleep(1000)
