"""Tasks with parameters that are their arguments, as in `def square(n: int, *, ctx)`: checked by their types.

pydantic checks and converts them when a job is enqueued, and again when it runs, as the function may have
changed meanwhile. Imported only where such a task is registered.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, Final, NamedTuple, NotRequired, Required

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.outcomes import Discard
from queue_workflows.errors import ConfigurationError, PayloadError

_CTX: Final = "ctx"
# The functional form, with fields that no type checker can know.
_named_fields: Final[Any] = TypedDict
_MOST_TOLD: Final = 5
# What pydantic writes in place of a secret.
_MASKED: Final = "*" * 10


class TypedArguments(NamedTuple):
    """What a task's function takes, by the types of its parameters."""

    label: str
    adapter: TypeAdapter[Any]

    def converted(self, args: Mapping[str, Any] | None) -> dict[str, Any]:
        """Arguments as JSON takes them, each of its type; `PayloadError` says which is none."""
        try:
            checked = self.adapter.validate_python(dict(args or {}))
        except ValidationError as refused:
            raise PayloadError(
                f"{self.label} does not take these args: {_said(refused)}", path=_place(refused)
            ) from None
        return self._stored(checked)

    def _stored(self, checked: Any) -> dict[str, Any]:
        """What a job has of arguments: it must give them back, as they are, when it runs."""
        stored: dict[str, Any]
        why = "a secret would come back as asterisks"
        try:
            stored = self.adapter.dump_python(checked, mode="json", by_alias=True, round_trip=True)
            again = self.adapter.validate_python(stored)
            if _MASKED not in str(stored) or again == checked:
                return stored
        except ValidationError as refused:
            why = _said(refused)
        except ValueError as refused:
            why = str(refused)
        raise PayloadError(f"{self.label}: the args cannot be stored: {why}", path="args")

    def values(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """What the function is called with; `Discard` where a job has arguments that it does not take."""
        try:
            values: dict[str, Any] = self.adapter.validate_python(dict(args))
        except ValidationError as refused:
            raise Discard(f"{self.label} does not take the args of this job: {_said(refused)}") from None
        return values


def typed_work(fn: Callable[..., Any], label: str) -> tuple[TypedArguments, Work]:
    """How to check a task's arguments, and how to call it."""
    parameters = inspect.signature(fn).parameters
    arguments = TypedArguments(label, _adapter(fn, parameters, label))
    with_ctx = _CTX in parameters

    def call(job: Any, ctx: JobContext) -> Any:
        given = arguments.values(job.args)
        return fn(**given, ctx=ctx) if with_ctx else fn(**given)

    is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
    return arguments, Work(label, call, is_async)


def _adapter(fn: Callable[..., Any], parameters: Mapping[str, Parameter], label: str) -> TypeAdapter[Any]:
    wanted = {name: each.annotation for name, each in parameters.items() if name != _CTX}
    try:
        # `ctx` may be annotated by what is imported for type checkers alone.
        holder = type("Annotated", (), {"__annotations__": wanted})
        scope = getattr(inspect.unwrap(fn), "__globals__", {})
        types = typing.get_type_hints(holder, globalns=scope, include_extras=True)
        fields = {
            name: (Required if parameters[name].default is Parameter.empty else NotRequired)[types[name]]
            for name in wanted
        }
        shape = _named_fields("args", fields)
        shape.__pydantic_config__ = ConfigDict(extra="forbid")
        return TypeAdapter(shape)
    except (NameError, TypeError, PydanticUserError) as wrong:
        said = " ".join(str(wrong).split())
        raise ConfigurationError(
            f"{label}: its arguments have types that cannot be checked: {said:.200}",
            advice="import the types where the function is, or take (reason, args)",
        ) from None


def _place(refused: ValidationError) -> str:
    (first, *_) = refused.errors(include_url=False, include_input=False, include_context=False)
    return "".join(["args", *(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])])


def _said(refused: ValidationError) -> str:
    """What is wrong with which argument, without its value, which may be nobody's business."""
    errors = refused.errors(include_url=False, include_input=False, include_context=False)
    told = [f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in errors[:_MOST_TOLD]]
    more = [f"and {len(errors) - _MOST_TOLD} more"] if len(errors) > _MOST_TOLD else []
    return "; ".join(told + more)
