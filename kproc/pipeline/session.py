"""The Spark session of a pipeline: check Java and packages, start the JVM in its own session, and stop it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.pipeline.checkpoint import is_local
from kproc.pipeline.errors import PipelineError, reason_of
from kproc.pipeline.model import Pipeline
from kproc.pipeline.scratch import Scratch
from kproc.pipeline.stock import stock_jars

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
# Spark's class for writing checkpoint files. A batch takes 30 % less time than with the default class. This one checks
# and renames in two steps, which is safe with one writer, as CheckpointLock guarantees, on a local file system.
CHECKPOINT_FILES: Final = f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
STATE_STORE: Final = f"{_STREAMING}.state.RocksDBStateStoreProvider"
WORKER_PYTHON: Final = Path(__file__).with_name("worker-python")
JVM_STOP_SECONDS: Final = 30.0
# Time, in s, for the JVM to end after its connection to this process broke.
JVM_DEATH_SECONDS: Final = 5.0


def check_java(environ: Mapping[str, str]) -> None:
    """Raise PipelineError with advice if there is no Java that Spark can use."""
    home = environ.get("JAVA_HOME")
    where = f"in JAVA_HOME={home}" if home else "on the PATH"
    java = shutil.which("java", path=f"{home}/bin" if home else environ.get("PATH"))
    if java is None:
        raise PipelineError(
            f"Spark needs Java {JAVA_MIN} or newer, and there is none {where}: install one or set JAVA_HOME"
        )
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    version = re.search(r'version "(\d+)(?:\.(\d+))?', printed.stderr)
    if version is None:
        raise PipelineError(
            f"cannot find the version in the output of `{java} -version`: {printed.stderr.strip()[:200]}; "
            "set JAVA_HOME to another Java"
        )
    major = int(version[2]) if version[1] == "1" and version[2] else int(version[1])  # 1.8 is Java 8
    if major < JAVA_MIN:
        raise PipelineError(
            f"Spark needs Java {JAVA_MIN} or newer; {java} is Java {major}: set JAVA_HOME to another"
        )


def check_packages() -> None:
    """Raise PipelineError with advice if PySpark is missing."""
    from kproc.spark import require_spark

    try:
        require_spark()
    except ImportError as error:
        raise PipelineError(str(error)) from None


@dataclass
class RunningSpark:
    """A Spark session, its JVM and its files."""

    session: SparkSession
    gateway: Any
    package: Path | None
    scratch: Scratch

    def stop(self) -> None:
        """Stop queries and session, and then the JVM, which would otherwise live as long as this process."""
        if self.has_ended():
            self._remove_files()
            return
        try:
            self.session.stop()
        finally:
            self._stop_jvm()

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Return True if the JVM has ended, or ends within this time."""
        try:
            return self.gateway.proc is not None and self.gateway.proc.wait(seconds) is not None
        except subprocess.TimeoutExpired:
            return False

    def kill(self) -> None:
        """Kill the JVM. The next run repeats a batch that was not committed."""
        if self.gateway.proc is not None:
            self.gateway.proc.kill()
            self.gateway.proc.wait()
        self._remove_files()

    def _stop_jvm(self) -> None:
        self.gateway.shutdown()
        process = self.gateway.proc
        if process is not None:
            # PySpark's JVM exits when it reads the end of its standard input.
            process.stdin.close()
            try:
                process.wait(JVM_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                # A hung JVM does not react to the end of its standard input.
                process.kill()
                process.wait()
        self._remove_files()

    def _remove_files(self) -> None:
        if self.package is not None:
            shutil.rmtree(self.package.parent, ignore_errors=True)
        self.scratch.remove()


def start_spark(
    pipeline: Pipeline,
    *,
    scratch: Path,
    environ: Mapping[str, str],
    verbose: bool,
    kept_descriptor: int | None,
) -> RunningSpark:
    """Start Spark. Raise PipelineError if that fails.

    scratch: directory for the log and the package. kept_descriptor: a lock's descriptor that the JVM inherits, so that
    the lock is held until the JVM has ended, too.

    On any exception, also of a signal handler, kill the JVM and remove its files.
    """
    # Let Spark write shuffle files and state stores into this directory, because a killed JVM does not remove them.
    temporary = Scratch()
    children = child_pids()
    try:
        return _start_spark(pipeline, scratch, temporary, environ, verbose, kept_descriptor)
    except BaseException:
        # Kill the JVM. To close its stdin would not suffice, because a JVM that does not find PySpark never reads
        # stdin.
        _kill(child_pids() - children)
        temporary.remove()
        raise


def _start_spark(
    pipeline: Pipeline,
    scratch: Path,
    temporary: Scratch,
    environ: Mapping[str, str],
    verbose: bool,
    kept_descriptor: int | None,
) -> RunningSpark:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    import kproc.spark

    if not verbose:
        # Disable PySpark's loggers, which write each error with the JVM's stack to stderr. kproc reports the error in
        # one line.
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            PySparkLogger.getLogger(name).disabled = True
    conf = SparkConf(loadDefaults=False)
    for name, value in settings(pipeline, scratch, environ, temporary.path).items():
        conf.set(name, value)
    kept = [each for each in (kept_descriptor, temporary.descriptor) if each is not None]
    gateway = _launch_jvm(conf, scratch / "spark.log", kept, verbose)
    try:
        context = SparkContext(conf=conf, gateway=gateway)
    except (Py4JError, PySparkException, ValueError, OSError) as error:
        gateway.shutdown()
        raise PipelineError(f"Spark did not start: {reason_of(error)}", str(error)) from None
    running = RunningSpark(SparkSession(context), gateway, None, temporary)
    context.setLogLevel("WARN" if verbose else "ERROR")
    kproc.spark.register(running.session)
    if not pipeline.spark.is_local:
        running.package = package_kproc(scratch / "package")
        context.addPyFile(str(running.package))
    for file in pipeline.spark.py_files:
        context.addPyFile(file)
    return running


def _launch_jvm(conf: SparkConf, log: Path, kept_descriptors: list[int], verbose: bool) -> Any:
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    with open(log, "wb") as spark_log:
        # Start the JVM in its own session. Ctrl-C in the terminal signals the whole foreground process group, and would
        # otherwise kill the JVM's Python workers in the middle of the batch that has to finish.
        popen: dict[str, Any] = {"start_new_session": True, "stdout": spark_log, "pass_fds": kept_descriptors}
        if not verbose:
            popen["stderr"] = spark_log
        try:
            return launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
        except PySparkException:
            raise PipelineError(f"Spark's JVM did not start: {last_words(log)}", log.read_text()) from None


def child_pids() -> set[int]:
    """Return the pids of this process's children that were not waited for."""
    while True:
        # If a thread ends before its children were read, another thread has them, perhaps one that was read before.
        with suppress(FileNotFoundError, ProcessLookupError):
            lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
            return {int(pid) for text in lists for pid in text.split()}


def _kill(pids: set[int]) -> None:
    """Kill children and their process groups, and wait for the children."""
    for pid in pids:
        # The child can be gone: subprocess.Popen also reaps children that have ended.
        with suppress(ProcessLookupError, ChildProcessError):
            # The JVM leads a process group with its Python workers. Another child is in the group of this process,
            # which must not be killed.
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def settings(
    pipeline: Pipeline, scratch: Path, environ: Mapping[str, str], temporary: Path
) -> dict[str, str]:
    """Return Spark's settings. Those of the specification override kproc's defaults."""
    spark = pipeline.spark
    answer = {
        "spark.app.name": f"kproc-{pipeline.name}",
        "spark.master": spark.master,
        "spark.driver.memory": spark.driver_memory,
        "spark.driver.defaultJavaOptions": f"-Djava.io.tmpdir={temporary}",
        "spark.ui.enabled": str(spark.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.streaming.numRecentProgressUpdates": "100",
    }
    if is_local(pipeline.checkpoint):
        answer["spark.sql.streaming.checkpointFileManagerClass"] = CHECKPOINT_FILES
    if spark.is_local or re.match(r"spark://(127\.|localhost)", spark.master):
        answer |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if spark.is_local:
        answer["spark.sql.shuffle.partitions"] = str(_local_cores(spark.master))
    else:
        # Executors on other hosts unpack the zip file with kproc into their working directory, and start Python there.
        answer["spark.executorEnv.PYTHONPATH"] = PACKAGE_NAME
        answer["spark.executorEnv.PYTHONSAFEPATH"] = "1"
    if spark.executor_memory is not None:
        answer["spark.executor.memory"] = spark.executor_memory
    jars = _jars(spark.jars)
    if pipeline.uses_stock_connector() and "spark.jars.packages" not in spark.conf:
        jars += stock_jars(jars, environ)
    if jars:
        answer["spark.jars"] = ",".join(jars)
    return {**answer, **spark.conf}


def _jars(given: tuple[str, ...]) -> list[str]:
    """Return the paths of the jars that the specification names. A directory stands for all jars in it."""
    answer: list[str] = []
    for item in given:
        if os.path.isdir(item):
            answer += sorted(str(path) for path in Path(item).glob("*.jar"))
        elif ":/" in item or os.path.isfile(item):
            answer.append(item)
        else:
            raise PipelineError(f"spark.jars: no such file or directory: {item}")
    return answer


def _local_cores(master: str) -> int:
    found = re.match(r"local\[(\d+|\*)", master)
    if found is None:
        return 1
    return len(os.sched_getaffinity(0)) if found[1] == "*" else int(found[1])


def last_words(log: Path) -> str:
    """Return the line of the JVM's log that most likely has the reason why the JVM has ended."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [
        line for line in lines if re.match(r"(Error|Exception in|Caused by|Unrecognized|Invalid)", line)
    ]
    return (telling or lines or ["it wrote nothing"])[-1]


PACKAGE_NAME: Final = "kproc_package.zip"
_PACKAGED: Final = (".py", ".c", ".h", ".md", ".jsonl")


def package_kproc(directory: Path) -> Path:
    """Create a zip of the installed kproc and of the package `pyspark_kproc`, for executors that do not have them."""
    import kproc

    root = Path(kproc.__file__).parent
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / PACKAGE_NAME
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            inside = path.relative_to(root.parent)
            if path.is_file() and path.suffix in _PACKAGED and "auto" not in inside.parts:
                archive.write(path, str(inside))
        archive.writestr(
            "pyspark_kproc/__init__.py", "from kproc.spark.source import KprocDataSource as DefaultSource\n"
        )
    return target


def worker_environment(environ: Mapping[str, str], *, is_local: bool = True) -> dict[str, str]:
    """Return Spark's environment variables for Python workers.

    They name this interpreter and, if kproc is not installed, kproc's path.

    On this host workers start by the script `worker-python`, which is faster. A cluster's hosts do not have that file.
    """
    import kproc

    # Spark starts workers by `python -m`, which would put the working directory in front of the standard library.
    answer = {"PYTHONSAFEPATH": "1"}
    if "PYSPARK_PYTHON" not in environ:
        # worker-python needs an installed PySpark. There may be none if this process imported PySpark from a zip file.
        found = find_spec("pyspark")
        if is_local and found is not None and os.path.isfile(found.origin or ""):
            answer |= {"PYSPARK_PYTHON": str(WORKER_PYTHON), "KPROC_WORKER_PYTHON": sys.executable}
        else:
            answer["PYSPARK_PYTHON"] = sys.executable
    root = str(Path(kproc.__file__).parent.parent)
    paths = [item for item in environ.get("PYTHONPATH", "").split(os.pathsep) if item]
    if "site-packages" not in root and root not in paths:
        answer["PYTHONPATH"] = os.pathsep.join([root, *paths])
    return answer
