"""The connections of `kproc top`: pages that a broker of another host does not offer."""

from __future__ import annotations

import pytest

from tests.support.command_line import refused
from tests.support.scripted_client import ScriptedClient
from tests.support.top_views import (
    once,
)


def test_pages_of_another_host_say_where_they_are_shown(
    broker: ScriptedClient, capsys: pytest.CaptureFixture[str]
) -> None:
    for page in ("processes", "requests"):
        said = refused(once(capsys, page, "--bootstrap", "192.0.2.1:9092"))
        assert "192.0.2.1:9092 is another host" in said
    assert "needs a kproc broker on this host" in refused(once(capsys, "connections"))
