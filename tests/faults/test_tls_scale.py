"""Processors come and go under clients that speak TLS: their connections end after an answer, and nothing is lost."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Consumer, Producer

from tests.support.broker import ServedBroker
from tests.support.certificates import Certificates
from tests.support.configs import set_config
from tests.support.raw import RawClient, address_of
from tests.support.status import processes
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.faults]
ASK = b"\0\x12\0\0\0\0\0\1\0\4test"


def served(directory: Path, files: Certificates) -> ServedBroker:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "num.network.threads": 4,
        "ssl.keystore.location": files.server,
    }
    return ServedBroker(directory / "data", settings=settings)


def processors(broker: ServedBroker) -> int:
    return len([key for key in processes(broker.bootstrap) if key[0] == "processor"])


def test_scale_down_of_processors_loses_no_record_of_tls_clients(tmp_path: Path) -> None:
    files = Certificates(tmp_path)
    with served(tmp_path, files) as broker, RawClient(broker.bootstrap) as operator:
        options: dict[str, Any] = {
            "bootstrap.servers": broker.listeners["SSL"]["bound"],
            "security.protocol": "SSL",
            "log_level": 0,
            **files.librdkafka(),
        }
        failed: list[Any] = []
        producers = [Producer({**options, "enable.idempotence": True, "linger.ms": 1}) for _ in range(6)]
        count = 0

        def send() -> None:
            nonlocal count
            for at, producer in enumerate(producers):
                producer.produce(
                    "t",
                    b"%d-%d" % (at, count),
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                producer.poll(0)
            count += 1

        for threads in ("2", "1", "2"):
            for _ in range(100):
                send()
            assert [each.flush(PATIENCE_SECONDS) for each in producers] == [0] * len(producers), "all are connected"
            assert set_config(operator, "num.network.threads", threads) == (0, None)

            def has_changed(wanted: int = int(threads)) -> bool:
                send()
                return processors(broker) == wanted

            wait_until(has_changed, seconds=40, what=f"{threads} Processors")
        assert [each.flush(PATIENCE_SECONDS) for each in producers] == [0] * len(producers)
        assert failed == []
        consumer = Consumer({**options, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        found: list[bytes] = []

        def has_all() -> bool:
            found.extend(each.value() for each in consumer.consume(1000, 1.0) if each.error() is None)
            return len(found) >= count * len(producers)

        wait_until(has_all, seconds=30, what="every record")
        consumer.close()
        for at in range(len(producers)):
            mine = [value for value in found if value.startswith(b"%d-" % at)]
            assert mine == [b"%d-%d" % (at, number) for number in range(count)], "each once, in order"


def test_rebalance_does_not_migrate_tls_connections(tmp_path: Path) -> None:
    files = Certificates(tmp_path)
    with served(tmp_path, files) as broker, ExitStack() as stack:
        address = address_of(broker.listeners["SSL"]["bound"])
        context = ssl.create_default_context(cafile=str(files.ca))
        socks = []
        for _ in range(9):
            raw = stack.enter_context(socket.create_connection(address, timeout=PATIENCE_SECONDS))
            socks.append(stack.enter_context(context.wrap_socket(raw, server_hostname="localhost")))
        with RawClient(broker.bootstrap) as operator:
            assert set_config(operator, "num.network.threads", "5") == (0, None)
            wait_until(
                lambda: processors(broker) == 5, seconds=30, what="another Processor, to which some could go"
            )
        for sock in socks:
            sock.sendall(len(ASK).to_bytes(4, "big") + ASK)
            assert sock.recv(4), "it is served where it was"
