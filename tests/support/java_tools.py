"""Apache Kafka's own command-line tools, each with what its script gives it, one after the other in one JVM.

A JVM of its own takes a tool two seconds of a core before its first request; here all but the first take a tenth.
Each run has the tool's classes and their static fields to itself (`JavaTools.java`). What ends by `System.exit` or
is to be killed takes `run_process`, or `JVM` and `classpath()`.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from struct import Struct

from tests.support.java_programs import JVM, program_command
from tests.support.kafka_jars import KAFKA_VERSION, classpath, jars_dir

TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
GET_OFFSET_SHELL = "org.apache.kafka.tools.GetOffsetShell"
BROKER_API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
DUMP_LOG_SEGMENTS = "org.apache.kafka.tools.DumpLogSegments"
# Kafka 4.4 moved it to the other tools.
CONFIG_COMMAND = (
    "kafka.admin.ConfigCommand" if KAFKA_VERSION.startswith("4.3.") else "org.apache.kafka.tools.ConfigCommand"
)

# A JVM that starts beside others on two cores; a tool that hangs ends here.
TOOL_SECONDS_MAX = 360.0

_TOOL_JARS = (f"kafka-tools-{KAFKA_VERSION}.jar", f"kafka_2.13-{KAFKA_VERSION}.jar")
_INT32 = Struct(">i")


@dataclass(frozen=True)
class ToolResult:
    """How a tool ended and what it wrote."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        """The lines of its standard output that are not blank."""
        return [line for line in self.stdout.splitlines() if line.strip()]


class _ToolsProcess:
    """The JVM, and what is said to it and by it."""

    def __init__(self) -> None:
        jars = sorted(jars_dir().glob("*.jar"))
        below = ":".join(str(jar) for jar in jars if jar.name not in _TOOL_JARS)
        tools = [str(jars_dir() / name) for name in _TOOL_JARS]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            program_command("JavaTools", below, *tools),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def run(self, texts: list[str], seconds: float) -> ToolResult:
        """One tool to its end. A JVM that has not answered by then is killed."""
        request = [_INT32.pack(len(texts))]
        for encoded in (text.encode() for text in texts):
            request += [_INT32.pack(len(encoded)), encoded]
        assert self._process.stdin is not None
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(b"".join(request))
            self._process.stdin.flush()
            code = self._number()
            return ToolResult(code, self._text(), self._text())
        except (EOFError, BrokenPipeError):
            ended = self._process.wait()
            self._errors.seek(0)
            said = self._errors.read()[-4000:].decode(errors="replace")
            raise AssertionError(
                f"{' '.join(texts[:1] + texts[2:])}: its JVM ended with {ended}, or had to after {seconds:g} s:\n{said}"
            ) from None
        finally:
            timer.cancel()
            timer.join()

    def close(self) -> None:
        """It ends with its input."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            assert self._process.poll() is not None
        self._process.wait(TOOL_SECONDS_MAX)
        self._process.stdout.close()
        self._errors.close()

    def _number(self) -> int:
        return int(_INT32.unpack(self._bytes(_INT32.size))[0])

    def _text(self) -> str:
        return self._bytes(self._number()).decode()

    def _bytes(self, count: int) -> bytes:
        assert self._process.stdout is not None
        found = self._process.stdout.read(count)
        if len(found) < count:
            raise EOFError
        return found


_running: _ToolsProcess | None = None


@contextmanager
def tools_process() -> Iterator[None]:
    """While the block lasts, `run_tool` has its JVM."""
    global _running
    before, _running = _running, _ToolsProcess()
    try:
        yield
    finally:
        _running.close()
        _running = before


def run_tool(
    main_class: str,
    *arguments: str,
    stdin: str = "",
    check: bool = True,
    seconds: float = TOOL_SECONDS_MAX,
) -> ToolResult:
    """Runs a tool to its end; with `check` a failure of the tool fails the test, with all that it wrote."""
    global _running
    assert _running is not None, "the test does not use the fixture java_tools"
    try:
        result = _running.run([main_class, stdin, *arguments], seconds)
    except AssertionError:
        # The next test has another one, begun before its guard looks at what there was.
        _running.close()
        _running = _ToolsProcess()
        raise
    return _checked(result, main_class, arguments) if check else result


def run_process(main_class: str, *arguments: str, seconds: float = TOOL_SECONDS_MAX) -> ToolResult:
    """Runs a tool in a JVM of its own; a failure of the tool fails the test, with all that it wrote."""
    done = subprocess.run(
        ["java", *JVM, "-cp", classpath(), main_class, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return _checked(ToolResult(done.returncode, done.stdout, done.stderr), main_class, arguments)


def _checked(result: ToolResult, main_class: str, arguments: tuple[str, ...]) -> ToolResult:
    if result.returncode != 0:
        wrote = f"{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
        raise AssertionError(f"{main_class} {' '.join(arguments)}: exit {result.returncode}\n{wrote}")
    return result


TOOLS = "org.apache.kafka.tools"


def tool(name: str, bootstrap: str, *arguments: str, check: bool = True) -> ToolResult:
    """One of org.apache.kafka.tools."""
    return run_tool(f"{TOOLS}.{name}", "--bootstrap-server", bootstrap, *arguments, check=check)


def said(result: ToolResult) -> str:
    return result.stdout + result.stderr
