"""The pictures of layout.py hold: places are computed, distinct, and of lines of their own."""

from __future__ import annotations

import pytest

from kproc.broker.ipc.layout import (
    LINE_BYTES,
    PAGE_BYTES,
    REGION_HEADER,
    RING_HEADER,
    WORD_BYTES,
    Layout,
    Word,
    align,
    ring_bytes,
)
from tests.support.cases import in_one_test


def test_words_follow_each_other_in_declared_order():
    layout = Layout("t", (Word("a", ""), Word("b", ""), Word("c", "", True), Word("d", "")), 512)
    assert layout.word == {"a": 0, "b": 1, "c": LINE_BYTES // 8, "d": LINE_BYTES // 8 + 1}


def test_a_word_declared_twice_is_refused():
    with pytest.raises(AssertionError, match="two words are called a"):
        Layout("t", (Word("a", ""), Word("a", "")), 512)


def test_words_that_do_not_fit_are_refused():
    with pytest.raises(AssertionError, match="do not fit"):
        Layout("t", (Word("a", ""), Word("b", "")), 8)


def test_producer_and_consumer_store_to_lines_of_their_own():
    lines = [place * WORD_BYTES // LINE_BYTES for place in RING_HEADER.word.values()]
    assert lines == [0, 1, 2, 2]


def test_region_header_is_one_page_and_documents_every_word():
    assert REGION_HEADER.total_bytes == PAGE_BYTES
    assert all(word.doc for word in (*REGION_HEADER.words, *RING_HEADER.words))


@in_one_test(("value", "aligned"), [(0, 0), (1, 8), (7, 8), (8, 8), (9, 16)])
def test_align_rounds_up(value, aligned):
    assert align(value, 8) == aligned


def test_a_second_ring_begins_on_a_line():
    assert ring_bytes(256) % LINE_BYTES == 0
    assert ring_bytes(256) >= RING_HEADER.total_bytes + 256
