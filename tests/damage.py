"""Hypothesis strategies that damage the bytes of a file, or replace values in its JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

DEEP = json.loads("[" * 400 + "]" * 400)
NUMBERS = [2**31, 2**63, -(2**63), 10**12, 10**400, 1e-300, 5e-324, 1e38, 1e308]
EXTREME = [*NUMBERS, "\ud800", "a\nb\0", DEEP, [[1]], {"a": 1}]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 40), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from(EXTREME), st.lists(st.integers(-2, 400), max_size=3), st.just({}),
)  # fmt: skip
Damage = Callable[[bytes], bytes]
INDEX = st.integers(0, 2**20)  # taken modulo the length


@st.composite
def broken_bytes(draw: st.DrawFn) -> Damage:
    """Replace, insert or remove some bytes, or all that follow."""
    index, length, new = draw(INDEX), draw(st.sampled_from([0, 1, 8, 2**20])), draw(st.binary(max_size=20))
    limit = draw(st.sampled_from([40, 400, 2**20]))  # headers are at the start, so most damage goes there

    def damage(raw: bytes) -> bytes:
        at = index % max(1, min(limit, len(raw)))
        return raw[:at] + new + raw[at + length :]

    return damage


def entries(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value, at any depth."""
    items = {dict: dict.items, list: enumerate}.get(type(value), lambda value: ())
    found = []
    for key, child in items(value):
        found += [(value, key), *entries(child)]
    return found


@st.composite
def broken_json(draw: st.DrawFn) -> Damage:
    """Replace or remove one entry of a JSON file, or of the JSON in the header of a safetensors file."""
    index, new, remove = draw(INDEX), draw(VALUES), draw(st.booleans())

    def damage(raw: bytes) -> bytes:
        start, end = 0, len(raw)
        if raw[8:9] == b"{":  # after the length of the header
            start, end = 8, 8 + int.from_bytes(raw[:8], "little")
        value = json.loads(raw[start:end])
        found = entries(value)
        container, key = found[index % len(found)]
        container[key] = new
        if remove:
            del container[key]
        edited = json.dumps(value).encode("utf-8", "surrogatepass")
        return len(edited).to_bytes(8, "little")[:start] + edited + raw[end:]

    return damage


def change_json(file: Path, **changes: Any) -> None:
    """Replace fields of a JSON file, as another program would have written them."""
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(content | changes), encoding="utf-8")
