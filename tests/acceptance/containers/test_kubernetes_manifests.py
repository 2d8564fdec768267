"""The manifests of docs/deploy/kubernetes fit each other, the commands that they run, and the figures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml
from support.suite.missing import missing

from queue_workflows.cli.main import cli
from queue_workflows.roles.supervisor.supervisor import LONGEST_STOP_S
from queue_workflows.settings import Settings
from queue_workflows.telemetry.names import FIGURES

MANIFESTS = Path(__file__).resolve().parents[3] / "docs" / "deploy" / "kubernetes"
DOCKERFILE = MANIFESTS.parent / "container" / "Dockerfile"
# What the manifests are checked by: schemas of each version of Kubernetes, models of KEDA.
VALIDATORS = ("kubernetes-validate==1.37.0", "cloudcoil==0.6.0", "cloudcoil-models-keda==2.16.1.0")
OLDEST, NEWEST = "1.30", "1.37"


class Pod(NamedTuple):
    """A pod that a manifest asks for, with its one container."""

    name: str
    spec: dict[str, Any]
    labels: dict[str, str]
    container: dict[str, Any]

    @property
    def grace_s(self) -> float:
        """What its processes leave a job to end in."""
        own = {each["name"]: each["value"] for each in self.container.get("env", ())}
        return float(own.get("QWF_GRACE_S", Settings().grace_s))


def documents() -> list[dict[str, Any]]:
    texts = [path.read_text(encoding="utf-8") for path in sorted(MANIFESTS.glob("*.yaml"))]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in documents() if each["kind"] == kind}


def pods() -> Iterator[Pod]:
    for name, document in (of_kind("Deployment") | of_kind("Job")).items():
        template = document["spec"]["template"]
        (container,) = template["spec"]["containers"]
        yield Pod(name, template["spec"], template["metadata"]["labels"], container)


def parsed(arguments: Sequence[str]) -> click.Context:
    """The command that a command line means, with its options; raises as the command line would."""
    context = cli.make_context("qwf", list(arguments))
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, command, left = context.command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, left, parent=context)
    return context


def worker_options(arguments: Sequence[str]) -> list[str]:
    """The options of the one worker of a supervisor."""
    (spec,) = parsed(arguments).params["workers"].specs
    return list(spec.options)


def health_port(arguments: Sequence[str]) -> int | None:
    """Where what a command line starts answers from outside of its pod; None if it does not."""
    context = parsed(arguments)
    if context.info_name == "serve":
        return int(context.params["port"])
    if context.info_name == "supervisor":
        options = ["worker", "--queue", "fetch", *worker_options(arguments)]
        context = parsed(options)
    where = context.params.get("health")
    assert where is None or where[0] == "0.0.0.0"
    return None if where is None else int(where[1])


POD = pytest.mark.parametrize("pod", list(pods()), ids=lambda pod: pod.name)


@POD
def test_each_container_runs_a_command_that_is_one(pod: Pod) -> None:
    """The image's entry point with the arguments of the manifest; a probe's command stands whole."""
    parsed(pod.container["args"])
    for kind in ("livenessProbe", "readinessProbe"):
        command = pod.container.get(kind, {}).get("exec", {}).get("command")
        if command is not None:
            program, *arguments = command
            assert [program] == entry_point()
            where = parsed(arguments).params["where"]
            assert where == ("127.0.0.1", parsed(pod.container["args"]).params["port"])


@POD
def test_probes_ask_where_something_answers(pod: Pod) -> None:
    """The port that is named is the one that the command listens on, for others than itself."""
    ports = {port["name"]: port["containerPort"] for port in pod.container.get("ports", ())}
    probes = [pod.container[kind] for kind in ("livenessProbe", "readinessProbe") if kind in pod.container]
    asked = [probe["httpGet"] for probe in probes if "httpGet" in probe]
    assert list(ports.values()) == ([health_port(pod.container["args"])] if asked else [])
    assert all(probe["port"] in ports for probe in asked)
    assert {probe["path"] for probe in asked} <= {"/live", "/ready", "/metrics"}
    assert pod.name == "qwf-migrate" or "livenessProbe" in pod.container


@POD
def test_no_pod_is_killed_while_it_stops_in_order(pod: Pod) -> None:
    """Longer than the grace, what a supervisor takes beyond it, and a preStop before both."""
    if parsed(pod.container["args"]).info_name not in ("supervisor", "orchestrator", "scheduler"):
        return
    before = pod.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert pod.spec["terminationGracePeriodSeconds"] >= before + pod.grace_s + LONGEST_STOP_S


@POD
def test_no_pod_has_more_rights_than_it_needs(pod: Pod) -> None:
    """Neither root nor a file system to write to, but for /tmp."""
    assert pod.spec["securityContext"]["runAsNonRoot"]
    assert f"{pod.spec['securityContext']['runAsUser']}:{pod.spec['securityContext']['runAsGroup']}" == user()
    assert not pod.spec["automountServiceAccountToken"]
    assert pod.container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod.container["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    assert "memory" in pod.container["resources"]["limits"]


def test_what_selects_pods_finds_them() -> None:
    """Deployments, budgets, the service and the scaler name what is there."""
    labels = {pod.name: pod.labels for pod in pods()}
    found = [each["spec"]["selector"]["matchLabels"] for each in of_kind("Deployment").values()]
    budgets = of_kind("PodDisruptionBudget")
    found += [each["spec"]["selector"]["matchLabels"] for each in budgets.values()]
    found += [each["spec"]["selector"] for each in of_kind("Service").values()]
    for selector in found:
        assert [name for name, own in labels.items() if selector.items() <= own.items()] == [
            selector["app.kubernetes.io/name"]
        ]
    assert set(budgets) == {"qwf-orchestrator", "qwf-scheduler", "qwf-fetch"}
    (scaler,) = of_kind("ScaledObject").values()
    assert scaler["spec"]["scaleTargetRef"]["name"] in of_kind("Deployment")
    assert "replicas" not in of_kind("Deployment")[scaler["spec"]["scaleTargetRef"]["name"]]["spec"]


def test_the_scaler_asks_for_figures_that_there_are() -> None:
    """By their names and labels; and a pod more for each so many jobs as one of them runs at once."""
    figures = {figure.prometheus: set(figure.attributes) for figure in FIGURES}
    (scaler,) = of_kind("ScaledObject").values()
    jobs, wait = scaler["spec"]["triggers"]
    for trigger in jobs, wait:
        query = trigger["metadata"]["query"]
        named = re.findall(r"\b(qwf_\w+)(?:\{([^}]*)\})?", query)
        assert named
        for name, selection in named:
            labels = set(re.findall(r"(\w+)\s*=~?", selection))
            assert labels <= figures[name], name
        assert set(re.findall(r"by \(([^)]*)\)", query)) <= {"family, state"}
        assert 'queue="fetch"' in query
    assert "qwf_queue_jobs" in jobs["metadata"]["query"]
    assert "qwf_queue_wait_seconds" in wait["metadata"]["query"]
    options = worker_options(
        of_kind("Deployment")["qwf-fetch"]["spec"]["template"]["spec"]["containers"][0]["args"]
    )
    assert options[options.index("--concurrency") + 1] == jobs["metadata"]["threshold"]


# The Dockerfile


def lines_of(instruction: str) -> list[str]:
    """What stands behind this instruction, each in one line."""
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith(f"{instruction} ")]


def entry_point() -> list[str]:
    return list(json.loads(lines_of("ENTRYPOINT")[-1]))


def user() -> str:
    return lines_of("USER")[-1]


def test_the_image_runs_commands_without_a_shell_as_nobody_special() -> None:
    """Its command and its health check are lists that `qwf` understands, and ask one another's port."""
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user())
    command = json.loads(lines_of("CMD")[-1])
    context = parsed(command)
    assert [spec.queue for spec in context.params["workers"].specs] == ["cpu", "fetch"]
    options = context.params["workers"].specs[1].options
    (check,) = lines_of("HEALTHCHECK")
    program, *asks = json.loads(check[check.index("[") :])
    assert [program] == entry_point()
    assert parsed(asks).params["where"] == ("127.0.0.1", int(options[options.index("--health") + 1]))


