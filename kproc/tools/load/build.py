"""build: compile the load generator on demand.

The binary's name in the cache contains the digest of the sources, so that a changed source is compiled again. The
package contains the C sources and no binary, so that it installs on every platform and only users who measure need a C
compiler.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent
FLAGS: Final = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
_TLS_FLAGS: Final = ("-DKLOAD_TLS",)
_TLS_LIBRARIES: Final = ("-lssl", "-lcrypto")
COMPILE_SECONDS_MAX: Final = 120.0


class CompilerMissing(RuntimeError):
    """There is no C compiler on the PATH, or TLS is wanted and there are no OpenSSL headers.

    The caller skips the measurement or reports the error.
    """


class ForeignCache(RuntimeError):
    """Another user can write to the cache of compiled load generators, so no binary in it is run."""


def compiler() -> str | None:
    """Return the path of a C compiler, or None if PATH has none."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def build(*, with_tls: bool = False) -> Path:
    """Return the path of the load generator's binary. Compile it if the sources changed.

    with_tls: build with TLS, which needs OpenSSL's headers.

    Raises CompilerMissing, ForeignCache, or RuntimeError if the sources do not compile.
    """
    flags = (*FLAGS, *_TLS_FLAGS) if with_tls else FLAGS
    files = sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")])
    digest = hashlib.sha256(repr(flags).encode())
    for file in files:
        digest.update(file.read_bytes())
    binary = Path.home() / ".cache" / "kproc" / "kload" / f"kload-{digest.hexdigest()[:16]}"
    _open_cache(binary.parent)
    if binary.exists() and not _is_private(binary):
        binary.unlink()
    if not binary.exists():
        _compile([file for file in files if file.suffix == ".c"], binary, flags)
    return binary


def _open_cache(directory: Path) -> None:
    """Create the cache's directory and remove write permissions of other users.

    Raises ForeignCache if a user other than root owns it or a directory above it in the home directory.

    `sudo` can keep the user's HOME. Without this check, root would then run a binary that the user has put into the
    cache.
    """
    directory.mkdir(0o700, parents=True, exist_ok=True)
    home = Path.home()
    for path in (directory, *(each for each in directory.parents if each.is_relative_to(home))):
        if os.lstat(path).st_uid not in (0, os.geteuid()):
            raise ForeignCache(f"{path} belongs to another user; set HOME to a directory of your own")
    if os.lstat(directory).st_mode & 0o022:
        directory.chmod(0o700)


def _is_private(path: Path) -> bool:
    """Return True if only this user or root can have written the file."""
    facts = os.lstat(path)
    return stat.S_ISREG(facts.st_mode) and facts.st_uid in (0, os.geteuid()) and not facts.st_mode & 0o022


def _compile(sources: list[Path], binary: Path, flags: tuple[str, ...]) -> None:
    cc = compiler()
    if cc is None:
        raise CompilerMissing("no C compiler (cc, gcc or clang) on the PATH to build the load generator with")
    with tempfile.TemporaryDirectory(dir=binary.parent, prefix=".build-") as directory:
        # Compile to a temporary file and rename it, so that a concurrent run never executes an incomplete binary.
        fresh = Path(directory) / "kload"
        libraries = _TLS_LIBRARIES if flags != FLAGS else ()
        command = [cc, *flags, "-o", str(fresh), *map(str, sources), *libraries]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX, check=False
        )
        if done.returncode != 0 and "openssl/" in done.stderr:
            raise CompilerMissing("no headers of OpenSSL (libssl-dev) to build the load generator's TLS with")
        if done.returncode != 0:
            raise RuntimeError(f"the load generator does not compile:\n{done.stderr[-4000:]}")
        fresh.chmod(0o700)
        fresh.rename(binary)
