"""Apache Kafka's own command-line tools, run as their scripts run them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from tests.support.kafka_jars import classpath

TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
GET_OFFSET_SHELL = "org.apache.kafka.tools.GetOffsetShell"
BROKER_API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
DUMP_LOG_SEGMENTS = "org.apache.kafka.tools.DumpLogSegments"
CONFIG_COMMAND = "kafka.admin.ConfigCommand"

# Short-lived: the first compiler tier and little heap start fastest. Performance data would leave a file
# in the temporary directory for each JVM that is killed.
JVM = ("-Xmx512M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
# A JVM that starts beside others on two cores; a tool that hangs ends here.
TOOL_SECONDS_MAX = 90.0


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


def run_tool(
    main_class: str,
    *arguments: str,
    stdin: str | None = None,
    check: bool = True,
    seconds: float = TOOL_SECONDS_MAX,
) -> ToolResult:
    """Runs a tool to its end; with `check` a failure of the tool fails the test, with all that it wrote."""
    done = subprocess.run(
        ["java", *JVM, "-cp", classpath(), main_class, *arguments],
        input=stdin if stdin is not None else "",
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    result = ToolResult(done.returncode, done.stdout, done.stderr)
    if check and done.returncode != 0:
        wrote = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        raise AssertionError(f"{main_class} {' '.join(arguments)}: exit {done.returncode}\n{wrote}")
    return result
