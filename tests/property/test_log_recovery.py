"""Recovery of arbitrary harm: it ends with a whole prefix of what was written, or loudly."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kproc.broker.storage.log import LogConfig
from kproc.common.errors import Corrupt, KafkaError
from tests.support.logs import NOW_MS, LogRig, append_one, batch, read_all

pytestmark = pytest.mark.long

COUNT = 12


def write(rig: LogRig) -> list[bytes]:
    log = rig.open()
    values = [b"%d" % number * (number % 7 + 1) for number in range(COUNT)]
    for number, value in enumerate(values):
        append_one(log, batch(value, timestamp=NOW_MS + number))
    log.close(clean=False)
    return values


@example(start=210, length=1, filler="noise", recovery_point=0, segment_bytes=100_000, suffix="log")
@settings(max_examples=60, deadline=None)
@given(
    start=st.integers(0, 1100), length=st.integers(0, 200), filler=st.sampled_from(["cut", "zero", "noise"]),
    recovery_point=st.integers(0, COUNT), segment_bytes=st.sampled_from([300, 100_000]),
    suffix=st.sampled_from(["log", "log", "index", "timeindex", "snapshot"]),
)  # fmt: skip
def test_any_harm_to_any_file(
    start: int, length: int, filler: str, recovery_point: int, segment_bytes: int, suffix: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="log-harm-") as directory:
        rig = LogRig(
            Path(directory) / "t-0", config=LogConfig(segment_bytes=segment_bytes, index_interval_bytes=150)
        )
        values = write(rig)
        paths = sorted(rig.directory.glob(f"*.{suffix}"))
        if not paths:
            return
        path = paths[start % len(paths)]
        content = bytearray(path.read_bytes())
        start = start % (len(content) + 1)
        if filler == "cut":
            del content[start:]
        elif filler == "zero":
            content[start : start + length] = bytes(len(content[start : start + length]))
        else:
            content[start : start + length] = bytes(
                (byte * 31 + 7) % 256 for byte in content[start : start + length]
            )
        path.write_bytes(content)
        try:
            log = rig.open(recovery_point=recovery_point)
        except Corrupt:
            assert suffix == "log", "damage to what can be rebuilt must not be fatal"
            return
        try:
            found = read_all(log)
        except (Corrupt, KafkaError):
            assert suffix == "log"  # Below the recovery point bytes are not checked again:
            assert recovery_point > 0  # the harm is met when they are read.
            return
        finally:
            log.close(clean=False)
        if suffix != "log":
            assert found == list(enumerate(values))
        elif recovery_point == 0:
            assert found == list(enumerate(values))[: len(found)]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=60), interval=st.sampled_from([0, 100, 1000]),
    recovery_share=st.floats(0, 1), jumps=st.lists(st.integers(-30, 60), min_size=60, max_size=60),
)  # fmt: skip
def test_rebuilt_indexes_are_equal(
    sizes: list[int], interval: int, recovery_share: float, jumps: list[int]
) -> None:
    with tempfile.TemporaryDirectory(prefix="log-index-") as directory:
        rig = LogRig(
            Path(directory) / "t-0", config=LogConfig(segment_bytes=4000, index_interval_bytes=interval)
        )
        log = rig.open()
        at = NOW_MS
        for size, jump in zip(sizes, jumps, strict=False):
            at += jump
            append_one(log, batch(bytes(size), timestamp=at))
        log.close()
        written = {name: content for name, content in rig.files.items() if name.endswith("index")}
        for name in written:
            (rig.directory / name).unlink()
        log = rig.open(recovery_point=int(recovery_share * len(sizes)))
        log.close()
        assert {name: rig.files[name] for name in written} == written
