"""A public suite of plugins on the shipped worker, beside the runner that it was written for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
import psycopg

from bench.harness.figures import Figure, ratio
from bench.harness.measuring import Bench
from bench.harness.workers import SCRIPTS, orchestrating, working
from queue_workflows import start_run
from queue_workflows.db import bootstrap
from queue_workflows.hooks.plugins.compile import compile_hooks

RUNNER: Final = "abx-dl==1.11.86"
AT_ONCE: Final = 3
PLUGINS: Final = (
    *("chrome", "consolelog", "responses", "headers", "seo", "screenshot", "dom", "title"),
    *("htmltotext", "parse_html_urls", "hashes"),
)
TARGET: Final = 1.5
_EXAMPLE: Final = SCRIPTS.parent / "docs" / "examples" / "suite"
_PAGE: Final = (
    "<!doctype html><html lang='en'><head><title>Page {n}</title></head><body><h1>Page {n}</h1>"
    "<p>Words of page {n}.</p><a href='/{next}.html'>next</a>"
    "<script>console.log('page {n} is here')</script></body></html>"
)
_OPTIONS: Final = ("--concurrency", str(AT_ONCE), "--max-background", "100")
_OVER: Final = "SELECT count(*) FROM workflow_runs WHERE id = ANY (%s) AND finished_at IS NOT NULL"
_PATIENCE_S: Final = 3_600.0
# What the example's hooks.toml says for ours: a hook that hangs costs both as much.
_TIMEOUT_S: Final = "120"


def suite(bench: Bench) -> Sequence[Figure]:
    """Pages by both, three at once, in blocks that take turns; and how many of them are complete."""
    if missing := [name for name in ("chromium", "node", "npm") if shutil.which(name) is None]:
        bench.say(f"not measured: there is no {missing[0]} on PATH")
        return []
    pages, rounds = bench.much(9, 3), bench.much(3, 1)
    with tempfile.TemporaryDirectory(prefix="qwf-bench-") as directory:
        place = Path(directory)
        installed = _installed(place / "suite", bench.say)
        took: dict[str, list[float]] = {"ours": [], "theirs": []}
        complete = dict.fromkeys(took, 0)
        with _site(place / "site", pages) as urls:
            for number in range(rounds):
                for name, archive in {"ours": _ours, "theirs": _theirs}.items():
                    kept = place / name / str(number)
                    kept.mkdir(parents=True)
                    seconds, found = archive(bench, installed, urls, kept)
                    took[name].append(pages / seconds * 60)
                    complete[name] += sum(map(_is_complete, found, range(pages)))
                    if left := _end_what_names(kept):
                        bench.say(f"round {number + 1}, {name}: {left} processes were left")
                    bench.say(
                        f"round {number + 1}, {name}: {took[name][-1]:.1f} a minute, {complete[name]} whole"
                    )
    both = complete["ours"], complete["theirs"]
    return [
        Figure(
            *("suite", f"pages a minute, {AT_ONCE} at once", median(took["ours"]), "", RUNNER),
            *(median(took["theirs"]), ratio(took["ours"], took["theirs"]), TARGET),
        ),
        Figure(
            *("suite", f"pages of {pages * rounds} of which all is there", both[0], "", RUNNER, both[1]),
            *(both[0] / max(both[1], 1), 1.0),
        ),
    ]


def _installed(place: Path, say: Callable[[str], None]) -> Path:
    """The suite and its own runner; QWF_TEST_SUITE names a directory that has both."""
    if (before := os.environ.get("QWF_TEST_SUITE")) is not None:
        return Path(before)
    say("installing the suite")
    subprocess.run([_EXAMPLE / "install", place], check=True, stdin=subprocess.DEVNULL)
    pip = [place / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", RUNNER]
    subprocess.run([*pip, "-r", _EXAMPLE / "requirements.txt"], check=True, stdin=subprocess.DEVNULL)
    return place


def _ours(bench: Bench, installed: Path, urls: Sequence[str], kept: Path) -> tuple[float, list[Path]]:
    """Seconds from the first page's start to the end of the last, and where each page's files are."""
    plugins = installed / "plugins"
    document = compile_hooks("Snapshot", [plugins], plugins=[*PLUGINS, "profile"])
    settings = {"QWF_HOOK_DIRS": str(plugins), "QWF_DATA_DIR": str(kept), **_around()}
    with bench.database() as (dsn, connection):
        bootstrap(dsn)
        with orchestrating(dsn), working(dsn, *_OPTIONS, queue="hooks", settings=settings):
            began = time.monotonic()
            runs = _run_all(connection, document, urls)
            return time.monotonic() - began, [kept / "runs" / str(run) for run in runs]


def _run_all(
    connection: psycopg.Connection[Any], document: dict[str, Any], urls: Sequence[str]
) -> list[uuid.UUID]:
    """All pages, with so many of them begun at a time."""
    runs: list[uuid.UUID] = []
    until, pause = time.monotonic() + _PATIENCE_S, threading.Event()
    while True:
        row = connection.execute(_OVER, [runs]).fetchone()
        over = row[0] if row else 0
        if over == len(urls):
            return runs
        while len(runs) < len(urls) and len(runs) - over < AT_ONCE:
            runs.append(start_run(document, {"url": urls[len(runs)]}, conn=connection).id)
        if time.monotonic() > until:
            raise SystemExit("the pages did not come to an end")
        pause.wait(0.02)


def _theirs(_bench: Bench, installed: Path, urls: Sequence[str], kept: Path) -> tuple[float, list[Path]]:
    """The pages by the suite's own runner, a process for each, as many at a time."""
    places = [kept / str(number) for number in range(len(urls))]
    lib = kept / "lib"
    (lib / "npm").mkdir(parents=True)
    (lib / "npm" / "node_modules").symlink_to(installed / "node_modules")
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(partial(_by_runner, installed, lib), urls, places))
    return time.monotonic() - began, [place / "out" for place in places]


