"""Reading what a hook printed: every line is a record or a numbered warning, whatever the bytes are."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import tracemalloc
from pathlib import Path

import pytest

from queue_workflows.hooks.files import FileCaps
from queue_workflows.hooks.output.read import HookOutput, OutputCaps, as_much_as_fits, read_output
from queue_workflows.repositories.sql.checks import PayloadLimits


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of a hook, below that of its run."""
    directory = tmp_path / "run" / "title"
    directory.mkdir(parents=True)
    return directory


def output(place: Path, printed: bytes, **caps: int) -> HookOutput:
    stdout = place.parent / "out.jsonl"
    stdout.write_bytes(printed)
    return read_output(place, stdout, beneath=place.parent, caps=OutputCaps(**caps))


def told(read: HookOutput) -> list[tuple[int, str]]:
    return [(line.line_no, line.warning if line.warning is not None else line.type) for line in read.lines]


def test_records_and_warnings_keep_the_numbers_of_their_lines(place: Path) -> None:
    """An object without a type is a warning that says why; what is no object is a log, as words are."""
    printed = b'{"type": "Tag", "name": "x"}\n\n[1]\nhello\n{"name": "y"}\n{"type": 7}\n{"type": "Zebra"}'
    read = output(place, printed)
    assert told(read) == [
        (1, "Tag"),
        (3, "Log"),
        (4, "Log"),
        (5, 'it has no `type`, or none that can be kept: {"name": "y"}'),
        (6, 'it has no `type`, or none that can be kept: {"type": 7}'),
        (7, "Zebra"),
    ]
    assert [record.payload for record in read.records] == [
        {"type": "Tag", "name": "x"},
        {"type": "Zebra"},
    ]
    assert (len(read.warnings), read.result()["warnings"]) == (2, 2)
    assert read.result()["records"] == {"Tag": 1, "Zebra": 1}


def test_words_are_a_log_and_no_warning(place: Path) -> None:
    """So many lines of them, each to its first 2,000 bytes; what begins as a record does not is a warning."""
    read = output(place, b"\x1b[1mhello\n" + b"x" * 3_000 + b"\n{'type': 'Tag'}\n")
    assert [line.payload for line in read.lines[:2]] == [
        {"type": "Log", "text": "\\x1b[1mhello"},
        {"type": "Log", "text": "x" * 2_000 + "…"},
    ]
    assert [line.line_no for line in read.warnings] == [3]
    for words in (b"[+] the tab is ready", b"[1, 2", b"42", b"true", b'"quoted"', b"caf\xe9", b"[" * 200_000):
        assert told(output(place, words + b"\n")) == [(1, "Log")], words[:40]
    told_of = output(place, b"a\nb\nc\nd\n", logs=2)
    assert [line.payload["text"] for line in told_of.lines] == [
        "a",
        "b",
        "more than 2 lines of words: no further ones are kept",
    ]
    assert told_of.warnings == ()


def test_the_list_of_files_is_the_engines_own(place: Path) -> None:
    """Nobody finds a second one beside it."""
    read = output(place, b'{"type": "Tag", "name": "x"}\n{"type": "Files", "files": []}\n')
    said = "the type 'Files' is the engine's own, for what it has found itself: "
    assert told(read) == [(1, "Tag"), (2, said + '{"type": "Files", "files": []}')]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{\xff\xfe\x00binary", "not UTF-8: {\\xff\\xfe\\x00binary"),
        (
            b"{\x00\x01\x1b[31m",
            "not JSON (Expecting property name enclosed in double quotes): {\\x00\\x01\\x1b[31m",
        ),
        (b'{"a":' * 200_000, "not JSON (too deep or too large a number): " + '{"a":' * 24 + "…"),
        (
            b'{"type": "T", "n": ' + b"9" * 5000 + b"}",
            'not JSON (too deep or too large a number): {"type": "T", "n": ' + "9" * 101 + "…",
        ),
    ],
)
def test_binary_garbage_is_a_warning(place: Path, line: bytes, said: str) -> None:
    """Nothing that a hook prints makes reading fail, and what is kept of it can be stored and printed."""
    read = output(place, line + b'\n{"type": "Tag"}\n')
    assert told(read) == [(1, said), (2, "Tag")]


