"""Programs that the kernel ends with the process that has started them, also where that is killed."""

from __future__ import annotations

import functools
import shutil
import subprocess


@functools.cache
def dies_with_us(signal: str = "KILL") -> tuple[str, ...]:
    """What a command is begun with to be sent this once the thread that begins it is gone.

    Nothing where no setpriv can see to it: then a killed run leaves it behind.
    """
    program = shutil.which("setpriv")
    if program is None:
        return ()
    prefix = (program, "--pdeathsig", signal)
    tried = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    return prefix if tried.returncode == 0 else ()
