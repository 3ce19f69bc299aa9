"""What a reader has left to read, as partitions come, go and end."""

from __future__ import annotations

from kproc.cli.record_reader import Progress

ENDS = {("t", 0): 3, ("t", 1): 2, ("u", 0): 0}


def test_reader_is_done_when_each_partition_is_read_to_end():
    progress = Progress(ENDS)
    assert not progress.is_done
    progress.add([("t", 0), ("t", 1)])
    assert progress.wants(("t", 0), 1)
    assert progress.wants(("t", 1), 1)
    assert not progress.is_done
    assert progress.wants(("t", 0), 2)
    assert progress.is_done


def test_what_was_written_since_the_start_was_not_asked_for():
    progress = Progress(ENDS)
    progress.add([("t", 0), ("t", 1)])
    assert not progress.wants(("t", 1), 2)
    assert not progress.is_done
    progress.finish(("t", 0))
    assert progress.is_done


def test_partition_lost_to_other_member_is_not_awaited():
    progress = Progress(ENDS)
    progress.add([("t", 0), ("t", 1)])
    progress.remove([("t", 0)])
    assert not progress.wants(("t", 0), 0)
    assert progress.wants(("t", 1), 1)
    assert progress.is_done
    progress.add([("t", 0)])
    assert not progress.is_done


def test_member_with_empty_assignment_is_done_unassigned_is_not():
    progress = Progress(ENDS)
    assert not progress.is_done
    progress.add([])
    assert progress.is_done


def test_partition_added_after_start_is_not_awaited():
    progress = Progress(ENDS)
    progress.add([("t", 2)])
    assert progress.is_done
    assert not progress.wants(("t", 2), 0)


def test_without_an_end_nothing_is_ever_done():
    progress = Progress(None)
    progress.add([])
    assert not progress.is_done
    progress.add([("t", 0)])
    progress.finish(("t", 0))
    assert progress.wants(("t", 0), 1 << 40)
    assert not progress.is_done
