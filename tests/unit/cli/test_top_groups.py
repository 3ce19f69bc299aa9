"""The groups of `kproc top`: lag and its age, read for the rows on the screen."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.cli import rights
from kproc.cli.top_links import Links
from kproc.cli.top_page import Reading
from kproc.client.security.settings import ClientSecurity
from kproc.wire.header import ApiKey
from tests.support.command_line import described, told
from tests.support.scripted_client import ScriptedClient
from tests.support.top_views import (
    PAGES,
    once,
)


def test_groups_are_sorted_by_lag_with_its_age(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(once(capsys, "groups", "--filter", "g-1")).splitlines()
    assert lines[0] == "9 groups, 9 with a lag, 54 records behind"
    assert [line.split() for line in lines[2:]] == [
        ["g-1", "Stable", "1", "9", "60s", "classic", "consumer"],
    ]
    rows = described(once(capsys, "groups", "--format", "json", "--sort", "lag", "--reverse"))["rows"]
    assert [row["lag"] for row in rows] == list(range(2, 11))


def test_page_without_groups_names_rights_as_a_reason(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page showed 0 groups to a user who may describe none, and `kproc group list` gave the reason."""
    broker.groups.clear()
    monkeypatch.setattr(rights, "client_security", ClientSecurity)
    assert "DESCRIBE" not in told(once(capsys, "groups"))
    broker.denied = {ApiKey.DESCRIBE_CLUSTER}
    reason = "not shown: groups: there are none, or the right DESCRIBE is missing"
    assert reason in told(once(capsys, "groups")).splitlines()


def test_update_of_groups_asks_for_the_rows_on_the_screen_only(
    broker: ScriptedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = Links("h:1")
    page = PAGES["groups"]
    reading = Reading(page.open(links))
    reading.read([])
    reading.survey_pace._next_s = float("inf")
    fetched: list[list[str]] = []
    real = broker._offset_fetch

    def spy(fields: Any) -> Any:
        fetched.append([row["group_id"] for row in fields["groups"]])
        return real(fields)

    monkeypatch.setattr(broker, "_offset_fetch", spy)
    broker.requests.clear()
    reading.read(["g-3", "g-4"])
    assert ApiKey.FETCH in broker.requests
    broker.requests.clear()
    shown = {row["group"]: row for row in reading.read(["g-3", "g-4"]).rows}
    assert fetched == [["g-3", "g-4"]] * 2
    assert ApiKey.FETCH not in broker.requests, "the time of a record is read once"
    assert len(shown) == 9
    assert (shown["g-3"]["lag_age_ms"], shown["g-5"]["lag_age_ms"]) == (60_000, None)
