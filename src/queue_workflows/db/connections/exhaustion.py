"""Whether a failure is due to this process or its machine, and not to a database that is away.

A process that has no descriptors or memory left, or may write no file, cannot connect or claim. That looks
like an outage, and would be waited for in vain.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from typing import Final

_SAYS_SO: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# What connecting takes: the socket, a descriptor of our own for it, and what waits for both.
_NEEDED: Final = 4
_MOST_CAUSES: Final = 20
_NO_THREAD: Final = "can't start new thread"


# What the network says, or a line that another thread has cut.
_OF_THE_NETWORK: Final = frozenset(
    {errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENOTCONN, errno.EBADF}
)


def is_of_this_process(failure: BaseException) -> bool:
    """Whether to wait for the database would not help: it failed by itself, or is out of what it needs."""
    if isinstance(failure, OSError):
        is_away = isinstance(failure, ConnectionError | TimeoutError | socket.gaierror)
        if not is_away and failure.errno not in _OF_THE_NETWORK:
            return True
    return is_exhausted(failure)


def is_exhausted(failure: BaseException) -> bool:
    """Whether a failure of ours is due to that: it says so, or there is nothing to be had at this moment.

    The second because the driver passes on words alone.
    """
    cause: BaseException | None = failure
    for _ in range(_MOST_CAUSES):
        if cause is None:
            break
        if _says_so(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return not has_room(0) and not has_room(2)


def is_refused_a_thread(failure: BaseException) -> bool:
    """Whether the system gave this process no further thread; Python has only words for that.

    One of a job's own kind is not asked for its words, which are the job's code.
    """
    return type(failure) is RuntimeError and failure.args == (_NO_THREAD,)


def _says_so(failure: BaseException) -> bool:
    if isinstance(failure, OSError):
        return failure.errno in _SAYS_SO
    return isinstance(failure, MemoryError) or is_refused_a_thread(failure)


def has_room(number: int) -> bool:
    """Whether a few more descriptors are to be had, tried with copies of this one."""
    taken: list[int] = []
    try:
        for _ in range(_NEEDED):
            taken.append(os.dup(number))
    except OSError as refused:
        return refused.errno not in _SAYS_SO
    finally:
        for each in taken:
            with suppress(OSError):
                os.close(each)
    return True