@pytest.mark.parametrize(
    "line", [b'{"type": "T", "x": NaN}', b'{"type": "T", "x": "\\u0000"}', b'{"type": "T", "x": "\\ud800"}']
)
def test_what_postgres_refuses_is_a_warning(place: Path, line: bytes) -> None:
    """A record that no row could hold is told by its number, and the next one is read."""
    read = output(place, line + b'\n{"type": "Tag"}\n')
    assert [(line.line_no, line.is_record) for line in read.lines] == [(1, False), (2, True)]


def test_a_line_that_is_too_long_costs_only_itself(place: Path) -> None:
    """Its beginning is told, its rest skipped, and the line after it is read."""
    read = output(place, b'{"type": "A"}\n' + b"x" * 300_000 + b'\n{"type": "B"}\n', line_bytes=1000)
    assert [line_no for line_no, _ in told(read)] == [1, 2, 3]
    assert read.warnings[0].warning is not None
    assert read.warnings[0].warning.startswith("a line of more than 1,000 bytes: xxx")


def test_the_caps_are_kept_and_told(place: Path) -> None:
    """Records, warnings, lines and bytes have a number that is not exceeded, and the last line says so."""
    records = b'{"type": "A"}\n' * 10
    assert told(output(place, records, records=3)) == [
        *((n, "A") for n in (1, 2, 3)),
        (4, "more than 3 records: what follows was not read"),
    ]
    assert told(output(place, b"{x\n" * 5 + b'{"type": "A"}\n', warnings=1)) == [
        (1, "not JSON (Expecting property name enclosed in double quotes): {x"),
        (2, "more than 1 warnings: no further ones are kept"),
        (6, "A"),
    ]
    assert told(output(place, b"\n\n" + records, lines=3)) == [
        (3, "A"),
        (4, "more than 3 lines: what follows was not read"),
    ]
    assert told(output(place, records, total_bytes=20)) == [
        (1, "A"),
        (2, "the output has more than 20 bytes: what follows was not read"),
    ]
    assert told(output(place, b"x" * 30, total_bytes=20, line_bytes=5)) == [
        (1, "a line of more than 5 bytes: xxxxxxxxxxxxxxxxxxxx"),
        (2, "the output has more than 20 bytes: what follows was not read"),
    ]


def test_output_that_is_a_link_is_not_read(place: Path, tmp_path: Path) -> None:
    """Standard output that a hook swapped for a link, or a FIFO, is a warning."""
    secret = tmp_path / "secret"
    secret.write_text('{"type": "Secret"}\n')
    stdout = place.parent / "out.jsonl"
    stdout.symlink_to(secret)
    assert "cannot be read" in told(read_output(place, stdout, beneath=place.parent))[0][1]
    stdout.unlink()
    os.mkfifo(stdout)
    assert "no regular file" in told(read_output(place, stdout, beneath=place.parent))[0][1]


def test_nothing_there_is_nothing_found(place: Path) -> None:
    """A hook that printed nothing and left nothing has an empty output."""
    gone = read_output(place / "gone", place / "gone.jsonl", beneath=place.parent)
    assert gone == HookOutput()


def test_output_that_its_hook_removed_is_told(place: Path) -> None:
    """As by who removes all that the run has: what it printed is lost, and that is not."""
    gone = read_output(place, place.parent / "gone.jsonl", beneath=place.parent, has_printed=True)
    assert told(gone) == [(1, "the output cannot be read: the hook has removed its file")]


def test_the_result_is_the_last_one_with_all_files(place: Path) -> None:
    """What other nodes refer to: the result's fields, the files found, and counts."""
    (place / "a.html").write_text("<p>")
    printed = b'{"type": "ArchiveResult", "status": "failed"}\n{"type": "Tag", "name": "x"}\n{oops\n'
    printed += b'{"type": "Result", "status": "succeeded", "output_str": "a.html", "output_json": {"n": 1}}\n'
    result = output(place, printed).result()
    assert result == {
        "status": "succeeded",
        "output_str": "a.html",
        "output_json": {"n": 1},
        "files": [
            {
                "path": "a.html",
                "size": 3,
                "mimetype": "text/html",
                "sha256": hashlib.sha256(b"<p>").hexdigest(),
            }
        ],
        "records": {"ArchiveResult": 1, "Result": 1, "Tag": 1},
        "warnings": 1,
    }


def test_a_cap_on_files_is_told(place: Path) -> None:
    """The listing says what it left out."""
    for name in "cab":
        (place / name).write_text(name)
    read = read_output(place, place / "no", beneath=place.parent, caps=OutputCaps(files=FileCaps(files=2)))
    assert ([found.path for found in read.files], read.left_out) == (["a", "b"], ("more than 2 files",))


