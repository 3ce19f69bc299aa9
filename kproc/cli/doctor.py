"""`kproc doctor`: one archive for whoever is to find out what is wrong with a broker. No record, no secret.

What is in it: versions and limits, the settings with the hidden ones left out, status, metrics, the stacks of every
role, what the kernel says of each process, names and sizes of the files in the data directory (never what is in them),
and the last lines of the log. Everything passes through `hidden` before it is written.
"""

from __future__ import annotations

import datetime
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from kproc.cli.common import DEFAULT_BOOTSTRAP, Bootstrap
from kproc.cli.failure import Failure, one_line

_LOG_BYTES_MAX: Final = 512 << 10
_LOG_LINES_MAX: Final = 2000
_FILES_MAX: Final = 20_000
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
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The archive (.tar.gz) to write.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log", metavar="FILE", help="The broker's log; else the file that it writes to, if any."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write one archive about a broker of this host: versions, settings, metrics, status, stacks of all roles, last
    log lines; no record and no secret."""
    import io
    import tarfile

    now = datetime.datetime.now(datetime.UTC)
    name = f"kproc-doctor-{now:%Y%m%d-%H%M%S}"
    path = output or Path(f"{name}.tar.gz")
    report = _Report(bootstrap, log)
    with _open_private(path) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for inside, content in report.files():
            data = hidden(content).encode("utf-8", "backslashreplace")
            entry = tarfile.TarInfo(f"{name}/{inside}")
            entry.size, entry.mtime, entry.mode = len(data), int(now.timestamp()), 0o600
            archive.addfile(entry, io.BytesIO(data))
    for problem in report.problems:
        sys.stderr.write(f"kproc: left out: {problem}\n")
    for line in report.findings():
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"{path}: {path.stat().st_size:,} bytes; look into it before you send it\n")


def _open_private(path: Path) -> BinaryIO:
    """A new file, or one made empty, that nobody else can read before there is anything in it."""
    file = open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb")  # noqa: SIM115 - the caller's
    os.fchmod(file.fileno(), 0o600)  # One that was there may be anybody's to read.
    file.truncate()
    return file


def hidden(text: str) -> str:
    """Without the values of what is called like a secret."""
    return _SECRET.sub(lambda found: f"{found.group(1)}(hidden)", text)


class _Report:
    """One broker's."""

    def __init__(self, bootstrap: str, log: Path | None) -> None:
        self._bootstrap = bootstrap
        self._log = log
        self._status: dict[str, Any] | None = None
        self.problems: list[str] = []

    def files(self) -> Iterator[tuple[str, str]]:
        """Names and contents; what cannot be had is a problem and is left out."""
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
            content = self._try(f"{role}.txt", lambda pid=pid: _about_process(pid))  # type: ignore[misc]
            if content is not None:
                yield f"processes/{role}.txt", content
        yield "left_out.txt", "".join(f"{problem}\n" for problem in self.problems) or "nothing\n"

    def findings(self) -> list[str]:
        """A line for each partition that is refused, and for each directory that is not served."""
        from kproc.cli.status import offline_lines, unserved_lines

        return [] if self._status is None else [*offline_lines(self._status), *unserved_lines(self._status)]

    def _try(self, name: str, make: Callable[[], str]) -> str | None:
        from kproc.client import ClientError
        from kproc.errors import KafkaError

        try:
            return make()
        except (ClientError, KafkaError, Failure, OSError) as error:
            self.problems.append(f"{name}: {one_line(str(error))}")
            return None

    def _known(self) -> dict[str, Any]:
        if self._status is None:
            raise Failure("there is no status")
        return self._status

    def _make_status(self) -> str:
        from kproc.cli.status_source import StatusSource

        with StatusSource(self._bootstrap) as source:
            self._status = source.ask()
        return _json(self._status)

    def _make_settings(self) -> str:
        from kproc.cli.common import connect
        from kproc.cli.configs import all_settings

        with connect(self._bootstrap) as client:
            rows = all_settings(client)
        for row in rows:
            if _SECRET.search(f"{row['name']}="):
                row["value"] = "(hidden)"
        return _json(rows)

    def _make_metrics(self) -> str:
        import urllib.request

        address = self._known()["metrics"]
        if not address:
            raise Failure("the broker has no metrics listener (serve --metrics-listener)")
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
            text: str = response.read().decode()
            return text

    def _make_files(self) -> str:
        lines = []
        for directory, _, names in os.walk(self._known()["data"]):
            for name in sorted(names):
                path = Path(directory) / name
                try:
                    facts = path.stat()
                except OSError as error:  # Segments come and go meanwhile.
                    lines.append(f"{'-':>15} {'-':>10} {path}: {error.strerror}\n")
                else:
                    lines.append(f"{facts.st_size:>15} {facts.st_mtime:.0f} {path}\n")
                if len(lines) == _FILES_MAX:
                    return "".join([*lines, "more are left out\n"])
        return "".join(lines)

    def _make_log(self) -> str:
        path = self._log or _log_file(next((pid for _, pid in self._pids()), 0))
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES_MAX))
            lines = file.read().decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-_LOG_LINES_MAX:]) + "\n"

    def _pids(self) -> list[tuple[str, int]]:
        """Each process once."""
        if self._status is None:
            return []
        rows = self._status["processes"]
        by_pid = {row["pid"]: f"{row['role']}-{row['index']}" for row in reversed(rows) if row["pid"]}
        return [(role, pid) for pid, role in reversed(by_pid.items())]


def _log_file(pid: int) -> Path:
    """Where the process writes its log."""
    target = os.readlink(f"/proc/{pid}/fd/2") if pid else ""
    if not target.startswith("/") or not Path(target).is_file():
        raise Failure("the broker's log is no file (a terminal, a pipe, the journal): give one with --log")
    return Path(target)


def _about_process(pid: int) -> str:
    from kproc.server import stacks

    parts = [f"== stacks\n{stacks.take(pid) or 'none: it is stopped, or not ours to ask'}\n"]
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
    except metadata.PackageNotFoundError:  # From a checkout, which _version has said.
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


def _json(value: Any) -> str:
    import orjson

    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n"