def _end_what_names(place: Path) -> int:
    """End what has the directory in its command line, as a browser has; how many processes that were."""
    left = [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(f"{place}/" in word for word in process.info["cmdline"] or [])
    ]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return len(left)


def _by_runner(installed: Path, lib: Path, url: str, place: Path) -> None:
    place.mkdir()
    node, venv = installed / "node_modules", installed / "venv"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("QWF_")},
        **_around(),
        "HOME": str(place),
        "LIB_DIR": str(lib),
        "NODE_MODULES_DIR": str(node),
        "VIRTUAL_ENV": str(venv),
        "PATH": f"{venv}/bin:{node}/.bin:{os.environ['PATH']}",
        "CHROME_ISOLATION": "snapshot",
        "CHROME_USER_DATA_DIR": str(place / "profile"),
        "TIMEOUT": _TIMEOUT_S,
    }
    command = [venv / "bin" / "abx-dl", "dl", f"--dir={place / 'out'}", f"--plugins={','.join(PLUGINS)}", url]
    # What it says of its own end counts for nothing: its files are looked at.
    subprocess.run(
        command,
        check=False,
        env=environment,
        cwd=place,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=900,
    )


def _around() -> dict[str, str]:
    """What both are given."""
    return {"CHROME_SANDBOX": "false" if os.geteuid() == 0 else "true"}


def _is_complete(page: Path, number: int) -> bool:
    """Whether the listeners have the document and the console's line, and the others what they looked at."""
    try:
        responses = [json.loads(line) for line in (page / "responses/index.jsonl").read_text().splitlines()]
        console = [json.loads(line) for line in (page / "consolelog/console.jsonl").read_text().splitlines()]
        title, text = (page / "title/title.txt").read_text(), (page / "htmltotext/htmltotext.txt").read_text()
        picture = (page / "screenshot/screenshot.png").read_bytes()
    except (OSError, ValueError):
        return False
    return (
        any(line["resourceType"] == "document" for line in responses)
        and any(line["text"] == f"page {number} is here" for line in console)
        and (title, picture[:4]) == (f"Page {number}", b"\x89PNG")
        and f"Words of page {number}." in text
    )


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def _site(place: Path, pages: int) -> Iterator[list[str]]:
    """The addresses of so many pages."""
    place.mkdir()
    for number in range(pages):
        (place / f"{number}.html").write_text(_PAGE.format(n=number, next=(number + 1) % pages))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(place))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield [f"http://localhost:{server.server_port}/{number}.html" for number in range(pages)]
        server.shutdown()
