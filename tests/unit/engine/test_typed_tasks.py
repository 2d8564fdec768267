"""Tasks whose parameters are their arguments: checked by their types when enqueued, and when they run."""

from __future__ import annotations

import asyncio
import enum
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, Json, SecretStr, computed_field

from queue_workflows.engine.outcomes import Discard
from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.engine.registry.tasks import TaskRegistry, register_ingest_task
from queue_workflows.errors import ConfigurationError, PayloadError
from queue_workflows.testing import perform

if TYPE_CHECKING:
    from queue_workflows import JobContext


class Size(enum.StrEnum):
    """How large."""

    LARGE = "large"


class Address(BaseModel):
    """Where to."""

    street: str
    number: int = 1


class Parcel(BaseModel):
    """With what a dump of pydantic's has that it would not take back."""

    model_config = ConfigDict(extra="forbid")
    weight: float = Field(alias="weightKg")
    labels: Json[list[int]]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_heavy(self) -> bool:
        """Whether two must carry it."""
        return self.weight > 20


class Login(BaseModel):
    """With a field that is in no dump."""

    name: str
    code: int = Field(exclude=True)


@dataclass
class Line:
    """What, and how many."""

    what: str
    count: int


@pytest.fixture
def registry() -> TaskRegistry:
    return TaskRegistry()


def ship(to: Address, on: date, lines: list[Line], size: Size = Size.LARGE, *, ctx: JobContext) -> Any:
    """Ships."""
    return [type(to).__name__, to.number, on.year, lines[0].count + 1, size.value, ctx.attempt]


def count(n: Annotated[int, Field(ge=0)], by: int = 2) -> int:
    """Counts."""
    return n * by


async def later(at: datetime) -> str:
    """Waits."""
    await asyncio.sleep(0)
    return at.tzname() or ""


def called(task: IngestTask[..., Any], args: dict[str, Any]) -> Any:
    """What the function of a job returns, by the path that a worker takes."""
    registered = register_ingest_task(f"typed {task.name}", task.fn, queue="fetch")
    return perform(registered, args).result


def test_arguments_are_converted_when_enqueued_and_when_run(registry: TaskRegistry) -> None:
    """JSON is stored, and the function gets its own types: models, dataclasses, dates, enums."""
    task = registry.register("ship", ship, queue="fetch")
    given = {
        "to": {"street": "A", "number": "7"},
        "on": date(2030, 1, 2),
        "lines": [{"what": "x", "count": "3"}],
    }
    job = task.job(given)
    assert job.args == {
        "to": {"street": "A", "number": 7},
        "on": "2030-01-02",
        "lines": [{"what": "x", "count": 3}],
    }
    assert called(task, given) == ["Address", 7, 2030, 4, "large", 1]
    counted = registry.register("count", count, queue="fetch")
    assert counted.job({"n": "3"}).args == {"n": 3}
    assert called(counted, {"n": 3}) == 6
    at = registry.register("later", later, queue="fetch")
    assert called(at, {"at": datetime(2030, 1, 2, tzinfo=UTC)}) == "UTC"


def test_what_is_stored_fits_when_the_job_runs(registry: TaskRegistry) -> None:
    """Under its aliases, without what is reckoned from the rest, and JSON in a text as a text."""

    def carry(parcel: Parcel) -> Any:
        return [parcel.weight, parcel.labels, parcel.is_heavy]

    task = registry.register("carry", carry, queue="fetch")
    stored = {"parcel": {"weightKg": 21.5, "labels": "[1,2]"}}
    assert task.job({"parcel": {"weightKg": "21.5", "labels": "[1, 2]"}}).args == stored
    assert called(task, stored) == [21.5, [1, 2], True]


def test_what_a_job_could_not_be_given_back_is_refused(registry: TaskRegistry) -> None:
    """A secret, of which pydantic stores asterisks, and a field that it leaves out; not asterisks as such."""

    def enter(password: SecretStr) -> None: ...
    def log_in(login: Login) -> None: ...
    def star(text: str) -> None: ...

    secret, excluded = registry.register("enter", enter, queue="fetch"), registry.register("in", log_in)
    with pytest.raises(PayloadError, match="cannot be stored: a secret would come back as asterisks") as told:
        secret.job({"password": "hunter2"})
    assert "hunter2" not in str(told.value)
    with pytest.raises(PayloadError, match=r"cannot be stored: login\.code: Field required"):
        excluded.job({"login": {"name": "ann", "code": 1}}, queue="fetch")
    text = {"text": "**********"}
    assert registry.register("star", star, queue="fetch").job(text).args == text


@pytest.mark.parametrize(
    ("args", "path", "says"),
    [
        (
            {"n": "three"},
            "args.n",
            "n: Input should be a valid integer, unable to parse string as an integer",
        ),
        ({"n": -1}, "args.n", "n: Input should be greater than or equal to 0"),
        ({}, "args.n", "n: Field required"),
        (None, "args.n", "n: Field required"),
        ({"n": 1, "m": 2}, "args.m", "m: Extra inputs are not permitted"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    registry: TaskRegistry, args: dict[str, Any] | None, path: str, says: str
) -> None:
    """Where they are enqueued, by their place, without their values."""
    task = registry.register("count", count, queue="fetch")
    with pytest.raises(PayloadError) as refused:
        task.job(args)
    assert refused.value.path == path
    assert str(refused.value).endswith(f"does not take these args: {says}")


def test_a_job_that_does_not_fit_fails_for_good(registry: TaskRegistry) -> None:
    """Enqueued by name, or by an older version of the code: no retry makes it fit."""
    task = registry.register("count", count, queue="fetch")
    work = registry.find("count")
    assert work is not None
    with pytest.raises(Discard, match="does not take the args of this job: n: Field required"):
        work.call(type("Job", (), {"args": {"by": 3}}), None)  # type: ignore[arg-type]
    assert task.arguments is not None


def test_the_limit_key_is_reckoned_from_what_is_stored(registry: TaskRegistry) -> None:
    """After the conversion."""
    task = registry.register("count", count, queue="fetch", limit_key=lambda args: f"n:{args['n'] + 1}")
    assert task.job({"n": "3"}).limit_key == "n:4"


def test_reason_and_args_stay_what_they_are(registry: TaskRegistry) -> None:
    """Also with types: what is called so, or begins with `_`, is no argument."""

    def classic(reason: str | None, args: dict[str, Any]) -> None: ...
    def short(reason: str | None) -> None: ...
    def unnamed(_: str | None, args: dict[str, Any]) -> None: ...
    def untyped(why) -> None: ...  # type: ignore[no-untyped-def]

    classics: tuple[Any, ...] = (classic, short, unnamed, untyped)
    for number, fn in enumerate(classics):
        assert registry.register(f"classic {number}", fn, queue="fetch").arguments is None


def test_a_type_that_cannot_be_checked_is_refused_when_it_is_registered(registry: TaskRegistry) -> None:
    """It is named."""

    def strange(n: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(
        ConfigurationError, match="types that cannot be checked: name 'Nowhere' is not defined"
    ):
        registry.register("strange", strange)


def test_who_has_no_such_task_loads_nothing_for_it() -> None:
    """What checks arguments is loaded with the first task that has some with types."""
    code = (
        "import sys; from queue_workflows import ingest_task\n"
        "@ingest_task('a', queue='fetch')\ndef a(reason, args): ...\n"
        "name = 'queue_workflows.engine.registry.typed_arguments'\n"
        "before = name in sys.modules\n"
        "@ingest_task('b', queue='fetch')\ndef b(n: int): ...\n"
        "print(before, name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("False True\n", "")
