"""The wiring of a host app whose functions return, raise and report what misbehaves when it is looked at."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from queue_workflows import ingest_task, set_node_resolver


class Abrupt(BaseException):
    """No `Exception`, so that only who catches everything catches it."""


def _raising(error: type[BaseException]) -> Callable[..., Any]:
    def method(*_: Any, **__: Any) -> Any:
        raise error("evil")

    return method


def _endless(self: Any, *_: Any) -> Any:
    return _endless(self)


METHODS = (
    *("__iter__", "__len__", "__eq__", "__str__", "__repr__", "__hash__", "__getitem__", "__contains__"),
    *("__bool__", "__lt__", "__add__", "__getattribute__", "__class__", "keys", "items", "values", "get"),
    *("encode", "bit_length", "__int__", "__float__", "__abs__", "__ge__", "__neg__", "__del__"),
)
BASES: tuple[type[Any], ...] = (object, dict, list, str, int, float, tuple)
DOINGS: dict[str, Any] = {
    "raises": _raising(ValueError),
    "is abrupt": _raising(Abrupt),
    "exits": _raising(SystemExit),
    "interrupts": _raising(KeyboardInterrupt),
    "recurses": _endless,
    "says seven": lambda *_: 7,
}


def _made(base: type[Any], doing: Any) -> Any:
    body = {name: doing for name in METHODS if name not in {"__del__", "__class__", "__getattribute__"}}
    body["__class__"] = property(doing)
    kind = type("Evil", (base,), body)
    return {dict: lambda: kind({"a": 1}), list: lambda: kind([1]), tuple: lambda: kind((1,))}.get(
        base, kind
    )()


def _error(base: type[BaseException], doing: Any) -> BaseException:
    body: dict[str, Any] = {"__str__": doing, "__repr__": doing, "__eq__": doing, "__hash__": doing}
    body["args"] = property(doing)
    return type("EvilError", (base,), body)("x")  # type: ignore[no-any-return]


# By name: what makes the value to return or report, and the exception to raise.
EVIL: dict[str, tuple[Callable[[], Any], Callable[[], BaseException]]] = {
    f"{base.__name__} {how}": (
        lambda base=base, doing=doing: _made(base, doing),
        lambda doing=doing, base=base: _error(Abrupt if base is object else ValueError, doing),
    )
    for base in BASES
    for how, doing in DOINGS.items()
} | {
    "text huge": (object, lambda: ValueError("x" * 50_000_000)),
    "text odd": (lambda: "\x00\ud800", lambda: ValueError("\x00 \ud800 \x1b[2J")),
    "args odd": (lambda: {"a": {1, 2}}, lambda: ValueError({"a": object()}, b"\xff", ["\x00"])),
    "group": (lambda: [object()], lambda: BaseExceptionGroup("\x00", [Abrupt("a"), ValueError("b")])),
}


def _returns(name: str) -> Any:
    return EVIL[name][0]()


def _raises(name: str) -> Any:
    raise EVIL[name][1]()


def _reports(name: str, ctx: Any) -> None:
    ctx.progress(0.5, payload=EVIL[name][0]())


def _register(name: str) -> None:
    @ingest_task(f"returns {name}")
    def returns(reason: str | None) -> Any:
        return _returns(name)

    @ingest_task(f"raises {name}")
    def raises(reason: str | None) -> Any:
        _raises(name)

    @ingest_task(f"reports {name}")
    def reports(reason: str | None, ctx: Any) -> Any:
        _reports(name, ctx)


for each in EVIL:
    _register(each)


@ingest_task("pid")
def pid(reason: str | None) -> dict[str, Any]:
    return {"pid": os.getpid()}


class Stumbling:
    """A module that cannot be looked at the first time, as one may whose application starts."""

    def __init__(self, over: Exception) -> None:
        self.over: Exception | None = over

    @property
    def run(self) -> Callable[..., Any]:
        over, self.over = self.over, None
        if over is not None:
            raise over
        return lambda inputs: {"pid": os.getpid()}


STUMBLING = {
    "stumbles": Stumbling(RuntimeError("not yet")),
    "stumbles_over_a_file": Stumbling(PermissionError("not yet")),
}


def _node(module: str) -> Any:
    how, _, name = module.partition(" ")
    bodies: dict[str, Any] = {
        **STUMBLING,
        "returns": lambda inputs: _returns(name),
        "raises": lambda inputs: _raises(name),
        "reports": lambda inputs, ctx: _reports(name, ctx),
        "pid": lambda inputs: {"pid": os.getpid()},
    }
    return bodies.get(how)


set_node_resolver(_node)
