"""Foreign bytes: strategies that damage a file as disks, downloads and hand edits do, and JSON values of any kind."""

import copy
import json
from collections.abc import Callable
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
PLACE = st.integers(0, 2**20)  # of which the rest modulo the length is taken


@st.composite
def broken_bytes(draw: st.DrawFn) -> Damage:
    """Bytes flipped, cut off, inserted, written over; sometimes nothing is left."""
    kind = draw(st.sampled_from(["flip", "cut", "insert", "overwrite", "replace"]))
    place, bit, new = draw(PLACE), draw(st.integers(0, 7)), draw(st.binary(min_size=1, max_size=20))
    near = draw(st.sampled_from([40, 400, 2**20]))  # what matters stands at the start

    def damage(raw: bytes) -> bytes:
        at = place % max(1, min(near, len(raw)))
        if kind == "flip" and raw:
            return raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]
        return {
            "cut": raw[:at],
            "insert": raw[:at] + new + raw[at:],
            "overwrite": raw[:at] + new + raw[at + len(new) :],
        }.get(kind, new[bit:])

    return damage


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(value, key), *places(value[key])]]


def changed(value: Any, place: int, new: Any, how: str) -> Any:
    """A copy in which one entry is another, is gone, or is there twice over."""
    value = copy.deepcopy(value)
    found = places(value)
    if not found:
        return new
    container, key = found[place % len(found)]
    if how == "remove":
        del container[key]
    elif how == "swap":
        other, its = found[(place * 7 + 1) % len(found)]
        container[key] = copy.deepcopy(other[its])
    else:
        container[key] = new
    return value


@st.composite
def broken_json(draw: st.DrawFn) -> Damage:
    """A JSON text, or one of its lines, with one entry changed; other bytes around it are left as they are."""
    place, line, new = draw(PLACE), draw(PLACE), draw(VALUES)
    how = draw(st.sampled_from(["replace", "replace", "remove", "swap"]))

    def damage(raw: bytes) -> bytes:
        head, text, tail = parts(raw, line)
        edited = json.dumps(changed(json.loads(text), place, new, how)).encode("utf-8", "surrogatepass")
        return (len(edited).to_bytes(8, "little") if len(head) == 8 else head) + edited + tail

    return damage


def parts(raw: bytes, line: int) -> tuple[bytes, bytes, bytes]:
    """What stands before, in and after the JSON: of a safetensors file its header, of a .jsonl one line."""
    if raw[8:9] == b"{":
        end = 8 + int.from_bytes(raw[:8], "little")
        return raw[:8], raw[8:end], raw[end:]
    lines = raw.splitlines(keepends=True)
    if all(text.endswith(b"}\n") and text.startswith(b"{") for text in lines):
        at = line % len(lines)
        return b"".join(lines[:at]), lines[at], b"".join(lines[at + 1 :])
    return b"", raw, b""
