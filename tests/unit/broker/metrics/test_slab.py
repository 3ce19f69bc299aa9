"""The metrics slab: declared once, written by one role, read by anybody, refused by another version."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

import kproc
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.metrics.requests import REQUEST_WORDS
from kproc.broker.metrics.slab import (
    METRIC_WORD,
    REQUESTS_WORD,
    ROW_WORDS,
    ROWS_MAX,
    SLAB_BYTES,
    MetricsRow,
    Slab,
)
from kproc.broker.metrics.spec import METRICS, SLOT, SPEC_CRC, MetricKind
from kproc.common.errors import FatalError
from tests.support.cases import in_one_test
from tests.support.ring_pair import Forked


def plain_slab(rows: int = 4) -> Slab:
    return Slab(memoryview(bytearray(8 * (8 + rows * ROW_WORDS))).cast("Q"), is_new=True)


def test_counts_are_seen_at_store_and_not_before() -> None:
    slab = plain_slab()
    row = MetricsRow(slab, 2, pid=77)
    row.values[SLOT["requests"]] += 5
    assert slab.read(2)["requests"] == 0
    row.store()
    assert slab.read(2)["requests"] == 5
    assert slab.pid(2) == 77


def test_single_value_is_stored_at_once_and_summed_over_rows() -> None:
    slab = plain_slab()
    rows = [MetricsRow(slab, index, pid=1) for index in range(3)]
    for index, row in enumerate(rows):
        row.values[SLOT["requests"]] = 10**index
        row.values[SLOT["responses"]] = 7
        row.store_one(SLOT["requests"])
    assert rows[0].sum_elsewhere("requests", (1, 2)) == 110
    assert slab.read(1)["responses"] == 0


def test_rows_do_not_touch_each_other() -> None:
    slab = plain_slab(3)
    rows = [MetricsRow(slab, index, pid=index + 1) for index in range(3)]
    for index, row in enumerate(rows):
        row.values = [1000 * index + slot for slot in range(len(METRICS))]
        row.store()
    for index in range(3):
        assert slab.read(index) == {metric.name: 1000 * index + SLOT[metric.name] for metric in METRICS}
        assert slab.pid(index) == index + 1


def test_counters_go_on_in_a_restarted_role() -> None:
    slab = plain_slab()
    first = MetricsRow(slab, 0, pid=1)
    first.values[SLOT["responses"]] = 41
    first.store()
    second = MetricsRow(slab, 0, pid=2)
    second.values[SLOT["responses"]] += 1
    second.store()
    assert slab.read(0)["responses"] == 42
    assert slab.pid(0) == 2


def test_sleeping_word_is_in_the_row_and_no_metric() -> None:
    slab = plain_slab()
    row = MetricsRow(slab, 1, pid=1)
    slab.words[row.sleeping_word] = 1
    row.store()
    assert slab.words[row.sleeping_word] == 1
    assert not any(slab.read(1).values())


def test_slab_of_another_version_is_refused() -> None:
    slab = plain_slab()
    assert Slab(slab.words, is_new=False).read(0)
    slab.words[0] = SPEC_CRC ^ 1
    with pytest.raises(FatalError, match="another version"):
        Slab(slab.words, is_new=False)


def test_other_processes_see_what_was_stored() -> None:
    with Region.create(RegionKind.SLAB, SLAB_BYTES, 0, is_sparse=True) as region:
        region.write_word(0, SPEC_CRC)

        def child() -> int:
            row = MetricsRow(Slab(region.words, is_new=False), 7, pid=1)
            row.values[SLOT["bytes_in"]] = 2**40
            row.store()
            return 0

        assert Forked(child).result() == 0
        assert Slab(region.words, is_new=False).read(7)["bytes_in"] == 2**40


def test_rows_fit_the_slab_and_metrics_fit_a_row() -> None:
    assert METRIC_WORD + len(METRICS) <= ROW_WORDS
    assert SLAB_BYTES == 8 * (REQUESTS_WORD + REQUEST_WORDS)
    assert 0 <= REQUESTS_WORD - (Slab.row_word(ROWS_MAX - 1) + ROW_WORDS) < 512
    assert REQUESTS_WORD % 512 == 0, "histograms of an API have pages of their own"
    assert Slab.row_word(0) % 8 == 0, "a row begins with a cache line of its own"


@in_one_test("metric", METRICS)
def test_every_metric_is_declared_in_words(metric) -> None:
    assert re.fullmatch(r"[a-z][a-z_]+", metric.name)
    assert isinstance(metric.kind, MetricKind)
    assert metric.unit
    assert metric.doc.endswith(".")
    assert metric.doc[0].isupper() or metric.doc.startswith("fdatasync")
    assert METRICS[SLOT[metric.name]] is metric


@functools.cache
def package_text() -> str:
    return "\n".join(path.read_text() for path in Path(kproc.__file__).parent.rglob("*.py"))


@in_one_test("metric", METRICS)
def test_every_metric_is_counted(metric) -> None:
    """A number that is always 0 looks like good news."""
    assert f'SLOT["{metric.name}"]' in package_text()
