"""FastPathLearner: learns the fast paths of connections from requests that the general path has handled.

request/fast_path.py says what a fast path is and when it is learned again. `ProcessorPeer.paths` has the fast path of
each connection. A connection whose requests cannot have one gets a NoFastPath, so that `should_learn` counts for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproc.broker.fetch.fetch_fast_path import FetchFastPath, FetchFastPaths
from kproc.broker.handler.produce_fast_path import ProduceFastPaths
from kproc.broker.request.fast_path import FastPath, NoFastPath, should_learn

if TYPE_CHECKING:
    from kproc.broker.handler.processor_peer import ProcessorPeer
    from kproc.broker.produce.append_queue import AppendQueue
    from kproc.broker.produce.produce import Destination
    from kproc.broker.request.context import Services
    from kproc.broker.request.request import HandlerRequest


class FastPathLearner:
    """The fast paths of all connections of one Handler, by API."""

    __slots__ = ("_fetch_paths", "_produce_paths")

    def __init__(self, services: Services, queue: AppendQueue, produce_versions: range) -> None:
        self._produce_paths = ProduceFastPaths(services, queue, produce_versions)
        self._fetch_paths = FetchFastPaths(services, queue)

    def count(self) -> int:
        """Return the number of requests that the fast paths have handled since the last call."""
        return self._produce_paths.count() + self._fetch_paths.count()

    @property
    def fast_path_count(self) -> int:
        """Number of requests that the fast paths have handled since the last `count`."""
        return self._produce_paths.fast_path_count + self._fetch_paths.fast_path_count

    def learn_produce(
        self,
        client: ProcessorPeer,
        key: bytes,
        path: FastPath | None,
        request: HandlerRequest,
        frame: memoryview,
        destination: Destination,
    ) -> None:
        if should_learn(path):
            learned = self._produce_paths.learn(request, frame, destination)
            self._adopt(client, key, path, learned)

    def learn_fetch(
        self,
        client: ProcessorPeer,
        key: bytes,
        path: FastPath | None,
        request: HandlerRequest,
        record: memoryview,
        body_bytes: int,
    ) -> None:
        if isinstance(path, FetchFastPath) and path.repeats(record):
            return  # The fast path could not handle this request, but it may handle the next one.
        if should_learn(path):
            self._adopt(client, key, path, self._fetch_paths.learn(request, record, body_bytes))

    def _adopt(
        self, client: ProcessorPeer, key: bytes, before: FastPath | None, learned: FastPath | None
    ) -> None:
        """Replace the connection's fast path `before` by the `learned` one.

        None stands for no path: `before` if the connection has none yet, `learned` if nothing was learned. The old
        object stays as it is, because a parked request uses it.
        """
        if learned is not None:
            learned.misses = before.misses if before is not None else 0
            client.paths[key] = learned
        elif before is None:
            client.paths[key] = NoFastPath()
