"""The broker that a suite runs against: a kproc of its own, an Apache Kafka, or one that runs already."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.peers.base import free_ports
from bench.peers.kafka import KafkaPeer
from tests.support.broker import ServedBroker

# Both suites come from clusters with ACLs. Without rules everybody may do everything.
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What both suites can be told of the broker."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--bootstrap", metavar="HOST:PORT", help="a broker that runs already")
    which.add_argument("--kafka", action="store_true", help="an Apache Kafka, for comparison")
    parser.add_argument("--transport", default="process", help="kproc's: process, thread or inline")
    parser.add_argument("--processors", type=int, default=2)
    parser.add_argument("--handlers", type=int, default=2)


def end_in_order() -> None:
    """From now on SIGTERM and Ctrl-C end the run by an exception, so that the broker goes with it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: sys.exit(128 + signum))


@contextmanager
def running(options: argparse.Namespace, settings: Mapping[str, str]) -> Iterator[str]:
    """Where its clients connect. `settings` go by Kafka's names, and a broker that runs already has its own."""
    if options.bootstrap:
        yield options.bootstrap
    elif options.kafka:
        with KafkaPeer(settings={**AUTHORIZER, **settings}) as peer:
            yield peer.bootstrap
    else:
        (port,) = free_ports(1)
        own = {
            **AUTHORIZER,
            "num.network.threads": options.processors,
            "num.io.threads": options.handlers,
            # Said outright, as in both suites' own server.properties: DescribeConfigs shows where it comes from.
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        }
        with (
            tempfile.TemporaryDirectory(prefix="conformance-") as data,
            ServedBroker(
                data, transport=options.transport, settings={**own, **settings}, port=port
            ) as served,
        ):
            yield served.bootstrap
