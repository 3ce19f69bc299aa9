"""LogTraffic: counts what was written to and read from the logs of one topic, since their Handler started."""

from __future__ import annotations


class LogTraffic:
    """One per topic and Handler: all of the Handler's logs of that topic share it, so no sums have to be computed."""

    __slots__ = ("bytes_in", "bytes_out", "fetches", "records_in")

    def __init__(self) -> None:
        self.bytes_in = 0  # Bytes as stored in the log: compressed, with the batches' headers.
        self.records_in = 0
        self.bytes_out = 0
        self.fetches = 0  # Answers with records of this topic; two partitions in one answer count as two.
