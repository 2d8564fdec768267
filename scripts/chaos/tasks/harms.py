"""Tasks that harm the process that they run in, or leave something behind in it or beside it."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

from chaos.behaviours import BAD, GOOD, behaviour
from chaos.ledger import monotonic, sleep


def _well(ctx: Any) -> dict[str, Any]:
    return {"attempt": ctx.attempt}


@behaviour(*BAD, hangs=True)
def hangs_asleep(args: dict[str, Any], ctx: Any) -> None:
    """Sleeps past its time, deaf to everything."""
    sleep(60)


@behaviour(*BAD, hangs=True)
def hangs_politely(args: dict[str, Any], ctx: Any) -> None:
    """Sleeps past its time, and hears that it is over."""
    ctx.sleep(60)


@behaviour(*BAD, hangs=True)
def spins(args: dict[str, Any], ctx: Any) -> None:
    """An endless loop of Python: it lets go of the GIL now and then."""
    until = monotonic() + 20
    while monotonic() < until:
        pass


@behaviour(*BAD, kills=True, hangs=True)
def holds_the_gil(args: dict[str, Any], ctx: Any) -> None:
    """C code that never lets go; it sleeps on where a signal has woken it."""
    left = 30
    while left > 0:
        left = ctypes.PyDLL(None).sleep(left)


@behaviour(*BAD, hangs=True)
def hangs_uninterruptibly(args: dict[str, Any], ctx: Any) -> None:
    """Swallows whatever is raised in it."""
    until = monotonic() + 20
    while monotonic() < until:
        try:
            ctx.sleep(1)
        except BaseException:
            sleep(0.05)


@behaviour(*BAD, hangs=True)
def stalls(args: dict[str, Any], ctx: Any) -> None:
    """Says how far it is, and then nothing more."""
    ctx.progress(0.5)
    sleep(60)


@behaviour(*BAD, hangs=True)
def waits_for_a_lock_that_it_has(args: dict[str, Any], ctx: Any) -> None:
    """A deadlock of its own."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@behaviour(*GOOD)
