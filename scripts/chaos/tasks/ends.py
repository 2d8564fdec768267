"""Tasks that end in every way: by a status, a signal, an exception, a result that nobody can have."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from typing import Any, NoReturn

from chaos.behaviours import BAD, GOOD, behaviour
from chaos.ledger import sleep, work
from queue_workflows import Discard, RetryAfter, Skip


@behaviour(*GOOD)
def good(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Does its work and says which attempt it was."""
    work(ctx, args.get("s", 0.02))
    return {"attempt": ctx.attempt}


@behaviour(*GOOD)
def quick(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """As short as a job can be."""
    return {"attempt": ctx.attempt}


@behaviour(*BAD, kills=True)
def exits_as_ordered(args: dict[str, Any], ctx: Any) -> NoReturn:
    """Ends its process with a status that the engine itself ends with."""
    os._exit(args["status"])


@behaviour(*BAD, kills=True)
def exits_otherwise(args: dict[str, Any], ctx: Any) -> NoReturn:
    """Ends its process with a status that means nothing."""
    os._exit(args["status"])


@behaviour(*BAD, kills=True)
def kills_itself(args: dict[str, Any], ctx: Any) -> None:
    """Sends its process a signal that nothing handles."""
    os.kill(os.getpid(), args["signal"])
    sleep(30)


@behaviour(*GOOD)
def asks_itself_to_stop(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Sends its process SIGTERM, as an operator does; the job itself ends well."""
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return {"attempt": ctx.attempt}


@behaviour(*BAD, kills=True)
def stops_itself(args: dict[str, Any], ctx: Any) -> None:
    """Sends its process SIGSTOP: its kernel timer is all that is left of it."""
    os.kill(os.getpid(), signal.SIGSTOP)
    sleep(30)


@behaviour(*BAD)
def raises(args: dict[str, Any], ctx: Any) -> NoReturn:
    """Any exception of Python's own, told by its name."""
    kind = (
        getattr(__builtins__, args["kind"], None)
        if not isinstance(__builtins__, dict)
        else __builtins__[args["kind"]]
    )
    if kind in (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError):
        "\ud800".encode()
    if kind in (ExceptionGroup, BaseExceptionGroup):
        raise kind("several", [ValueError("one")])
    raise kind("on purpose")


class _Evil(Exception):
    """Nothing that may be asked of it answers."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class _EvilBase(BaseException):
    def __str__(self) -> str:
        raise SystemExit(0)


class _EvilArgs(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise KeyboardInterrupt

    def __reduce__(self) -> Any:
        raise SystemExit(0)


@behaviour(*BAD)
def raises_evil(args: dict[str, Any], ctx: Any) -> NoReturn:
    """An exception whose text raises."""
    raise _Evil


@behaviour(*BAD)
def raises_evil_base(args: dict[str, Any], ctx: Any) -> NoReturn:
    """A BaseException whose text ends the process."""
    raise _EvilBase


@behaviour(*BAD)
def raises_evil_args(args: dict[str, Any], ctx: Any) -> NoReturn:
    """An exception whose arguments raise."""
    raise _EvilArgs


@behaviour(*BAD)
def raises_a_chain(args: dict[str, Any], ctx: Any) -> NoReturn:
    """A thousand causes, the last of which is the first."""
    first = error = ValueError("0")
    for number in range(1000):
        new = ValueError(str(number))
        new.__cause__ = error
        error = new
    first.__cause__ = error
    raise error


@behaviour(*BAD)
def raises_at_length(args: dict[str, Any], ctx: Any) -> NoReturn:
    """Ten megabytes of text, with what Postgres does not take in it."""
    raise ValueError("\0\ud800" + "x" * 10_000_000)


@behaviour(*BAD)
def recurses(args: dict[str, Any], ctx: Any) -> Any:
    """Until Python has enough."""
    return recurses(args, ctx)


@behaviour("skipped")
def skips(args: dict[str, Any], ctx: Any) -> NoReturn:
    """Has nothing to do."""
    raise Skip("nothing\0to do")


@behaviour(*BAD)
def discards(args: dict[str, Any], ctx: Any) -> NoReturn:
    """Cannot be helped."""
    raise Discard("no\ud800use")


@behaviour(*GOOD)
def comes_later(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Asks for another time, twice."""
    if ctx.attempt <= 2:
        raise RetryAfter(args.get("s", 0.05), "later")
    return {"attempt": ctx.attempt}


@behaviour(*GOOD, *BAD)
def fails_at_first(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Does well the second time; a failure that counts may be its last."""
    if ctx.job.failures == 0:
        raise ValueError("at first")
    return {"attempt": ctx.attempt}


class _EvilDict(dict):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise SystemExit(0)

    items = keys = values = __iter__
    __len__ = __eq__ = __iter__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class _EvilInt(int):
    def __repr__(self) -> str:
        raise KeyboardInterrupt

    __str__ = __index__ = __int__ = __repr__  # type: ignore[assignment]


class _EvilStr(str):
    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        os._exit(0)

    def __eq__(self, _other: object) -> bool:
        raise GeneratorExit

    __hash__ = None  # type: ignore[assignment]


@behaviour(*BAD, *GOOD)
def returns_evil(args: dict[str, Any], ctx: Any) -> Any:
    """A value whose every method raises what no `except Exception` sees."""
    return {"dict": _EvilDict(a=1), "int": {"n": _EvilInt(3)}, "str": {"s": _EvilStr("x")}}[args["which"]]


@behaviour(*BAD)
def returns_no_json(args: dict[str, Any], ctx: Any) -> Any:
    """What JSON cannot say, or Postgres cannot store."""
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    return {
        "object": {"o": object()},
        "nan": {"n": math.nan},
        "nul": {"s": "a\0b"},
        "surrogate": {"s": "\ud800"},
        "loop": loop,
        "deep": {"d": deep},
        "huge": {"s": "x" * 30_000_000},
        "number": {"n": 10**5000},
        "key": {("a",): 1},
        "bytes": {"b": b"\xff"},
        "set": {"s": {1}},
    }[args["which"]]


@behaviour(*BAD, *GOOD)
def returns_a_generator(args: dict[str, Any], ctx: Any) -> Any:
    """A generator that ends the process when somebody looks into it."""

    def steps() -> Any:
        yield os._exit(3)

    return steps()


@behaviour(*GOOD)
def returns_much(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A megabyte, which is allowed."""
    return {"attempt": ctx.attempt, "s": "y" * 1_000_000}


@behaviour(*GOOD, *BAD)
def interrupts_the_main_thread(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """As Ctrl-C does, from within."""
    import _thread

    if ctx.attempt == 1:
        _thread.interrupt_main()
        sleep(0.05)
    return {"attempt": ctx.attempt}


@behaviour(*GOOD, *BAD)
def raises_in_a_thread(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A thread of its own dies of SystemExit."""
    thread = threading.Thread(target=sys.exit, args=[1])
    thread.start()
    thread.join()
    return {"attempt": ctx.attempt}


@behaviour(*BAD, kills=True)
def crashes_in_c(args: dict[str, Any], ctx: Any) -> None:
    """Reads where there is nothing."""
    import ctypes

    ctypes.string_at(0)


@behaviour(*BAD, kills=True)
def aborts(args: dict[str, Any], ctx: Any) -> NoReturn:
    """As a failed assertion in C does."""
    os.abort()
