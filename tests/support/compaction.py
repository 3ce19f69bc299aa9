"""Compaction of a Log without roles: the same steps as the cleaner and the owner take, in one call."""

from __future__ import annotations

from dataclasses import dataclass

from kproc.broker.storage.compaction import CompactionPass, PassFacts
from kproc.broker.storage.compaction_policy import CompactionLimits, assess, group_segments
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.log import Log
from kproc.broker.storage.segment_files import (
    aborted_transactions,
    first_timestamp,
    info_from_files,
    sealed_segments,
)
from tests.support.logs import LogRig


@dataclass
class Compacted:
    """What a pass did."""

    first_dirty: int
    end_offset: int
    swaps: int
    records_read: int


def compact(
    rig: LogRig,
    log: Log,
    *,
    checkpoint: int | None = None,
    memory_bytes: int = 1 << 24,
    chunk_bytes: int = 0,
    fs: Fs | None = None,
) -> Compacted:
    """One pass over everything that can be compacted, and its swaps."""
    fs = fs or rig.fs
    log.durability.sync()  # What is not on the disk is not compacted.
    now_ms = rig.clock.wall_ms()
    identities = log.compaction.segment_identities()
    bases = [each.base_offset for each in identities]
    section = assess(
        info_from_files(fs, rig.directory, bases, log.state.end_offset),
        log.state.config,
        CompactionLimits(log.state.start_offset, log.state.last_stable_offset, log.state.recovery_point),
        checkpoint=checkpoint,
        now_ms=now_ms,
        first_timestamp=lambda base: first_timestamp(fs, rig.directory, base),
    )
    taken = [each for each in identities if each.base_offset < section.first_uncleanable]
    sealed = sealed_segments(fs, rig.directory, taken, section.first_uncleanable)
    run = CompactionPass(
        fs,
        rig.directory,
        PassFacts(
            section.first_dirty,
            section.first_uncleanable,
            sealed,
            log.compaction.newest_batches(),
            aborted_transactions(fs, rig.directory, bases),
        ),
        interval_bytes=log.state.config.index_interval_bytes,
        delete_retention_ms=log.state.config.delete_retention_ms,
        record_bytes_max=log.state.config.max_decompressed_message_bytes,
        now_ms=now_ms,
        memory_bytes=memory_bytes,
        chunk_bytes=chunk_bytes,
    )
    for _ in run.map_keys():
        pass
    swaps = 0
    for group in group_segments([s for s in sealed if s.base_offset < run.compacted_end], log.state.config):
        for _ in run.rewrite(group):
            pass
        new = run.finish(group)
        if new is not None:
            old = [each for each in taken if group[0].base_offset <= each.base_offset < group[-1].next_offset]
            log.compaction.swap_segments(old, new)
            swaps += 1
    return Compacted(section.first_dirty, run.compacted_end, swaps, run.records_read)