def leaves_a_thread(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A thread that goes on for long, and reports for the job meanwhile."""

    def go_on() -> None:
        for _ in range(40):
            sleep(0.05)
            ctx.progress(0.1)

    threading.Thread(target=go_on, daemon=args.get("daemon", True)).start()
    return _well(ctx)


@behaviour(*GOOD)
def leaves_a_child(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A command that nobody waits for."""
    subprocess.Popen(["sleep", "300"], stdin=subprocess.DEVNULL)
    return _well(ctx)


@behaviour(*GOOD)
def leaves_a_daemon(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A command in a session of its own that is nobody's child."""
    subprocess.run(
        ["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 </dev/null &"], check=False, stdin=subprocess.DEVNULL
    )
    return _well(ctx)


@behaviour(*GOOD)
def leaves_a_pipe(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A child that shares its output and ignores SIGTERM."""
    subprocess.Popen(["sh", "-c", "trap '' TERM HUP INT; sleep 300"], stdin=subprocess.DEVNULL)
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def forks(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A bare fork, whose child ends at once without a word."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def forks_and_returns(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A bare fork whose child goes on as if it were the worker, for a while."""
    pid = os.fork()
    if pid == 0:
        sleep(0.3)
        os._exit(0)
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def waits_for_any_child(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Takes the end of whatever child there is."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def closes_descriptors(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """All of them, the worker's connections too."""
    os.closerange(args.get("first", 3), 1024)
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def shuts_sockets(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Shuts every socket down, which its owner hears of as of a cut line."""
    import socket

    for number in range(3, 64):
        try:
            with socket.socket(fileno=os.dup(number)) as one:
                one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def replaces_signal_handlers(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Where it may: at one job at a time it runs in the main thread."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN if args.get("ignore") else signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
    except ValueError:
        pass
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def blocks_signals(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """In its thread, and does not undo it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def sets_an_alarm(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """SIGALRM comes when another job runs."""
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    return _well(ctx)


@behaviour(*GOOD)
def changes_directory(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """To one that is then removed."""
    place = f"/tmp/chaos-gone-{os.getpid()}-{ctx.id}-{ctx.attempt}"
    os.mkdir(place)
    os.chdir(place)
    os.rmdir(place)
    return _well(ctx)


@behaviour(*GOOD)
def changes_umask(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """So that nobody may read what the process makes."""
    os.umask(0o777)
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def changes_environment(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Empties it, and fills it with what our names are read from."""
    os.environ.clear()
    os.environ.update(
        {"QWF_LEASE_S": "nonsense", "QWF_DB_URL": "postgresql://nobody@127.0.0.1:1/x", "TZ": "Mars"}
    )
    time.tzset()
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def limits_resources(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """So that the process gets no more descriptors, processes, file sizes or stack."""
    which = getattr(resource, args["which"])
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (args["value"], hard))
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def opens_descriptors(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Until there are no more, and keeps them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    kept = _KEPT
    try:
        while True:
            kept.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    return _well(ctx)


_KEPT: list[int] = []


@behaviour(*GOOD)
def says_much(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Two megabytes on each stream, with bytes that are no text."""
    os.write(1, b"\xff\0\n" * 300_000)
    sys.stderr.write("loud " * 200_000 + "\n")
    return _well(ctx)


@behaviour(*GOOD)
def closes_streams(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Those of Python, so that what is printed raises."""
    sys.stdout.close()
    sys.stderr.close()
    return _well(ctx)


@behaviour(*GOOD)
def turns_things_off(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """The garbage collector, the fault handler, warnings, logging, threads' switching."""
    gc.disable()
    faulthandler.disable()
    warnings.simplefilter("error")
    logging.disable(logging.CRITICAL)
    logging.raiseExceptions = True
    sys.setswitchinterval(0.5)
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def lowers_recursion(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """To hardly more than is in use."""
    sys.setrecursionlimit(60)
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def replaces_time(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Clocks that stand still, jump, or say no number."""
    for name in args["names"]:
        value = {"still": lambda: 0.0, "ahead": lambda: 1e12, "nan": lambda: float("nan")}[args["as"]]
        setattr(time, name, value)
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def replaces_sleep(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """As a careless test does."""
    time.sleep = lambda _s: None
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def replaces_json(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """As a faster library does that puts itself in the way."""
    import json

    def refused(*_: Any, **__: Any) -> str:
        raise SystemExit(0)

    json.dumps = refused
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def traces_everything(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A trace function that raises."""

    def trace(*_: Any) -> Any:
        raise ValueError("traced")

    threading.settrace(trace)
    sys.settrace(trace)
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def sets_default_timeouts(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """For all sockets to come, as download scripts do."""
    import socket

    socket.setdefaulttimeout(0.001)
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def kills_other_threads(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Raises SystemExit in every other thread of the process."""
    here = threading.get_ident()
    for thread in threading.enumerate():
        if thread.ident not in (here, None):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
            )
    return _well(ctx)


@behaviour(*GOOD, *BAD, harms=True)
def raises_later_in_its_thread(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """An exception that comes to the thread after the job has returned."""
    here, kind = threading.get_ident(), {"exit": SystemExit, "value": ValueError}[args["kind"]]

    def send() -> None:
        sleep(0.01)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(here), ctypes.py_object(kind))

    threading.Thread(target=send, daemon=True).start()
    return _well(ctx)


@behaviour(*BAD, harms=True)
def fills_memory(args: dict[str, Any], ctx: Any) -> None:
    """Up to a limit of its own, so that Python is out of memory; the limit is lifted again."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + 20_000_000, hard))
    try:
        kept = [bytearray(1_000_000) for _ in range(100)]
        raise ValueError(len(kept))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


@behaviour(*GOOD, *BAD, harms=True)
def has_a_finaliser(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Rubbish whose collection raises, in whatever thread it happens."""

    class Rubbish:
        def __del__(self) -> None:
            raise SystemExit(3)

    one, two = Rubbish(), Rubbish()
    one.other, two.other = two, one  # type: ignore[attr-defined]
    return _well(ctx)
