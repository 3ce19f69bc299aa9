"""`kproc doctor`: collect an archive about a broker for a problem report, without records and secrets.

The archive has versions and limits, the settings without secrets, status, metrics, the stacks of every role, the
kernel's statistics of each process, names and sizes of the files in the data directory (never their content), and the
last lines of the log. `hidden` removes secrets from each text before it is written.

Root may run this command, and any user of the host can listen at a port and pretend to be a broker. Files and processes
that the status names are therefore read only if the kernel confirms that they are the broker's
(supervisor/broker_process.py), and then through descriptors instead of paths.
"""

from __future__ import annotations

import datetime
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Self

import typer

from kproc.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, format_json
from kproc.cli.failure import Failure, one_line
from kproc.cli.lines import print_line, print_note
from kproc.common.printable import printable

if TYPE_CHECKING:
    from kproc.broker.supervisor.broker_process import VerifiedBroker

_LOG_BYTES_MAX: Final = 512 << 10
_LOG_LINES_MAX: Final = 2000
_FILES_MAX: Final = 20_000
# Limit of the metrics' size. The metrics of 10,000 partitions have about 10 MB.
_METRICS_BYTES_MAX: Final = 256 << 20
_ROLE: Final = re.compile(r"[a-z]+-\d+")
_OF_PROC: Final = ("status", "limits", "io", "schedstat", "wchan", "cgroup")
_SECRET: Final = re.compile(
    r"""(?ix)
    ( [\w.\-]* (?: password | passwd | secret | token | credential | jaas\.config | private\.key | \.key\b )
      [\w.\-]* ["']? \s* [=:] \s* )      # the name of a setting, and what stands before its value
    ( "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | [^\n]* )
    """
)


