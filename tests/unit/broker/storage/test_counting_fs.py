"""CountingFs: every operation that fails on a full disk is counted in the role's metrics."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.metrics.spec import SLOT
from kproc.broker.storage.counting_fs import counting
from kproc.broker.storage.fs import DiskFull
from kproc.broker.storage.os_fs import OsFs


class FullFs(OsFs):
    """A disk without space: nothing can be created or written."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        raise DiskFull(errno.ENOSPC, "open")

    def write(self, *_: Any, **__: Any) -> None:
        raise DiskFull(errno.ENOSPC, "write")

    def make_directory(self, path: Path) -> bool:
        raise DiskFull(errno.ENOSPC, "mkdir")


@pytest.mark.parametrize(
    ("call", "wanted_bytes"),
    [
        (lambda fs: fs.open(Path("x"), create=True), 0),
        (lambda fs: fs.write(3, [b"abc", b"de"], position=0), 5),
        (lambda fs: fs.make_directory(Path("x")), 0),
    ],
)
def test_full_disk_is_counted_and_raised(call: Callable[[Any], None], wanted_bytes: int) -> None:
    values = [0] * len(SLOT)
    with pytest.raises(DiskFull):
        call(counting(FullFs(), values))
    assert values[SLOT["writes_without_room"]] == 1
    assert values[SLOT["room_wanted_bytes"]] == wanted_bytes


def test_other_calls_are_delegated_uncounted(tmp_path: Path) -> None:
    values = [0] * len(SLOT)
    assert counting(FullFs(), values).list_directory(tmp_path) == []
    assert not any(values)


def test_diverted_fs_gets_every_later_call_until_it_is_replaced(tmp_path: Path) -> None:
    """Methods that the first calls have cached lead to the new file system, too."""
    calls: list[str] = []

    class Noisy(OsFs):
        def __init__(self, name: str) -> None:
            self._name = name

        def sync(self, descriptor: int) -> None:
            calls.append(self._name)

        def exists(self, path: Path) -> bool:
            calls.append(self._name)
            return True

    first, second = Noisy("first"), Noisy("second")
    fs: Any = counting(first, [0] * len(SLOT))
    for other in (second, first):
        fs.sync(0)
        fs.exists(tmp_path)
        assert fs.divert(other) is not other
        assert fs.wrapped is other
    fs.sync(0)
    assert calls == ["first", "first", "second", "second", "first"]


def test_method_fetched_before_a_diversion_is_not_cached(tmp_path: Path) -> None:
    """A sync thread can get a method of the former file system while the Handler's thread diverts the calls."""
    calls: list[str] = []
    second = OsFs()
    second.exists = lambda _path: not calls.append("second")  # type: ignore[method-assign]

    class DivertedMeanwhile:
        def __getattr__(self, name: str) -> Any:
            fs.divert(second)
            return lambda _path: calls.append("first")

    fs: Any = counting(DivertedMeanwhile(), [0] * len(SLOT))  # type: ignore[arg-type]
    fs.exists(tmp_path)
    fs.exists(tmp_path)
    assert calls == ["first", "second"]
