"""A standalone Spark cluster on this host, of pyspark's own jars: a master, workers, executors in their own JVMs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.jvm import SHORT_LIVED
from tests.support.wait import wait_until

START_SECONDS = 480.0
STOP_SECONDS = 120.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")


class StandaloneCluster:
    """Where it is, and what its executors left in their directories."""

    def __init__(self, master: str, directories: Sequence[Path]) -> None:
        self.master = master
        self._directories = directories

    def executors(self) -> list[list[Path]]:
        """For each worker the directories of the executors that it started."""
        return [sorted(each.glob("app-*/*")) for each in self._directories]

    def logs(self) -> str:
        """What the executors wrote, for a test that failed."""
        return "\n".join(
            path.read_text(errors="replace")[-3000:]
            for each in self._directories
            for path in each.glob("app-*/*/stderr")
        )


@contextmanager
def standalone_cluster(scratch: Path, workers: int = 2) -> Iterator[StandaloneCluster]:
    """A master and workers of one core each, on the loopback, without our PYTHONPATH; all gone at the end."""
    directories = [scratch / f"worker-{number}" for number in range(workers)]
    with ExitStack() as stack:
        log = _start(stack, scratch, "master", "org.apache.spark.deploy.master.Master", "--port", "0")
        found = wait_until(
            lambda: _MASTER.search(log.read_text(errors="replace")), seconds=START_SECONDS, what="the master"
        )
        for number, directory in enumerate(directories):
            directory.mkdir()
            arguments = (
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                str(directory),
                "--port",
                "0",
                found[1],
            )
            worker = _start(
                stack, scratch, f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *arguments
            )
            wait_until(
                lambda log=worker: "Successfully registered with master" in log.read_text(errors="replace"),
                seconds=START_SECONDS,
                what=f"worker {number}",
            )
        yield StandaloneCluster(found[1], directories)


def _start(stack: ExitStack, scratch: Path, name: str, main_class: str, *arguments: str) -> Path:
    """One JVM whose end the stack sees to; the path of its log."""
    import pyspark

    home = Path(pyspark.__file__).parent
    log = scratch / f"{name}.log"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SCALA_VERSION": "2.13"}
    command = ["java", "-Xmx256m", *SHORT_LIVED, "-cp", f"{home}/jars/*", main_class]
    with open(log, "wb") as to_log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
            env=environment,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=to_log,
            stderr=to_log,
            start_new_session=True,
        )
    stack.callback(_stop, process)
    return log


def _stop(process: subprocess.Popen[bytes]) -> None:
    """A worker ends its executors when it is asked to end."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
