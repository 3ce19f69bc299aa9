"""Copies records from a reader to the standard output, until the reader is done or a signal ends the command.

A signal never ends the command between the output of a record and its commit or acknowledgement.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from kproc.cli.end_signals import catch_signals
from kproc.cli.formatting import Formatter
from kproc.cli.lines import print_note, require_reader
from kproc.cli.patterns import RecordFilter

if TYPE_CHECKING:
    from kproc.cli.record_reader import RecordReader
    from kproc.cli.share_member import ShareReader

_BATCH_RECORDS: Final = 1000
"""Largest number of records that one call reads from librdkafka."""


def copy_records(
    reader: RecordReader | ShareReader,
    formatter: Formatter,
    count: int | None,
    wanted: RecordFilter | None,
    *,
    followed: list[str],
) -> None:
    """Write records to the standard output until `count` are written, the reader is done or a signal comes.

    wanted: the records to write, or None for all. followed: topics to name in a note that reading has no end. Empty for
    no note.
    """
    left = count if count is not None else sys.maxsize
    write, flush = sys.stdout.buffer.write, sys.stdout.buffer.flush
    with catch_signals() as ending:
        try:
            # Print the note about Ctrl-C only after the signal handlers are installed. A KeyboardInterrupt during
            # earlier imports can hit an `exec` of dataclasses, and CPython then kills the process with SIGINT at its
            # exit.
            if followed:
                print_note(f"kproc: following {', '.join(followed)}; Ctrl-C ends")
            while left > 0 and not reader.is_done and not ending.number:
                # Without a filter read at most `left` records, because with --group all records in `taken` are
                # committed, and --count limits them.
                taken = matches = reader.read(min(left, _BATCH_RECORDS) if wanted is None else _BATCH_RECORDS)
                if wanted is not None:
                    taken, matches = wanted.select(taken, left)
                for record in matches:
                    write(formatter(record))
                flush()
                if taken:
                    reader.printed(taken)
                else:
                    require_reader()
                left -= len(matches)
        finally:
            reader.close()
    ending.raise_exit()
