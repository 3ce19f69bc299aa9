"""Fixtures of the tests of commands."""

from __future__ import annotations

import pytest

from kproc.cli import top_groups, top_links, top_topics, topic_usage
from tests.support.scripted_client import NOW_MS, ScriptedClient, ScriptedGroup, ScriptedLog, StoppedClock


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> ScriptedClient:
    scripted = ScriptedClient()
    for module in (top_links, topic_usage):
        monkeypatch.setattr(module, "connect", lambda _bootstrap: scripted)
    for module in (top_groups, top_topics):
        monkeypatch.setattr(module, "SystemClock", StoppedClock)
    scripted.logs = {
        ("orders", 0): ScriptedLog([NOW_MS - 60_000] * 10),
        ("orders", 1): ScriptedLog([NOW_MS - 3_000]),
        ("__consumer_offsets", 0): ScriptedLog([NOW_MS - 1_000]),
    }
    scripted.internal = {"__consumer_offsets"}
    scripted.groups = {f"g-{at}": ScriptedGroup({("orders", 0): at}, members=at) for at in range(9)}
    return scripted
