"""The broker that a suite runs against: a kproc of its own, an Apache Kafka, or one that runs already."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bench.peers.base import free_ports
from bench.peers.kafka import JVM, KafkaPeer
from kproc.broker.config.own_settings import RELEASES
from tests.conformance import access
from tests.conformance.access import Entrance
from tests.support.broker import ServedBroker

# Both suites come from clusters with ACLs. Without rules everybody may do everything.
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}

# Of kproc on a busy machine. A suite runs for an hour there; it must not end for this.
START_SECONDS_MAX = 480.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What both suites can be told of the broker."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--bootstrap", metavar="HOST:PORT", help="a broker that runs already")
    which.add_argument("--kafka", action="store_true", help="an Apache Kafka, for comparison")
    which.add_argument(
        "--emulate", choices=RELEASES, default="", help="a kproc that emulates this release of Apache Kafka"
    )
    parser.add_argument("--transport", default="process", help="kproc's: process, thread or inline")
    parser.add_argument("--processors", type=int, default=2)
    parser.add_argument("--handlers", type=int, default=2)
    parser.add_argument(
        "--timeout-factor",
        type=float,
        default=1.0,
        metavar="N",
        help="N times the time for each test: a busy machine",
    )


def kafka_version(options: argparse.Namespace, real: str) -> str:
    """Return the version of Apache Kafka that a suite takes its broker for: `real`, unless kproc emulates another."""
    return f"{options.emulate}.0" if options.emulate else real


def end_in_order() -> None:
    """From now on SIGTERM and Ctrl-C end the run by an exception, so that the broker goes with it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: sys.exit(128 + signum))


class _Kafka(KafkaPeer):
    """Apache Kafka on ports that were chosen for it: plaintext, the controller's, and one for clients."""

    def __init__(self, settings: Mapping[str, str], ports: Sequence[int], jvm: Sequence[str]) -> None:
        plaintext, controller, _clients = ports
        own = {
            "listeners": f"{settings['advertised.listeners']},CONTROLLER://127.0.0.1:{controller}",
            "controller.quorum.voters": f"{settings.get('node.id', '1')}@127.0.0.1:{controller}",
        }
        super().__init__(settings={**settings, **own}, jvm=(*JVM, *jvm))
        self._plaintext = f"127.0.0.1:{plaintext}"

    def prepare(self) -> None:
        super().prepare()
        self.bootstrap = self._plaintext


@contextmanager
def running(
    options: argparse.Namespace, settings: Mapping[str, str], entrance: Entrance | None = None
) -> Iterator[str]:
    """Where its clients connect: by plaintext, or as the entrance says.

    `settings` go by Kafka's names, and a broker that runs already has its own.
    """
    if options.bootstrap:
        yield options.bootstrap
        return
    ports = free_ports(3)
    own = {**AUTHORIZER, **settings, **_listeners(ports, entrance)}
    plaintext = f"127.0.0.1:{ports[0]}"
    with _started(options, own, ports, entrance):
        if entrance is not None:
            entrance.make_users(plaintext)
        yield plaintext if entrance is None else f"127.0.0.1:{ports[2]}"


def _listeners(ports: Sequence[int], entrance: Entrance | None) -> dict[str, str]:
    plaintext, _controller, clients = ports
    listeners, protocols = (
        [f"PLAINTEXT://127.0.0.1:{plaintext}"],
        ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT"],
    )
    if entrance is not None:
        listeners.append(f"{access.LISTENER}://127.0.0.1:{clients}")
        protocols.append(f"{access.LISTENER}:{entrance.protocol}")
    return {
        # Said outright, as in both suites' own server.properties: DescribeConfigs shows where it comes from.
        "advertised.listeners": ",".join(listeners),
        "listener.security.protocol.map": ",".join(protocols),
        **({} if entrance is None else entrance.broker_settings()),
    }


@contextmanager
def _started(
    options: argparse.Namespace, settings: dict[str, str], ports: Sequence[int], entrance: Entrance | None
) -> Iterator[None]:
    if options.kafka:
        with _Kafka(settings, ports, () if entrance is None else entrance.kafka_options()):
            yield
        return
    kproc = {
        "num.network.threads": options.processors,
        "num.io.threads": options.handlers,
        "listeners": settings["advertised.listeners"],
        "kproc.emulate.release": options.emulate,
        **({} if entrance is None else entrance.kproc_settings()),
    }
    with (
        tempfile.TemporaryDirectory(prefix="conformance-") as data,
        ServedBroker(
            data,
            transport=options.transport,
            settings={**settings, **kproc},
            ready_seconds=START_SECONDS_MAX,
        ),
    ):
        yield
