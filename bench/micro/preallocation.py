"""Writing a log's file with and without disk blocks that were set aside beyond its end.

    buffer --pwrite at the file's end--> page cache: ext4 reserves space, quota and an extent for each 4 KiB block
    buffer --pwrite at the file's end--> page cache: the blocks are there already (OsFs.reserve, 16 MiB at a time)

The question: what does a write of a batch cost, by its size? Where the file system sets no blocks aside (tmpfs, XFS:
`OsFs.reserve` says so) both rows are the same. Give a directory by TMPDIR.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from bench.timing import Benchmark, main
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.segment import RESERVE_BYTES_MAX

FILE_BYTES = 128 << 20  # Then the next one: as segments roll, and so that a long run does not fill the disk.


def writing(length: int, *, reserves: bool) -> Benchmark:
    """A benchmark: one loop writes `length` bytes; making, reserving and closing count, removing does not."""

    def run(loops: int) -> float:
        fs, data = OsFs(), os.urandom(length)
        took = 0.0
        with tempfile.TemporaryDirectory(prefix="bench-preallocation-") as directory:
            path = Path(directory) / "file.log"
            for first in range(0, loops, FILE_BYTES // length):
                count = min(loops - first, FILE_BYTES // length)
                started = time.perf_counter()
                descriptor = fs.open(path, create=True)
                end = 0
                for position in range(0, count * length, length):
                    if reserves and position + length > end:
                        end = position + length + RESERVE_BYTES_MAX
                        fs.reserve(descriptor, position, end - position)
                    fs.write(descriptor, [data], position=position)
                fs.truncate(descriptor, count * length)
                fs.close(descriptor)
                took += time.perf_counter() - started
                assert path.stat().st_size == count * length
                path.unlink()
        return took

    return run


BENCHMARKS = {
    f"{length // 1000} KB, {'blocks set aside' if reserves else 'as it comes'}": writing(
        length, reserves=reserves
    )
    for length in (1_000_000, 80_000, 16_000)
    for reserves in (False, True)
}

if __name__ == "__main__":
    raise SystemExit(main("bench.micro.preallocation", __doc__, BENCHMARKS))