@pytest.mark.slow
def test_an_output_of_tiny_values_takes_no_more_memory_than_its_text(place: Path) -> None:
    """A line is there as objects only while it is checked, whatever they are many times as large as."""
    line = b'{"type": "T", "a": [' + b",".join([b"{}"] * 100_000) + b"]}\n"
    stdout = place.parent / "out.jsonl"
    stdout.write_bytes(line * 8)
    gc.collect()
    tracemalloc.start()
    try:
        read = read_output(place, stdout, beneath=place.parent)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(record.payload["a"]) for record in read.records] == [100_000] * 8
    assert held < 2 * len(line) * 8
    assert peak < held + 12_000_000


def test_lines_are_parsed_in_turn(place: Path) -> None:
    """Of many outputs that are read at once one line is in memory as objects."""
    stdout, turns = place.parent / "out.jsonl", []

    class Turn:
        def __enter__(self) -> None:
            turns.append("begins")

        def __exit__(self, *_: object) -> None:
            turns.append("ends")

    stdout.write_bytes(b'{"type": "T"}\n' * 3)
    assert len(read_output(place, stdout, beneath=place.parent, turn=Turn()).records) == 3
    assert turns == ["begins", "ends"] * 3


def test_what_was_written_since_it_began_is_an_attempts_own(place: Path) -> None:
    """If it has content, and whatever time it claims for itself: a download has that of its server."""
    (place / "page").write_text("x")
    (place / "empty").touch()
    stdout = place.parent / "out"
    stdout.write_bytes(b'{"type": "Result", "status": "succeeded", "output_str": "0 responses"}\n')
    began = (place / "page").stat().st_ctime_ns
    os.utime(place / "page", ns=(0, 0))
    read = read_output(place, stdout, beneath=place.parent, since_ns=began)
    assert (read.written, read.found_nothing) == (1, False)
    changed = (place / "page").stat().st_ctime_ns
    os.utime(place / "page", ns=(changed * 2, changed * 2))
    after = (place / "page").stat().st_ctime_ns + 1
    read = read_output(place, stdout, beneath=place.parent, since_ns=after)
    assert (read.written, read.found_nothing, len(read.files)) == (0, True, 2)


@pytest.mark.parametrize(
    ("line", "is_nothing"),
    [
        (b'{"type": "Result", "status": "succeeded", "output_json": {}}', True),
        (b'{"type": "ArchiveResult", "status": "noresults"}', True),
        (b"words", True),
        (b'{"type": "Result", "status": "succeeded", "output_json": 0}', False),
        (b'{"type": "Tag", "name": "x"}', False),
    ],
)
def test_a_record_beside_the_result_is_something_found(place: Path, line: bytes, is_nothing: bool) -> None:
    """And so is an `output_json` that holds anything."""
    assert output(place, line).found_nothing == is_nothing


def test_a_result_that_is_too_large_loses_what_does_not_fit(place: Path) -> None:
    """It is a success all the same, and says what is left out; shorter parts stay."""
    (place / "a.txt").write_text("a")
    said = {"type": "Result", "status": "succeeded", "output_str": "ok", "output_json": ["x" * 500]}
    read = output(place, json.dumps(said).encode())
    whole = read.result()
    assert "left_out" not in whole
    assert whole["output_json"] == ["x" * 500]
    assert as_much_as_fits(read.result(), PayloadLimits(max_bytes=400)) == whole | {
        "output_json": None,
        "left_out": ["output_json"],
    }
    assert as_much_as_fits(read.result(), PayloadLimits(max_bytes=150)) == whole | {
        "output_json": None,
        "files": [],
        "left_out": ["output_json", "files"],
    }
    long = output(place, json.dumps(said | {"status": "s" * 500, "output_json": [1]}).encode())
    assert as_much_as_fits(long.result(), PayloadLimits(max_bytes=400)) == whole | {
        "status": None,
        "output_json": [1],
        "left_out": ["status"],
    }
    deep = output(place, b'{"type": "Result", "status": "succeeded", "output_json": [[[[[1]]]]]}')
    assert as_much_as_fits(deep.result(), PayloadLimits(max_depth=4)) == deep.result() | {
        "output_json": None,
        "left_out": ["output_json"],
    }
