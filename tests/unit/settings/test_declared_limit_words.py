"""What may be declared of limits in code, in a file and in a variable, and how each slip is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queue_workflows import Adaptive, ConfigurationError, Rate
from queue_workflows.settings import load_settings
from queue_workflows.settings.declared_limits import DeclaredLimit, declared_limits

FILE = """
[limits]
"host:*" = 4
unpaywall = { rate = "10/s", burst = 20 }
"gpu:*" = 1
slow = { cap = 16, floor = 2 }
mixed = [4, { rate = "60/min", floor = 6, down = 0.5, doubles_s = 30 }]
"""
CODE: dict[str, Any] = {
    "host:*": 4,
    "unpaywall": Rate(10, per="s", burst=20),
    "gpu:*": 1,
    "slow": Adaptive(16, floor=2),
    "mixed": [4, Adaptive(Rate(60, per="min"), floor=6, down=0.5, doubles_s=30)],
}
WORDS = {
    "host:*": DeclaredLimit("host:*", max_slots=4),
    "unpaywall": DeclaredLimit("unpaywall", per_s=10, burst=20),
    "gpu:*": DeclaredLimit("gpu:*", max_slots=1),
    "slow": DeclaredLimit("slow", max_slots=16, floor_slots=2, down=0.7, doubles_s=60),
    "mixed": DeclaredLimit("mixed", max_slots=4, per_s=1, burst=1, floor_per_s=0.1, down=0.5, doubles_s=30),
}


def test_code_and_file_say_the_same(tmp_path: Path) -> None:
    """In the words of either."""
    (tmp_path / "qwf.toml").write_text(FILE)
    assert load_settings(environ={}, start_dir=tmp_path).limits == WORDS
    assert load_settings(environ={}, start_dir=Path("/"), overrides={"limits": CODE}).limits == WORDS


def test_a_variable_has_pairs() -> None:
    """Caps and rates; what code says comes before it, all of it."""
    environ = {"QWF_LIMITS": "host:*=4, unpaywall=100/min"}
    assert load_settings(environ=environ, start_dir=Path("/")).limits == {
        "host:*": DeclaredLimit("host:*", max_slots=4),
        "unpaywall": DeclaredLimit("unpaywall", per_s=100 / 60, burst=2),
    }
    loaded = load_settings(environ=environ, start_dir=Path("/"), overrides={"limits": {"a": 1}})
    assert loaded.limits == {"a": DeclaredLimit("a", max_slots=1)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": -1}, "limits['a']: -1 is no cap, a whole number from 0 to 2,147,483,647"),
        ({"a": True}, "limits['a']: True is no cap"),
        ({"a": 1.5}, "limits['a']: 1.5 is no cap"),
        ({"a": None}, "limits['a']: None is no cap"),
        ({"a": "fast"}, "limits['a']: 'fast' is no rate: write 5/s"),
        ({"a": Rate(0)}, "limits['a']: 0 is no number for a rate"),
        ({"a": Rate(1, per="year")}, "limits['a']: per='year' is none of s, min, h, d"),
        ({"a": Rate(1, burst=float("nan"))}, "limits['a']: nan is no number for a burst"),
        ({"a": Adaptive(4, floor=5)}, "limits['a']: its floor is above the limit itself"),
        ({"a": Adaptive(4, floor=0.5)}, "limits['a']: floor=0.5 is no whole number from 1 on"),
        ({"a": Adaptive(4, down=1)}, "limits['a']: down=1 is no number from 0.01 to 0.99"),
        ({"a": Adaptive(4, doubles_s=0)}, "limits['a']: doubles_s=0 is no number from 0.1"),
        ({"a": [1, 2]}, "limits['a']: two caps or two rates are given"),
        ({"a": []}, "limits['a']: nothing is declared of it"),
        ({"a": {"cap": 1, "rate": "1/s"}}, "limits['a']: a table has a cap or a rate"),
        ({"a": {"cap": 1, "burst": 2}}, "limits['a']: burst goes with a rate"),
        ({"a": {"cap": 1, "flor": 2}}, "limits['a']: 'flor' is not known"),
        ({"exclusive:a": 2}, "limits['exclusive:a']: what is exclusive has one job at a time"),
        ({"a*b": 1}, "limits: 'a*b' is no key and no pattern"),
        ({"": 1}, "limits: '' is no key and no pattern"),
        ({7: 1}, "limits: 7 is no key and no pattern"),
        ({"x" * 513: 1}, "is no key and no pattern"),
    ],
)
def test_a_slip_is_told_by_its_key(given: dict[Any, Any], said: str) -> None:
    """And by what it may be."""
    with pytest.raises(ConfigurationError) as refused:
        declared_limits(given)
    assert said in refused.value.message
    assert refused.value.advice


def test_a_slip_in_a_file_names_the_file(tmp_path: Path) -> None:
    """Where it is to be mended."""
    (tmp_path / "qwf.toml").write_text('[limits]\n"host:*" = "often"\n')
    with pytest.raises(ConfigurationError, match=r"qwf\.toml: limits\['host:\*'\]: 'often' is no rate"):
        load_settings(environ={}, start_dir=tmp_path)
