"""The page `connections` of `kproc top`: rates of each client, and the quotas that throttle some of them."""

from __future__ import annotations

from kproc.cli.clients import add_rates
from kproc.cli.top_connections import connections_snapshot
from kproc.cli.top_screen import plain
from tests.support.top_views import client


def test_first_reading_of_connections_has_no_rates() -> None:
    (row,) = connections_snapshot([client("a")]).rows
    assert row["requests_per_s"] is None


def test_rates_are_of_the_interval_or_of_the_whole_life() -> None:
    rows = [client("old", requests=130), client("new", age_ms=500, requests=50)]
    add_rates(rows, {"old": client("old")}, 2.0)
    assert rows[0]["requests_per_s"] == 15.0
    assert rows[1]["requests_per_s"] == 100.0
    assert rows[1]["bytes_in_per_s"] == 2000.0


def test_connections_name_the_quota_that_throttles() -> None:
    quota = {"producer_byte_rate": {"value": 20_000, "of": "user alice"}}
    rows = [client(str(at), throttled_ms={"producer_byte_rate": 100 * at}, quotas=quota) for at in range(9)]
    assert connections_snapshot(rows).head[1:] == [], "nothing is known before the second reading"
    add_rates(rows, {row["id"]: {**row, "throttled_ms": {}} for row in rows}, 1.0)
    lines = [plain(line) for line in connections_snapshot(rows).head]
    assert lines[1] == (
        "throttled 80 % of the time: 8 (User:ANONYMOUS, 127.0.0.1:1) by producer_byte_rate=20000 of user alice"
    )
    assert lines[4:] == ["throttled: 5 more; --format json has all"]
