"""Mutated bodies of requests."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def mutations(draw, bodies):
    """A valid body with a few bytes changed, cut off or put in."""
    body = bytearray(draw(bodies))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        kind = draw(st.sampled_from(["set", "set", "cut", "insert", "length"]))
        if kind == "cut":
            del body[at:]
        elif kind == "insert":
            body[at:at] = draw(st.binary(min_size=1, max_size=4))
        elif kind == "length":
            body[at : at + 4] = draw(
                st.sampled_from([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\xff" * 4])
            )
        elif at < len(body):
            body[at] = draw(st.sampled_from([0, 1, 2, 3, 127, 128, 255]))
    return bytes(body)
