"""Java programs of the tests: compiled once for each version of Kafka, and run in JVMs whose lines a thread reads.

`java FILE.java` compiles the file at each start, which takes 1.5 s of CPU. A scene starts up to ten JVMs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.kafka_jars import jars_dir, short_lived_jvm
from tests.support.wait import PATIENCE_SECONDS

SOURCES = Path(__file__).parent
JVM = ("-Xmx512M", *short_lived_jvm())
COMPILE_SECONDS_MAX = 240.0


def program_command(name: str, class_path: str, *arguments: str) -> list[str]:
    """Return the command that runs `tests/support/NAME.java`, compiled if it is new or has changed."""
    # An archive of classes is valid only if the class path begins with the one that it was made with.
    return ["java", *JVM, "-cp", f"{class_path}:{_compiled(name, class_path)}", name, *arguments]


def _compiled(name: str, class_path: str) -> Path:
    source = SOURCES / f"{name}.java"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    classes = jars_dir().with_name("programs") / f"{name}-{digest}"
    if not classes.exists():
        # Another run may compile the same file at this moment: the directory appears as a whole.
        unfinished = classes.with_name(f"{classes.name}.{os.getpid()}")
        command = ["javac", "-d", str(unfinished), "-cp", class_path, str(source)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX, check=False
        )
        assert done.returncode == 0, done.stderr
        try:
            unfinished.rename(classes)
        except OSError:
            assert classes.exists()
            subprocess.run(["rm", "-rf", str(unfinished)], check=True)
    return classes


class JavaProgram:
    """A JVM with one program. It ends when its standard input does, unless the program says otherwise."""

    def __init__(self, command: Sequence[str], errors: Path, on_line: Callable[[str], None]) -> None:
        self._errors = errors
        with open(errors, "ab") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )
        self._on_line = on_line
        self._reader = threading.Thread(target=self._read, name="lines of a JVM")
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._on_line(line.rstrip("\n"))

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process and its lines have ended."""
        self._process.kill()
        self._wait()

    def close(self) -> int:
        """End its standard input. Return its exit code; a program that does not end in time is killed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            # It has died before.
            assert not self.is_running
        return self._wait()

    def _wait(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            code = self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join(PATIENCE_SECONDS)
        self._process.stdout.close()
        if not self._process.stdin.closed:
            self._process.stdin.close()
        return code

    def said(self) -> str:
        """Return the end of its standard error."""
        return self._errors.read_text(errors="replace")[-4000:]
