"""Answers that were valid once: hypothesis puts any JSON in any one place of them, or takes the place out."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

ANY: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abct_e", max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)
_GONE = object()


def mutated(answer: Any) -> st.SearchStrategy[Any]:
    """Give an answer with one place changed; the root is one too."""
    return st.builds(_put, st.just(answer), st.sampled_from(_places(answer)), ANY | st.just(_GONE))


def _places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return [above, *(place for key, inner in items for place in _places(inner, (*above, key)))]


def _put(answer: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return None if value is _GONE else value
    whole = copy.deepcopy(answer)
    at = whole
    for key in place[:-1]:
        at = at[key]
    if value is _GONE:
        del at[place[-1]]
    else:
        at[place[-1]] = value
    return whole
