"""Frames out of arbitrary pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproc.errors import ProtocolError
from kproc.wire.frame import FrameReader, encode_frame


@given(st.lists(st.binary(max_size=20), max_size=6), st.lists(st.integers(1, 9), max_size=60))
def test_frames_come_out_whole_however_the_stream_is_cut(frames, sizes):
    stream = b"".join(encode_frame(frame) for frame in frames)
    reader, got, at = FrameReader(20), [], 0
    for size in [*sizes, len(stream)]:
        got += reader.feed(stream[at : at + size])
        at += size
    assert got == frames
    assert reader.pending_bytes == 0


def test_a_frame_of_the_limit_passes_and_one_more_byte_is_refused():
    assert FrameReader(5).feed(encode_frame(b"12345")) == [b"12345"]
    with pytest.raises(ProtocolError, match="6 bytes, limit 5"):
        FrameReader(5).feed(encode_frame(b"123456")[:4])


@pytest.mark.parametrize("start", [b"\xff\xff\xff\xff", b"GET ", b"\x16\x03\x01\x02"])
def test_negative_lengths_and_other_protocols_are_refused_by_their_first_bytes(start):
    with pytest.raises(ProtocolError):
        FrameReader(100 * 1024 * 1024).feed(start)


def test_an_empty_frame_is_a_frame():
    assert FrameReader(5).feed(bytes(4)) == [b""]


def test_half_a_frame_is_counted_as_pending():
    reader = FrameReader(100)
    assert reader.feed(encode_frame(b"ab", b"cd") + b"\0\0") == [b"abcd"]
    assert reader.pending_bytes == 2
