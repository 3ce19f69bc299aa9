"""Listeners come and go by AlterConfigs of `listeners`: nobody else notices, and the port is free at once."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

import pytest

from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.configs import set_config
from tests.support.raw import Closed, RawClient, address_of, batch
from tests.support.status import processes, rows, status, wait_replaced
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

SETTINGS = {
    "num.network.threads": 2,
    "num.io.threads": 2,
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT",
    "kproc.allow.unauthenticated.network": "EXTERNAL",
}
BOTH = "PLAINTEXT://127.0.0.1:0,EXTERNAL://127.0.0.1:0"
UNBINDABLE = "EXTERNAL://192.0.2.1:0"  # Reserved for documentation: never an address of this host.
ONE = "PLAINTEXT://127.0.0.1:0"


def set_listeners(client: RawClient, text: str) -> tuple[int, str | None]:
    return set_config(client, "listeners", text)



def bound(broker: ServedBroker) -> dict[str, str]:
    return {name: row["bound"] for name, row in status(broker.bootstrap)["listeners"].items()}


def problem(broker: ServedBroker) -> str | None:
    return status(broker.bootstrap)["problem"]


def processors(broker: ServedBroker) -> int:
    return len([row for row in status(broker.bootstrap)["processes"] if row["role"] == "processor"])


def connects(address: str) -> bool:
    try:
        socket.create_connection(address_of(address), timeout=1).close()
    except OSError:
        return False
    return True


def has(broker: ServedBroker, *names: str) -> Callable[[], bool]:
    return lambda: set(bound(broker)) == set(names)


def test_listener_is_added_and_removed_at_run_time(tmp_path: Path, transport: str) -> None:
    with (
        ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        client.create_topic("t")
        assert set_listeners(client, BOTH) == (0, None)
        wait_until(has(broker, "PLAINTEXT", "EXTERNAL"), what="both listeners")
        address = bound(broker)["EXTERNAL"]
        with RawClient(address) as stranger:
            (node,) = stranger.call(ApiKey.METADATA, 9, {"topics": []})["brokers"]
            assert f"{node['host']}:{node['port']}" == address, "told by the listener that it came by"
            assert stranger.produce("t", batch(b"x"))["error_code"] == 0
            assert set_listeners(client, ONE) == (0, None)
            assert stranger.is_closed_by_broker()
        wait_until(has(broker, "PLAINTEXT"), what="one listener")
        with socket.socket() as again:  # As servers do: the closed connection is remembered for a minute.
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(address_of(address))
            again.listen()
        assert client.end_offset("t") == 1, "this connection has noticed nothing"
        roles = [row["role"] for row in rows(broker.bootstrap)]
        assert roles.count("acceptor") == 1


def test_listener_added_at_run_time_survives_restart(tmp_path: Path, transport: str) -> None:
    broker = ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS)
    with broker, RawClient(broker.bootstrap) as client:
        assert set_listeners(client, BOTH) == (0, None)
        wait_until(has(broker, "PLAINTEXT", "EXTERNAL"), what="both listeners")
    with broker, RawClient(bound(broker)["EXTERNAL"]) as stranger:
        stranger.call(ApiKey.METADATA, 9, {"topics": []})


def test_listener_that_cannot_be_opened_is_rejected_or_logged(tmp_path: Path, transport: str) -> None:
    with (
        ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker,
        RawClient(broker.bootstrap) as client,
        socket.socket() as holder,
    ):
        assert set_listeners(client, "NOBODY://127.0.0.1:0")[0] != 0
        code, message = set_listeners(client, "EXTERNAL://no-such-host.invalid:0")
        assert code != 0
        assert "cannot resolve the host of EXTERNAL" in (message or "")
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = f"{ONE},EXTERNAL://127.0.0.1:{holder.getsockname()[1]}"
        assert set_listeners(client, taken) == (0, None), "only the supervisor tries"
        wait_until(lambda: "cannot bind" in broker.log(), what="the log says why not")
        assert has(broker, "PLAINTEXT")()
        wait_until(lambda: "cannot bind EXTERNAL" in (problem(broker) or ""), what="and kproc status")
        assert set_config(client, "num.network.threads", "3") == (0, None)
        wait_until(lambda: processors(broker) == 3, what="other changes are made all the same")
        assert set_listeners(client, BOTH) == (0, None)
        wait_until(has(broker, "PLAINTEXT", "EXTERNAL"), what="another try")
        assert problem(broker) is None


def test_unbindable_new_listeners_leave_old_listeners_open(
    tmp_path: Path, transport: str
) -> None:
    with (
        ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        with suppress(Closed):  # Its own listener goes, which may be sooner than the answer.
            assert set_listeners(client, UNBINDABLE) == (0, None)
            wait_until(client.is_closed_by_broker, what="its listener goes")
        wait_until(lambda: connects(broker.bootstrap), what="and is there again, with the same port")
        wait_until(lambda: "EXTERNAL" in (problem(broker) or ""), what="kproc status says why")
        with RawClient(broker.bootstrap) as again:
            assert set_listeners(again, BOTH) == (0, None)
            wait_until(has(broker, "PLAINTEXT", "EXTERNAL"), what="both listeners")


@pytest.mark.parametrize("others", ["", ONE + ","])
def test_stored_listener_that_cannot_bind_at_start_is_skipped(
    tmp_path: Path, transport: str, others: str
) -> None:
    """Set on the running broker, where it was possible; if it kept the broker from starting, nobody could undo it."""
    broker = ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS)
    with broker, RawClient(broker.bootstrap) as client, socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = f"{others}EXTERNAL://127.0.0.1:{holder.getsockname()[1]}"
        # Without PLAINTEXT in the list, this client's own listener is closed, at times before the answer arrives.
        with nullcontext() if others else suppress(Closed):
            assert set_listeners(client, taken) == (0, None)
        wait_until(lambda: "cannot bind" in broker.log(), what="it was tried")
        broker.stop()
        with broker, RawClient(broker.bootstrap) as again:
            assert "cannot bind EXTERNAL" in (problem(broker) or "")
            assert set_listeners(again, BOTH) == (0, None)
            wait_until(has(broker, "PLAINTEXT", "EXTERNAL"), what="both listeners")
            assert problem(broker) is None


def test_stored_listener_of_unknown_protocol_is_skipped_at_start(
    tmp_path: Path, transport: str
) -> None:
    with (
        ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        assert set_listeners(client, BOTH) == (0, None)
        wait_until(has(broker, "PLAINTEXT", "EXTERNAL"), what="both listeners")
    with (
        ServedBroker(tmp_path / "data", transport=transport) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        assert has(broker, "PLAINTEXT")()
        assert "EXTERNAL" in (problem(broker) or "")
        assert set_config(client, "listeners", None) == (0, None)
        wait_until(lambda: problem(broker) is None, what="what was left out can be taken away")


def test_listener_with_own_thread_count_has_own_processors(tmp_path: Path, transport: str) -> None:
    settings = {**SETTINGS, "listener.name.external.num.network.threads": 1}
    with (
        ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        assert set_listeners(client, BOTH) == (0, None)
        wait_until(has(broker, "PLAINTEXT", "EXTERNAL"), what="both listeners")

        def pools() -> list[str]:
            return sorted(r["pool"] for r in rows(broker.bootstrap) if r["role"] == "processor")

        wait_until(lambda: pools() == ["", "", "external"], what="a set of its own")
        with RawClient(bound(broker)["EXTERNAL"]) as stranger:
            stranger.call(ApiKey.METADATA, 9, {"topics": []})

            def held() -> dict[str, int]:
                return {r["pool"]: r["connections"] for r in rows(broker.bootstrap) if r["pool"]}

            wait_until(lambda: held() == {"external": 1}, what="it has the connection")
            pid = processes(broker.bootstrap)["acceptor", 1]
            os.kill(pid, signal.SIGKILL)
            wait_replaced(broker.bootstrap, ("acceptor", 1), pid)
            with ExitStack() as stack:
                for _ in range(4):
                    stack.enter_context(RawClient(bound(broker)["EXTERNAL"])).call(
                        ApiKey.METADATA, 9, {"topics": []}
                    )
                wait_until(lambda: held() == {"external": 5}, what="its successor knows whom to give them to")
            wait_until(lambda: held() == {"external": 1}, what="they are gone")
            # Kafka's testDynamicNumNetworkThreads: the plain key is for those without a count of their own.
            assert set_config(client, "num.network.threads", "3") == (0, None)
            wait_until(lambda: pools() == ["", "", "", "external"], what="one more for the others alone")
            assert set_config(client, "listener.name.external.num.network.threads", "2") == (0, None)
            wait_until(lambda: pools() == ["", "", "", "external", "external"], what="one more of its own")
            stranger.call(ApiKey.METADATA, 9, {"topics": []})
            assert set_listeners(client, ONE) == (0, None)
            wait_until(lambda: pools() == ["", "", ""], what="the set is gone with its listener")
            with pytest.raises((Closed, OSError)):
                stranger.call(ApiKey.METADATA, 9, {"topics": []})
