"""LogSurvey: sizes and times of all logs from their files, for the operation `logs`. Runs in the controller.

The cleaner reads the files, some partitions at a time, so that its other work is not delayed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from kproc.broker.calls.calls import Call, Lost
from kproc.broker.calls.cleaner_calls import READ_LOG_FIGURES, LogDirRequest, LogFiguresReply
from kproc.broker.cluster.image import ClusterImage

AskCleaner = Callable[[Call[Any, Any], Any, Callable[[Any], None]], None]
PARTITIONS_AT_ONCE: Final = 200


class LogSurvey:
    """One survey of the topics that exist when it begins.

    on_done: called with a row for each topic, or with None if the cleaner has died.
    """

    def __init__(
        self,
        image: ClusterImage,
        ask: AskCleaner,
        on_done: Callable[[list[dict[str, Any]] | None], None],
    ) -> None:
        self._ask = ask
        self._on_done = on_done
        self._left = iter(
            [
                (name, index)
                for name, topic in image.topics_by_name.items()
                for index in range(len(topic.partitions))
            ]
        )
        self._rows: dict[str, list[list[int]]] = {}

    def advance(self) -> None:
        """Request sizes and times of the next partitions' logs from the cleaner, or respond if there are no more."""
        numbers: dict[str, list[int]] = {}
        for name, index in islice(self._left, PARTITIONS_AT_ONCE):
            numbers.setdefault(name, []).append(index)
        if numbers:
            request = LogDirRequest(list(numbers.items()))
            self._ask(READ_LOG_FIGURES, request, lambda reply: self._on_reply(request, reply))
        else:
            self._on_done([{"name": name, "partitions": rows} for name, rows in self._rows.items()])

    def _on_reply(self, request: LogDirRequest, reply: LogFiguresReply | Lost) -> None:
        if isinstance(reply, Lost):
            self._on_done(None)
            return
        for (name, indexes), figures in zip(request.topics, reply.figures, strict=True):
            rows = self._rows.setdefault(name, [])
            for index, each in zip(indexes, figures, strict=True):
                rows.append([index, each.bytes, each.newest_ms, each.oldest_ms])
        self.advance()
