"""CRC-32C by the library's compiled module, without its package."""

from __future__ import annotations

import subprocess
import sys

from kproc.wire import checksum

# RFC 3720, B.4: 32 bytes of zeroes, of ones, and ascending.
VECTORS = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, bytes(range(32)): 0x46DD794E}


def test_checksum_has_the_values_of_rfc_3720_in_parts_too() -> None:
    for data, value in VECTORS.items():
        assert checksum.crc32c(data) == value
        assert checksum.crc32c(memoryview(data)[7:], checksum.crc32c(data[:7])) == value


def test_import_does_not_search_the_metadata_of_packages() -> None:
    code = "import sys, kproc.wire.checksum; assert 'crc32c' not in sys.modules, sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
