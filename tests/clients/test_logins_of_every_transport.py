"""Logins with the roles as processes, as threads, in one thread, and with the transports of bench/alternatives."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.alternatives.broker import ALTERNATIVES
from kproc.wire.header import ApiKey
from tests.support.broker import TRANSPORTS
from tests.support.raw import Closed, RawConnection
from tests.support.secured import log_in, secured
from tests.support.wait import stretched, wait_until

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("kind", [*TRANSPORTS, *ALTERNATIVES])
def test_sasl_login_on_every_transport(tmp_path: Path, kind: str) -> None:
    session_ms = stretched(600)
    settings = {"connections.max.reauth.ms": session_ms}
    with secured(tmp_path / "data", transport=kind, settings=settings) as broker:
        with RawConnection(broker.bootstrap) as client:
            assert log_in(client)["session_lifetime"] == session_ms
            assert client.call(ApiKey.METADATA, 1, {"topics": None})["brokers"]
            assert log_in(client)["error_code"] == 0
            wait_until(lambda: is_over(client), what="the end of the session")
        with RawConnection(broker.bootstrap) as stranger:
            stranger.send(ApiKey.METADATA, 1, {"topics": None})
            assert stranger.is_closed_by_broker()


def is_over(client: RawConnection) -> bool:
    """Return True if the broker has closed the connection, at the latest upon this request."""
    try:
        client.call(ApiKey.METADATA, 1, {"topics": None})
    except Closed:
        return True
    return False
