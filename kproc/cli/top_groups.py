"""The page `groups` of `kproc top`.

A survey reads the lags of all groups, an update those of the groups on the screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kproc.cli.group_list import add_ages, add_lags, add_members, listed_groups
from kproc.cli.lag_age import Position
from kproc.cli.rights import can_hide_names
from kproc.cli.top_links import Links
from kproc.cli.top_page import (
    Column,
    Line,
    PageSnapshot,
    Row,
    Source,
    StyledText,
    TopPage,
    counted,
    show_age,
    show_count,
    total,
)
from kproc.cli.topic_usage import Gaps
from kproc.common.clock import SystemClock

if TYPE_CHECKING:
    from kproc.client import Client


class _Groups:
    """The groups of a broker with their last known states and lags."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._gaps = Gaps()
        self._rows: dict[str, dict[str, Any]] = {}
        self._surveyed: dict[str, list[Position]] | None = None
        """By group the committed positions with a lag, from the last survey. None after the update that used them."""
        # Times of records by position. They do not change, so each is read only once.
        self._times: dict[Position, int] = {}

    def survey(self) -> None:
        """Read states, members and lags of all groups. Keep the last known ages of the lags until the next update."""
        client, self._gaps = self._links.client, Gaps()
        rows = {row["group"]: row for row in listed_groups(client, [])}
        if not rows and can_hide_names(client):
            self._gaps.add("groups", "there are none, or the right DESCRIBE is missing")
        self._surveyed = self._add(client, rows)
        for name, row in rows.items():
            if row["lag"] and name in self._rows:
                row["lag_since_ms"] = self._rows[name]["lag_since_ms"]
        self._rows = rows

    def update(self, names: Sequence[str] | None) -> PageSnapshot:
        """Return the snapshot of all groups, after reading lags and ages of the groups `names`, or of all for None.

        Directly after a survey read only the ages, because its lags are new.
        """
        wanted = self._rows.keys() if names is None else names
        rows = {name: self._rows[name] for name in wanted if name in self._rows}
        client = self._links.client
        surveyed, self._surveyed = self._surveyed, None
        if surveyed is None:
            behind = self._add(client, rows)
        else:
            behind = {name: surveyed[name] for name in rows if name in surveyed}
        self._times = add_ages(client, rows, behind, self._gaps, self._times)
        now_ms = SystemClock().wall_ms()
        return groups_snapshot([_with_age(row, now_ms) for row in self._rows.values()], self._gaps.text())

    def _add(self, client: Client, rows: Mapping[str, dict[str, Any]]) -> dict[str, list[Position]]:
        add_members(client, rows)
        return add_lags(client, rows, self._gaps)


def _with_age(row: dict[str, Any], now_ms: int) -> dict[str, Any]:
    since_ms = row["lag_since_ms"]
    return row | {"lag_age_ms": None if since_ms is None else max(0, now_ms - since_ms)}


def groups_snapshot(rows: list[dict[str, Any]], gaps: str | None = None) -> PageSnapshot:
    """Return the snapshot of the page: the rows, and a line with sums.

    gaps: a line about rows that cannot be shown, or None.
    """
    lag = total(row["lag"] for row in rows)
    behind = sum(bool(row["lag"]) for row in rows)
    shown = "-" if lag is None else show_count(lag)
    text = f"{counted(len(rows), 'group')}, {behind:,} with a lag, {shown} records behind"
    head: list[Line] = [[StyledText(text)]]
    if gaps is not None:
        head.append([StyledText(gaps, "dim")])
    return PageSnapshot(rows, head, {})


def _style(row: Row) -> str:
    # Highlight a group with a lag but no members, because nothing reduces the lag.
    if row["lag"] and row["members"] == 0:
        return "yellow"
    return "dim" if row["lag"] == 0 and row["members"] == 0 else ""


def _open(links: Links) -> Source:
    groups = _Groups(links)
    return Source(groups.update, groups.survey)


GROUPS: Final = TopPage(
    name="groups",
    name_key="group",
    columns=(
        Column("GROUP", "group", 24, is_text=True),
        Column("STATE", "state", 12, is_text=True),
        Column("MEMBERS", "members", 7, show_count),
        Column("LAG", "lag", 12, show_count),
        Column("BEHIND", "lag_age_ms", 6, show_age),
        Column("TYPE", "type", 8, is_text=True),
        Column("PROTOCOL", "protocol_type", 8, is_text=True),
    ),
    dropped=("PROTOCOL", "TYPE", "MEMBERS", "STATE"),
    sort="LAG",
    open=_open,
    style=_style,
    legend=(
        ("LAG", "records from the committed offsets to the ends of the partitions;"),
        ("", "yellow: the group has a lag and no member"),
        ("BEHIND", "age of the oldest record that is not committed, of rows shown"),
        ("TYPE", "how members join: classic, consumer (KIP-848), share, streams"),
        ("PROTOCOL", "purpose of a classic group: consumer (reads topics), connect ..."),
        ("", "kproc group describe GROUP shows the partitions."),
    ),
)
