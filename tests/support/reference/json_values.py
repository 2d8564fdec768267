"""Values to try `check_payload` with: JSON documents, and what is nearly JSON."""

from __future__ import annotations

from hypothesis import strategies as st

_any_character = st.text(st.characters(codec=None))
_text = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
_atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text
_odd_atoms = st.floats() | _any_character | st.binary() | st.dates() | st.integers(10**4290, 10**4310)

documents = st.recursive(_atoms, lambda inner: st.lists(inner) | st.dictionaries(_text, inner), max_leaves=30)
anything = st.recursive(
    _atoms | _odd_atoms,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(_text | st.integers() | st.none() | _any_character, inner)
    ),
    max_leaves=15,
)


def as_json(value: object) -> object:
    """What JSON makes of a value that it can hold: tuples are lists."""
    if isinstance(value, dict):
        return {key: as_json(child) for key, child in value.items()}
    return [as_json(child) for child in value] if isinstance(value, list | tuple) else value
