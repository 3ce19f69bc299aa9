"""Options of the JVMs that tests start."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# These JVMs live for seconds or minutes, so an optimising compiler and the threads of a collector cost more than they
# save. Without the check of every class that is loaded a start takes a sixth less. Performance data would leave a file
# in the temporary directory for each JVM that is killed.
SHORT_LIVED: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)


def archived_classes(archive: Path) -> tuple[str, ...]:
    """Return the options by which a JVM maps the classes of an archive instead of reading and checking them.

    A JVM whose class path does not begin with that of the archive ignores it. It would say so on its stdout.
    """
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:disable") if archive.exists() else ()