def doctor(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="The archive (.tar.gz) to write.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log", metavar="FILE", help="The broker's log file. Default: the file that it writes to."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write an archive about a broker of this host for a problem report, without records and secrets.

    It has versions, settings, metrics, status, the stacks of all roles, and the last lines of the log.
    """
    import io
    import tarfile

    if log is not None:
        # Only check that --log can be read. Otherwise the archive would lack the log, and would look complete.
        os.close(_open_regular(log))
    now = datetime.datetime.now(datetime.UTC)
    name = f"kproc-doctor-{now:%Y%m%d-%H%M%S}"
    path = output or Path(f"{name}.tar.gz")
    with (
        _open_private(path) as file,
        _DoctorReport(bootstrap, log) as report,
        tarfile.open(fileobj=file, mode="w:gz") as archive,
    ):
        for inside, content in report.files():
            data = hidden(content).encode("utf-8", "backslashreplace")
            entry = tarfile.TarInfo(f"{name}/{inside}")
            entry.size, entry.mtime, entry.mode = len(data), int(now.timestamp()), 0o600
            archive.addfile(entry, io.BytesIO(data))
    for problem in report.problems:
        print_note(f"kproc: left out of the report: {problem}")
    for line in report.findings():
        print_line(line)
    print_line(f"{path}: {path.stat().st_size:,} bytes; look into it before you send it")


@contextmanager
def _open_private(path: Path) -> Iterator[BinaryIO]:
    """Write a new file that no other user can read, and move it to `path` when it is complete.

    An existing file or link may belong to another user, so it is replaced and never written to. Raise a Failure for
    anything else, such as a device, which root would delete from the host.
    """
    if path.exists() and not (path.is_file() or path.is_symlink()):
        raise Failure(f"{path} is not a regular file, so it is not replaced; name another file")
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            yield file
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def hidden(text: str) -> str:
    """Return the text without the values of settings whose names look like secrets, and without passwords in URLs."""
    from kproc.broker.config.values import without_url_secrets

    return _SECRET.sub(lambda found: f"{found.group(1)}(hidden)", without_url_secrets(text))


class _DoctorReport:
    """Collects the files of the archive about one broker."""

    def __init__(self, bootstrap: str, log: Path | None) -> None:
        self._bootstrap = bootstrap
        self._log = log
        self._status: dict[str, Any] | None = None
        self._process: VerifiedBroker | None = None
        self._doubt = "there is no status"
        self.problems: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.close()

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield the name and content of each file. Skip a file that cannot be made, and record the problem."""
        yield "versions.txt", _versions()
        for name, make in (
            ("status.json", self._make_status),
            ("settings.json", self._make_settings),
            ("metrics.txt", self._make_metrics),
            ("files.txt", self._make_files),
            ("log.txt", self._make_log),
        ):
            content = self._try(name, make)
            if content is not None:
                yield name, content
        for role, pid in self._pids():
            content = self._try(f"processes/{role}.txt", lambda pid=pid: _about_process(pid))  # type: ignore[misc]
            if content is not None:
                yield f"processes/{role}.txt", content
        yield "left_out.txt", "".join(f"{problem}\n" for problem in self.problems) or "nothing\n"

    def findings(self) -> list[str]:
        """Return the lines to print about problems in the status."""
        from kproc.cli.status import problem_lines

        return [line for lines in problem_lines(self._status or {}) for line in lines]

    def _try(self, name: str, make: Callable[[], str]) -> str | None:
        from kproc.client import ClientError, failure_text
        from kproc.common.errors import KafkaError

        try:
            return make()
        except (ClientError, KafkaError, Failure, OSError) as error:
            text = failure_text(error) if isinstance(error, KafkaError) else str(error)
            self.problems.append(f"{name}: {one_line(text)}")
            return None

    def _broker(self) -> VerifiedBroker:
        if self._process is None:
            raise Failure(self._doubt)
        return self._process

    def _make_status(self) -> str:
        from kproc.broker.supervisor.broker_process import NotABroker
        from kproc.cli.status_source import StatusSource

        with StatusSource(self._bootstrap) as source:
            self._status = source.request_status()
            try:
                self._process = source.open_process(self._status)
            except NotABroker as error:
                self._doubt = str(error)
        return format_json(self._status)

    def _make_settings(self) -> str:
        from kproc.cli.config_requests import all_settings
        from kproc.cli.connection import connect

        with connect(self._bootstrap) as client:
            rows = all_settings(client)
        for row in rows:
            if _SECRET.search(f"{row['name']}="):
                row["value"] = "(hidden)"
        return format_json(rows)

    def _make_metrics(self) -> str:
        import http.client

        from kproc.broker.config.listeners import split_address
        from kproc.broker.supervisor.broker_process import NotABroker

        broker = self._broker()
        address = self._status["metrics"] if self._status is not None else None
        if not address:
            raise Failure("the broker has no metrics listener (serve --metrics-listener)")
        connection = http.client.HTTPConnection(*split_address(address, default_port=0), timeout=10)
        try:
            connection.connect()
            broker.require_listens_at(*connection.sock.getpeername()[:2])
            connection.request("GET", "/metrics")
            return connection.getresponse().read(_METRICS_BYTES_MAX).decode("utf-8", "replace")
        except (NotABroker, http.client.HTTPException) as error:
            raise Failure(f"{address}: {error}") from None
        finally:
            connection.close()

    def _make_files(self) -> str:
        broker, lines = self._broker(), list[str]()
        # Walk from the verified descriptor of the data directory, because its path can lead elsewhere in our mount
        # namespace.
        for directory, _, names, descriptor in os.fwalk(dir_fd=broker.directory):
            for name in sorted(names):
                path = printable(os.path.normpath(broker.data / directory / name))
                try:
                    facts = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                except OSError as error:  # The broker has deleted the file since it was listed.
                    lines.append(f"{'-':>15} {'-':>10} {path}: {error.strerror}\n")
                else:
                    lines.append(f"{facts.st_size:>15} {facts.st_mtime:.0f} {path}\n")
                if len(lines) == _FILES_MAX:
                    return "".join([*lines, "more are left out\n"])
        return "".join(lines)

    def _make_log(self) -> str:
        from kproc.broker.supervisor.broker_process import NotABroker

        try:
            descriptor = self._broker().open_file(2) if self._log is None else _open_regular(self._log)
        except NotABroker as error:
            raise Failure(f"the broker's standard error: {error}; give the log with --log") from None
        with open(descriptor, "rb") as file:
            facts = os.fstat(file.fileno())
            file.seek(max(0, facts.st_size - _LOG_BYTES_MAX))
            lines = file.read(_LOG_BYTES_MAX).decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-_LOG_LINES_MAX:]) + "\n"

    def _pids(self) -> list[tuple[str, int]]:
        """Return (role, pid) of each process of the broker. Record a problem for each pid that is not the broker's."""
        if self._status is None or self._process is None:
            return []
        found: dict[int, str] = {}
        for row in self._status["processes"]:
            role, pid = f"{row['role']}-{row['index']}", row["pid"]
            if not isinstance(pid, int) or pid in found:
                continue
            # Accept only role names such as handler-0, because the name becomes part of a path in the archive.
            if _ROLE.fullmatch(role) and self._process.is_parent_of(pid):
                found[pid] = role
            else:
                self.problems.append(f"processes/{role}.txt: process {pid} is not the broker's")
        return [(role, pid) for pid, role in found.items()]


def _open_regular(path: Path) -> int:
    """Open a regular file for reading. Raise a Failure for a FIFO, a device or a directory."""
    # With O_NONBLOCK the open of a FIFO does not wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Failure(f"--log {path} is a directory, a FIFO or a device; name a regular file")
    return descriptor


def _about_process(pid: int) -> str:
    from kproc.broker.supervisor import stacks

    parts = [f"== stacks\n{stacks.read_stacks(pid) or 'none: it is stopped, or not ours to ask'}\n"]
    for name in _OF_PROC:
        try:
            parts.append(f"== {name}\n{Path(f'/proc/{pid}/{name}').read_text()}\n")
        except OSError as error:
            parts.append(f"== {name}\n{error.strerror}\n")
    return "".join(parts)


def _versions() -> str:
    import platform
    import resource
    from importlib import metadata

    lines = [
        f"kproc {_version('kproc')}",
        f"python {sys.version}",
        f"system {platform.platform()}",
        f"cpus {os.cpu_count()}, usable {len(os.sched_getaffinity(0))}",
        f"descriptors {resource.getrlimit(resource.RLIMIT_NOFILE)}",
    ]
    try:
        requirements = metadata.requires("kproc") or []
    except metadata.PackageNotFoundError:  # kproc runs from a checkout. _version() says so in the first line.
        requirements = []
    for requirement in requirements:
        if ";" not in requirement:
            package = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            lines.append(f"{package} {_version(package)}")
    return "".join(f"{line}\n" for line in lines)


def _version(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed as a package"
