"""NthCall: steers nth_call.c, which fails the n-th system call of a broker's processes for real."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

import pytest

OPEN, WRITE, SYNC, RENAME, UNLINK, TRUNCATE, READ = range(1, 8)
_WORDS: Final = struct.Struct("=5q")
_SOURCE: Final = Path(__file__).with_name("nth_call.c")


class NthCall:
    """The shared words, and the environment of a broker that looks at them."""

    def __init__(self, directory: Path, substring: str) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("no C compiler for the LD_PRELOAD shim")
        library = directory / "nth_call.so"
        subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"], check=True
        )
        path = directory / "nth_call"
        path.write_bytes(bytes(_WORDS.size))
        descriptor = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(descriptor, _WORDS.size)
        os.close(descriptor)
        self.environment = {"LD_PRELOAD": str(library), "NTH_CALL": str(path), "NTH_PATH": substring}

    def arm(self, kind: int, error: int, number: int) -> None:
        """Fail the `number`-th call of a kind from now on; 0 fails none and counts."""
        self._map[:] = _WORDS.pack(0, 0, 0, 0, 0)
        self._map[:] = _WORDS.pack(kind, error, number, 0, 0)

    def close(self) -> None:
        """Release the mapping."""
        self._map.close()

    def heal(self) -> None:
        self.arm(0, 0, 0)

    @property
    def failed(self) -> int:
        """Return the number of calls that have failed since `arm`."""
        return int(_WORDS.unpack(self._map[:])[3])

    @property
    def seen(self) -> int:
        """Return the number of calls of the kind since `arm`."""
        return int(_WORDS.unpack(self._map[:])[4])
