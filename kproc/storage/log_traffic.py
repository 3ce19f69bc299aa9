"""LogTraffic: what came into the logs of one topic and what was read from them, since their Handler started."""

from __future__ import annotations


class LogTraffic:
    """One for each topic of a Handler: all its logs of that topic add to it, so that nobody has to add them up."""

    __slots__ = ("bytes_in", "bytes_out", "fetches", "records_in")

    def __init__(self) -> None:
        self.bytes_in = 0  # As they stand in the log: compressed, with the batches' headers.
        self.records_in = 0
        self.bytes_out = 0
        self.fetches = 0  # Answers with records of it; two partitions in one answer are two.
