"""The idle producers of a Python process of Spark. Its next task reuses one, with its connections and producer id."""

from __future__ import annotations

import atexit
import os
from functools import cache

from kproc.spark.broker_clients import Connecting
from kproc.spark.brokers import cluster_of
from kproc.spark.producer import BatchProducer
from kproc.spark.sink_options import SinkOptions

_producers: dict[tuple[int, SinkOptions], BatchProducer] = {}


def connecting_of(options: SinkOptions, *, backoff_ms: int) -> Connecting:
    """Return the settings of a Cluster's connections for these options."""
    settings = options.producer
    return Connecting(
        client_id=settings.client_id,
        connect_ms=settings.connect_ms,
        request_ms=settings.request_timeout_ms,
        backoff_ms=backoff_ms,
        backoff_ms_max=settings.backoff_ms_max,
        security=settings.security,
    )


def acquire_producer(options: SinkOptions) -> BatchProducer:
    """Return this process's idle producer for these options, or a new one.

    Tasks of one process reuse a producer, and with it its connections and its producer id.
    """
    # The key contains the pid, because Spark's daemon forks its workers, and a child must not use its parent's sockets.
    producer = _producers.pop((os.getpid(), options), None)
    if producer is not None:
        return producer
    settings = options.producer
    connecting = connecting_of(options, backoff_ms=settings.backoff_ms)
    return BatchProducer(cluster_of(options.bootstrap, connecting), settings)


def release_producer(options: SinkOptions, producer: BatchProducer) -> None:
    """Keep the producer for this process's next task.

    Do not call this after a failed task, whose batches may be in flight.
    """
    _close_at_exit()
    _producers[os.getpid(), options] = producer


@cache
def _close_at_exit() -> None:
    atexit.register(_close_all)


def _close_all() -> None:
    for (pid, _), producer in _producers.items():
        # A forked child inherits this exit handler and its parent's producers, whose connections it must not close.
        if pid == os.getpid():
            producer.close()
    _producers.clear()
