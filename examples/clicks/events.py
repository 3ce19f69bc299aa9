"""The events, which are equal in every run, and the results that the pipeline must have.

The events are two hours of a shop: 90 % page views, 8 % clicks, 2 % orders, in the order of their time. A user stays
for five minutes and views about 20 pages, sometimes with a pause that ends the session. Every fourth click is followed
by an order: 80 % of them within ten minutes, the others too late for the join.

`expected` computes the results with numpy and shares no code with the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

Longs = np.ndarray[Any, np.dtype[np.int64]]

START_MS: Final = 1_767_225_600_000  # 2026-01-01 00:00 UTC
SPAN_MS: Final = 2 * 3600 * 1000
SESSION_GAP_MS: Final = 60_000
JOIN_MS: Final = 10 * 60_000
WINDOW_MS: Final = 60_000
LATEST_MS: Final = START_MS + SPAN_MS + 15 * 60_000  # No order is later.
END_MS: Final = LATEST_MS + 4 * 3600 * 1000
"""Timestamp of the last record of each topic. It closes every window."""

# Largest number of page views in a chunk. The random events depend on it, so changing it changes them.
# CHUNKS_MIN limits a chunk's span of time: partitions can be read one chunk apart, which must be less than a
# watermark's delay.
CHUNK: Final = 100_000
CHUNKS_MIN: Final = 60
PAGES: Final = 200
RECORDS_MIN: Final = 10_000
_VIEWS_OF_USER: Final = 20
# A user stays for 1/24 of the two hours.
_STAY: Final = 24
_SEED: Final = 20_260_101


class Chunk(NamedTuple):
    """Events of some seconds: columns of page views, clicks and orders."""

    views: dict[str, Longs]
    clicks: dict[str, Longs]
    orders: dict[str, Longs]


@dataclass(frozen=True)
class ExpectedTotals:
    """The results that the pipeline must have for all events."""

    views: int
    clicks: int
    orders: int
    pages: Longs  # [minute, page] -> views
    pages_ms: Longs  # [minute, page] -> milliseconds looked at
    sessions: int
    session_views: int
    session_ms: int  # from the first view to the last, over all sessions
    conversions: int
    revenue: int


class Events:
    """All events of a run with `records` of them."""

    def __init__(self, records: int) -> None:
        self.clicks_count = records * 8 // 100
        self.orders_count = records * 2 // 100
        self.views_count = records - self.clicks_count - self.orders_count
        self._chunk = min(CHUNK, -(-self.views_count // CHUNKS_MIN))
        self._users = max(_STAY, self.views_count // _VIEWS_OF_USER)
        self.clicks = self._make_clicks()
        self.orders = self._make_orders()

    def _make_clicks(self) -> dict[str, Longs]:
        number = np.arange(self.clicks_count, dtype=np.int64)
        return {
            "ts": START_MS + number * SPAN_MS // self.clicks_count,
            "click": number,
            "page": number * 7 % PAGES,
        }

    def _make_orders(self) -> dict[str, Longs]:
        source = np.random.default_rng(_SEED)
        click = np.arange(self.orders_count, dtype=np.int64) * self.clicks_count // self.orders_count
        is_late = source.random(self.orders_count) < 0.2
        delay = np.where(
            is_late,
            source.integers(JOIN_MS + 1, JOIN_MS + 4 * 60_000, self.orders_count),
            source.integers(1_000, JOIN_MS + 1, self.orders_count),
        )
        stamps = self.clicks["ts"][click] + delay
        order = np.argsort(stamps, kind="stable")
        amount = source.integers(100, 20_000, self.orders_count)
        return {"ts": stamps[order], "click": click[order], "amount": amount[order], "order_id": order}

    def chunks(self) -> Iterator[Chunk]:
        """Yield all events in chunks, ordered by time."""
        before = START_MS
        for first in range(0, self.views_count, self._chunk):
            views = self._views(first)
            is_last = first + self._chunk >= self.views_count
            until = LATEST_MS + 1 if is_last else int(views["ts"][-1])
            yield Chunk(views, _between(self.clicks, before, until), _between(self.orders, before, until))
            before = until

    def _views(self, first: int) -> dict[str, Longs]:
        count = min(self._chunk, self.views_count - first)
        number = np.arange(first, first + count, dtype=np.int64)
        source = np.random.default_rng(_SEED + 1 + first)
        active = max(1, self._users // _STAY)
        return {
            "ts": START_MS + number * SPAN_MS // self.views_count,
            "visitor": number * self._users // self.views_count + source.integers(0, active, count),
            "page": (PAGES * source.random(count) ** 3).astype(np.int64),
            "ms": source.integers(5, 2_000, count),
        }

    def expected(self) -> ExpectedTotals:
        """Compute the expected results from the events."""
        minutes = SPAN_MS // WINDOW_MS
        pages = np.zeros(minutes * PAGES, np.int64)
        pages_ms = np.zeros(minutes * PAGES, np.int64)
        seen: list[Longs] = []
        for chunk in self.chunks():
            views = chunk.views
            cell = (views["ts"] - START_MS) // WINDOW_MS * PAGES + views["page"]
            pages += np.bincount(cell, minlength=len(pages))
            pages_ms += np.bincount(cell, views["ms"], len(pages)).astype(np.int64)
            seen.append(views["visitor"] * (2 * SPAN_MS) + views["ts"] - START_MS)
        ordered = np.sort(np.concatenate(seen))
        user, at = ordered // (2 * SPAN_MS), ordered % (2 * SPAN_MS)
        # In Spark a view exactly at the end of the gap still belongs to the session.
        goes_on = (user[1:] == user[:-1]) & (at[1:] - at[:-1] <= SESSION_GAP_MS)
        took = self.orders["ts"] - self.clicks["ts"][self.orders["click"]]
        is_joined = took <= JOIN_MS
        return ExpectedTotals(
            views=self.views_count,
            clicks=self.clicks_count,
            orders=self.orders_count,
            pages=pages.reshape(minutes, PAGES),
            pages_ms=pages_ms.reshape(minutes, PAGES),
            sessions=len(ordered) - int(goes_on.sum()),
            session_views=len(ordered),
            session_ms=int((at[1:] - at[:-1])[goes_on].sum()),
            conversions=int(is_joined.sum()),
            revenue=int(self.orders["amount"][is_joined].sum()),
        )


def _between(columns: dict[str, Longs], start_ms: int, end_ms: int) -> dict[str, Longs]:
    first, last = np.searchsorted(columns["ts"], (start_ms, end_ms))
    return {name: column[first:last] for name, column in columns.items()}
