"""The runner of the documentation's snippets goes red for what is broken; else its green means nothing."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest
from support.processes.snippets import SnippetFailed, find_snippets, output_matches, run_page


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    page = tmp_path / "page"
    page.mkdir()
    monkeypatch.chdir(page)
    monkeypatch.setenv("SNIPPETS_EXPORTED", str(tmp_path / "exported"))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def run(text: str) -> list[str]:
    return run_page(textwrap.dedent(text), "page.md")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("```python\nprint(undefined_name)\n```\n", "NameError"),
        ("```python\nassert 1 == 2\n```\n", "AssertionError"),
        ("```python\nraise SystemExit(0)\n```\n", "SystemExit"),
        ("```python\ndef broken(:\n```\n", "SyntaxError"),
        ("```console\n$ false\n```\n", "status 1"),
        ("```console\n$ true | no-such-command\n```\n", "status 127"),
        ("```console\n$ echo one\ntwo\n```\n", "but the page says"),
        ("```console\n$ printf 'a\\nb\\n'\na\n```\n", "but the page says"),
        ("```console\nstray output\n$ true\n```\n", "before any command"),
        ("```bash\ntrue\n```\n", "console"),
        ("```toml\na = \n```\n", "page.md:1"),
        ("```json\n{'a': 1}\n```\n", "page.md:1"),
        ("```python\nx = 1\n", "never ends"),
        ("<!-- file: ../escaped.py -->\n```python\nx = 1\n```\n", "outside"),
        ("<!-- file: broken.py -->\n```python\ndef (:\n```\n", "invalid syntax"),
    ],
)
def test_a_broken_snippet_fails(broken, says):
    """Whatever is wrong with a snippet, its page fails and the message says what."""
    with pytest.raises((SnippetFailed, SyntaxError), match=says):
        run(broken)


def test_a_failure_names_the_line_of_the_page():
    """A traceback points into the page, not into a string."""
    with pytest.raises(SnippetFailed, match=r'page\.md:3(.|\n)*File "page.md", line 5, in'):
        run("# Title\n\n```python\nx = 1\nx.nothing\n```\n")


def test_python_blocks_share_one_namespace():
    """A block may use what the one before it defined."""
    run("```python\nx = 41\n```\ntext\n```python\nassert x + 1 == 42\n```\n")


def test_python_blocks_are_a_program_of_their_own():
    """They run as a main module would, whatever the runner's own future imports are."""
    run(
        """
        ```python
        import sys

        class Row:
            id: int

        assert Row.__annotations__ == {"id": int}
        assert sys.modules[Row.__module__].Row is Row
        ```
        """
    )


def test_a_file_is_there_for_the_blocks_below():
    """A block that is marked as a file can be imported and read by commands."""
    run(
        """
        <!-- file: shop/jobs.py -->
        ```python
        NAME = 'fetch'
        ```

        ```console
        $ cat shop/jobs.py
        NAME = 'fetch'
        ```
        """
    )
    assert Path("shop/jobs.py").read_text() == "NAME = 'fetch'\n"


def test_what_is_exempt_is_listed_with_its_reason():
    """Nothing is skipped silently."""
    assert run("<!-- not run: needs a registry -->\n```console\n$ false\n```\n") == [
        "page.md:2 (console): needs a registry"
    ]


def test_an_export_holds_for_the_commands_below():
    """Exported variables live on from block to block, as in the reader's shell, and not beyond the page."""
    run(
        """
        ```console
        $ export QWF_SNIPPET_TEST='a b'
        ```

        ```console
        $ echo "$QWF_SNIPPET_TEST"
        a b
        ```
        """
    )
    assert "QWF_SNIPPET_TEST" not in os.environ


def test_a_command_may_go_on_after_a_backslash():
    """A long command is one command."""
    run("```console\n$ echo one \\\n    two\none two\n```\n")


@pytest.mark.parametrize(
    ("expected", "got", "matches"),
    [
        (("a", "..."), "a\nb\nc\n", True),
        (("a", "..."), "a\n", True),
        (("...", "c"), "a\nb\nc\n", True),
        (("a ... c",), "a b c\n", True),
        (("took ... s",), "took 12 ms\n", False),
        (("a", "...", "c"), "a\nb\n", False),
        (("a",), "a\nb\n", False),
        (("a.c",), "abc\n", False),
        (("WHEN       TRIES",), "WHEN                  TRIES\n", True),
        (("  a",), "a\n", False),
        (("a",), "", False),
    ],
)
def test_output_is_compared_line_by_line(expected, got, matches):
    """`...` stands for any lines, or any text within one, blanks for as many; everything else is literal."""
    assert output_matches(expected, got) is matches


def test_indented_and_nested_fences_are_found():
    """A block in a list is a block; its indentation is not part of it."""
    found = find_snippets("- item\n\n  ```python\n  x = 1\n    # more\n  ```\n", "page.md")
    assert [(one.line, one.body) for one in found] == [(3, "x = 1\n  # more\n")]


IN_THE_BACKGROUND = """
<!-- file: waiting.py -->
```python
import os, signal, sys, time
from pathlib import Path

signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[1])))
Path("pid").write_text(str(os.getpid()))
print("first\\nready", flush=True)
while True:
    time.sleep(0.05)  # a wait for the signal alone would miss one that comes right before it
```

<!-- in the background: a terminal of its own -->
```console
$ {command}
...
ready
```

```console
$ kill -0 $(cat pid) && echo there
there
```
"""


def test_a_command_in_the_background_is_there_until_the_page_ends():
    """What follows begins when it has printed what the page shows, and it is gone when the page is over."""
    run(IN_THE_BACKGROUND.format(command=f"{sys.executable} waiting.py 0"))
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)


@pytest.mark.parametrize(
    ("command", "says"),
    [("echo not yet", "printed(.|\n)*not yet"), (f"{sys.executable} waiting.py 3", "ended with status 3")],
)
def test_a_command_in_the_background_that_goes_wrong_is_told(command, says):
    """It ends before it has said what the page says, or badly at the end of the page."""
    with pytest.raises(SnippetFailed, match=says):
        run(IN_THE_BACKGROUND.format(command=command))


def test_a_command_in_the_background_ends_with_a_page_that_fails():
    """Nothing is left of it."""
    with pytest.raises(SnippetFailed, match="status 1"):
        run(IN_THE_BACKGROUND.format(command=f"{sys.executable} waiting.py 0") + "```console\n$ false\n```\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)