# By validators from the registry


@pytest.fixture(scope="module")
def validators() -> Path:
    """Where the validators are, which are fetched once for this user."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "queue-workflows-tests"
    place = cache / "-".join(re.sub(r"[^\w.]+", "-", name) for name in VALIDATORS)
    if not (place / "complete").exists():
        place.mkdir(parents=True, exist_ok=True)
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--upgrade",
            "--target",
            str(place),
            *VALIDATORS,
        ]
        done = subprocess.run(install, capture_output=True, text=True, timeout=280)
        if done.returncode:
            missing(f"the validators could not be fetched: {done.stderr[-500:]}")
        (place / "complete").touch()
    return place


def asked(validators: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program run with the validators and nothing of ours."""
    return subprocess.run(
        [sys.executable, "-S", *(("-m", program) if arguments else ("-c", program)), *arguments],
        env={**os.environ, "PYTHONPATH": str(validators)},
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_takes_each_manifest(validators: Path, tmp_path: Path, version: str) -> None:
    """Strictly, so that a misspelt field is refused; what is KEDA's own is not Kubernetes' to judge."""
    files = [str(path) for path in sorted(MANIFESTS.glob("*.yaml")) if "keda" not in path.name]
    said = asked(validators, "kubernetes_validate", "-k", version, "--strict", *files)
    assert said.returncode == 0, said.stderr
    passed = re.findall(r"passed for resource (\S+) against", said.stderr + said.stdout)
    assert len(passed) == len(documents()) - len(of_kind("ScaledObject"))
    wrong = tmp_path / "wrong.yaml"
    text = (MANIFESTS / "web.yaml").read_text(encoding="utf-8")
    wrong.write_text(
        text.replace("terminationGracePeriodSeconds", "terminationGraceSeconds"), encoding="utf-8"
    )
    assert asked(validators, "kubernetes_validate", "-k", version, "--strict", str(wrong)).returncode != 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_keda_takes_the_scaler(validators: Path) -> None:
    """By models of its definition; they drop what they do not know, so all has to come back."""
    (scaler,) = of_kind("ScaledObject").values()
    program = (
        "import json, sys; from cloudcoil.models.keda.v1alpha1 import ScaledObject\n"
        f"given = json.loads({json.dumps(scaler)!r})\n"
        "read = ScaledObject.model_validate(given)\n"
        "read = read.model_dump(mode='json', by_alias=True, exclude_unset=True)\n"
        "print(json.dumps([given, read]))"
    )
    said = asked(validators, program)
    assert said.returncode == 0, said.stderr
    given, read = json.loads(said.stdout)
    assert read == given
