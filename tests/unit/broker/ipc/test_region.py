"""Regions: sealed, checked at every attach, and gone without trace."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import socket
import struct
from pathlib import Path

import pytest

from kproc.broker.ipc.layout import LAYOUT_VERSION, PAGE_BYTES, REGION_MAGIC
from kproc.broker.ipc.region import SEALS, Region, RegionKind, RegionMismatch
from kproc.common.errors import FatalError
from tests.support.cases import in_one_test
from tests.support.proc import open_descriptors
from tests.support.ring_pair import Forked


def forge(
    *,
    magic: int = REGION_MAGIC,
    version: int = LAYOUT_VERSION,
    payload_bytes: int = PAGE_BYTES,
    size: int = 2 * PAGE_BYTES,
    seals: int = SEALS,
) -> int:
    """A memfd that differs from a region in what is passed."""
    fd = os.memfd_create("forged", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, struct.pack("=6Q", magic, version, RegionKind.LINK, 7, payload_bytes, 0)[:size], 0)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize("size", [0, PAGE_BYTES, 1 << 20])
def test_sealed_region_can_neither_shrink_nor_grow(size):
    with Region.create(RegionKind.LINK, 2 * PAGE_BYTES, 1) as region, pytest.raises(PermissionError):
        os.ftruncate(region.fd, size)


def test_seals_cannot_be_changed_and_are_exactly_three():
    with Region.create(RegionKind.LINK, PAGE_BYTES, 1) as region:
        assert fcntl.fcntl(region.fd, fcntl.F_GET_SEALS) == SEALS
        with pytest.raises(PermissionError):
            fcntl.fcntl(region.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_descriptor_is_closed_on_exec():
    with Region.create(RegionKind.LINK, PAGE_BYTES, 1) as region:
        assert not os.get_inheritable(region.fd)


def test_two_attachments_see_the_same_words():
    with Region.create(RegionKind.SLAB, 1000, 5) as made, Region.attach(os.dup(made.fd)) as attached:
        assert (attached.kind, attached.generation, attached.payload_bytes) == (RegionKind.SLAB, 5, 1000)
        made.words[3] = 0xDEAD_BEEF_0000_0001
        made.view[999] = 0x5A
        assert attached.words[3] == 0xDEAD_BEEF_0000_0001
        assert attached.view[999] == 0x5A
        assert len(attached.view) == 1000
        assert len(attached.words) == 125


def test_another_process_sees_the_same_words():
    with Region.create(RegionKind.SLAB, 64, 1) as region:

        def body() -> int:
            with Region.attach(os.dup(region.fd), kind=RegionKind.SLAB, generation=1) as attached:
                attached.words[1] = 17
                return int(attached.words[0])

        region.words[0] = 16
        assert Forked(body).result() == 16
        assert region.words[1] == 17


@in_one_test(
    ("fields", "message"),
    [
        ({"magic": 1}, "magic 0x1"),
        (
            {"version": LAYOUT_VERSION + 1},
            f"layout version {LAYOUT_VERSION + 1}, but this version of kproc expects {LAYOUT_VERSION}",
        ),
        ({"payload_bytes": PAGE_BYTES + 1}, "claims a payload of 4097"),
        ({"payload_bytes": 1 << 60}, "claims a payload"),
        ({"payload_bytes": 0}, "claims a payload of 0"),
        ({"size": 3 * PAGE_BYTES}, "region of 12288 bytes"),
        ({"size": 16}, "it holds 16 bytes"),
        ({"size": 0}, "it holds 0 bytes"),
        ({"seals": 0}, "not sealed"),
        ({"seals": fcntl.F_SEAL_GROW}, "not sealed"),
    ],
)
def test_attach_refuses_what_is_not_this_layout(fields, message):
    fd = forge(**fields)
    try:
        with pytest.raises(RegionMismatch, match=message):
            Region.attach(fd)
        os.fstat(fd)  # Refused, so it is still the caller's.
    finally:
        os.close(fd)


def test_attach_takes_the_forged_region_when_nothing_is_wrong():
    Region.attach(forge()).close()


def test_attach_refuses_another_kind_or_generation():
    with Region.create(RegionKind.LINK, PAGE_BYTES, 3) as region:
        with pytest.raises(RegionMismatch, match="kind 1, expected 2"):
            Region.attach(region.fd, kind=RegionKind.ARENA)
        with pytest.raises(RegionMismatch, match="generation 3, expected 4"):
            Region.attach(region.fd, kind=RegionKind.LINK, generation=4)


def test_attach_refuses_files_and_sockets(tmp_path: Path):
    (tmp_path / "file").write_bytes(bytes(2 * PAGE_BYTES))
    with open(tmp_path / "file", "rb+") as file, pytest.raises(RegionMismatch, match="not a region"):
        Region.attach(file.fileno())
    with socket.socket() as sock, pytest.raises(RegionMismatch, match="not a region"):
        Region.attach(sock.fileno())


def test_region_is_not_mapped_before_it_is_looked_into():
    with Region.create(RegionKind.LINK, PAGE_BYTES, 123_456) as region:
        region.write_word(8, 99)
        assert "kproc-1-123456" not in Path("/proc/self/maps").read_text()
        assert sum("kproc-1-123456" in target for target in open_descriptors().values()) == 1
        assert region.words[1] == 99
        assert "kproc-1-123456" in Path("/proc/self/maps").read_text()
    assert "kproc-1-123456" not in Path("/proc/self/maps").read_text()


def test_sparse_region_takes_memory_only_where_touched():
    with Region.create(RegionKind.TABLE, 1 << 24, 1, is_sparse=True) as region:
        assert region.resident_bytes() == PAGE_BYTES
        region.view[1 << 20] = 1
        assert region.resident_bytes() == 2 * PAGE_BYTES
        with Region.attach(os.dup(region.fd)) as attached:
            assert attached.view[1 << 20] == 1
            # Attaching must not populate it: only what was read or touched may be there.
            assert region.resident_bytes() == 2 * PAGE_BYTES
    with Region.create(RegionKind.LINK, 1 << 16, 1) as region:
        assert region.resident_bytes() == PAGE_BYTES + (1 << 16)


def test_given_back_pages_read_as_zeros():
    with Region.create(RegionKind.TABLE, 4 * PAGE_BYTES, 1, is_sparse=True) as region:
        region.view[:] = b"x" * (4 * PAGE_BYTES)
        region.release_pages(PAGE_BYTES, 2 * PAGE_BYTES)
        assert region.resident_bytes() == 3 * PAGE_BYTES
        assert bytes(region.view) == b"x" * PAGE_BYTES + bytes(2 * PAGE_BYTES) + b"x" * PAGE_BYTES
        region.release_pages(0, 0)
        with pytest.raises(AssertionError):
            region.release_pages(1, PAGE_BYTES)


def test_views_outside_the_payload_are_refused():
    with Region.create(RegionKind.LINK, 1000, 1) as region:
        for offset, length in ((0, 1001), (1000, 1), (-1, 1), (0, -1), (1 << 60, 1)):
            with pytest.raises(FatalError, match="outside a payload of 1000"):
                region.carve(offset, length)
        assert len(region.carve(1000, 0)) == 0


def test_close_releases_every_view_and_descriptor():
    before = open_descriptors()
    region = Region.create(RegionKind.LINK, PAGE_BYTES, 1)
    view, words, part = region.view, region.words, region.carve(8, 8)
    assert region.close()
    for each in (view, words, part):
        with pytest.raises(ValueError, match="released"):
            each[0]
    assert region.close()
    assert open_descriptors() == before


def test_lent_view_outlives_region_and_frees_it():
    before = open_descriptors()
    region = Region.create(RegionKind.LINK, PAGE_BYTES, 654_321)
    lent = region.view[:10]
    lent[0] = 77
    assert not region.close()
    assert lent[0] == 77
    assert "kproc-1-654321" in Path("/proc/self/maps").read_text()
    del lent
    assert "kproc-1-654321" not in Path("/proc/self/maps").read_text()
    assert open_descriptors() == before


def test_closed_descriptor_leaves_the_mapping():
    with Region.create(RegionKind.LINK, PAGE_BYTES, 1) as region:
        region.close_fd()
        region.close_fd()
        assert region.fd == -1
        region.words[0] = 1
        assert region.words[0] == 1


def test_using_a_closed_region_is_our_own_mistake():
    region = Region.create(RegionKind.LINK, PAGE_BYTES, 1)
    region.close()
    with pytest.raises(AssertionError, match="closed"):
        region.carve(0, 8)


def test_host_out_of_memory_is_fatal_and_leaks_nothing(monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = open_descriptors()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(FatalError, match=r"cannot create a region of 4096 bytes.*No space left"):
        Region.create(RegionKind.LINK, PAGE_BYTES, 1)
    monkeypatch.undo()
    with Region.create(RegionKind.LINK, PAGE_BYTES, 1) as region:
        monkeypatch.setattr(mmap, "mmap", refuse)
        with pytest.raises(FatalError, match="cannot map a region"):
            region.carve(0, 8)
        monkeypatch.undo()
    assert open_descriptors() == before


def test_no_descriptor_left_at_all_is_fatal(monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(FatalError, match="Too many open files"):
        Region.create(RegionKind.LINK, PAGE_BYTES, 1)
