"""Workers that pytest forks after it has collected the tests. Each worker runs one file after another.

Workers of xdist are separate interpreters: each imports all files of the tests, which costs 9 s of CPU. Forked workers
share the modules that the main process has imported. A file stays with one worker, and so do files that share a JVM.
The main process sends the numbers of a file's tests to a worker. The worker sends a message with its reports after each
test.

If a worker dies, the test that it ran fails, and another worker runs the rest of the file.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from itertools import zip_longest
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.support.budget import cpu_seconds
from tests.support.few_reports import FewReports


def group_by_scope(node_ids: Iterable[str], scope_of: Callable[[str], str]) -> deque[deque[int]]:
    """Return the numbers of the tests that stay together, in the order of each scope's first test."""
    groups: dict[str, deque[int]] = {}
    for number, node_id in enumerate(node_ids):
        groups.setdefault(scope_of(node_id), deque()).append(number)
    return deque(groups.values())


def describe_exit(status: int) -> str:
    """Return words for the status of a process that was waited for."""
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


class Worker:
    """A forked process as the main process sees it."""

    def __init__(self, name: str, pid: int, connection: Connection) -> None:
        self.name, self.pid, self.connection = name, pid, connection
        # The socket alone does not show that a worker died: a process that a test has forked can hold it open.
        self.pid_descriptor = os.pidfd_open(pid)
        self.tests: deque[int] = deque()
        """Numbers of the tests that it has not finished. It runs the first of them."""
        self.has_ended = False

    def close(self) -> int:
        """Wait for the process. Return its status."""
        self.connection.close()
        os.close(self.pid_descriptor)
        return os.waitpid(self.pid, 0)[1]


class ForkedWorkers:
    """A plugin of the main process that runs the tests in workers."""

    def __init__(
        self, count: int, scope_of: Callable[[str], str], set_up_worker: Callable[[pytest.Config], None]
    ) -> None:
        self._count, self._scope_of, self._set_up_worker = count, scope_of, set_up_worker
        self._workers: list[Worker] = []
        self._started = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all tests, unless pytest's own loop has to report errors of the collection."""
        if session.config.option.collectonly or session.testsfailed or not session.items:
            return None
        self._session, self._hook = session, session.config.hook
        self._files = group_by_scope((item.nodeid for item in session.items), self._scope_of)
        # Lines of results would begin with the file's name whenever another worker reports.
        session.config.pluginmanager.get_plugin("terminalreporter").showfspath = False
        session.config._tmp_path_factory.getbasetemp()
        try:
            for _ in range(min(self._count, len(self._files))):
                self._start_worker()
            while self._workers:
                self._receive()
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            # Each worker notices the closed connection after the test that it runs.
            for worker in self._workers:
                worker.connection.close()
            for worker in self._workers:
                worker.close()
        return True

    def _start_worker(self) -> None:
        name = f"gw{self._started}"
        self._started += 1
        ours, theirs = Pipe()
        # Otherwise both processes would write the text that is still buffered.
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            for connection in (ours, *(worker.connection for worker in self._workers)):
                connection.close()
            for worker in self._workers:
                os.close(worker.pid_descriptor)
            WorkerSide(self._session, name, theirs).run(self._set_up_worker)
        theirs.close()
        worker = Worker(name, pid, ours)
        self._workers.append(worker)
        self._send_next_file(worker)

    def _send_next_file(self, worker: Worker) -> None:
        worker.tests = self._files.popleft() if self._files else deque()
        # If the worker has died meanwhile, its descriptor shows it.
        with suppress(ConnectionError):
            worker.connection.send(list(worker.tests))

    def _receive(self) -> None:
        """Wait for messages and deaths, and handle them."""
        waited = [each for worker in self._workers for each in (worker.connection, worker.pid_descriptor)]
        ready = set(wait(waited))
        for worker in self._workers.copy():
            if worker.pid_descriptor in ready:
                while self._receive_message(worker):
                    pass
                self._replace(worker)
            elif worker.connection in ready and not self._receive_message(worker):
                self._replace(worker)

    def _receive_message(self, worker: Worker) -> bool:
        """Handle the next message of a worker. Return False if there is none."""
        try:
            if not worker.connection.poll():
                return False
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            # The connection raises a plain OSError if the worker was killed in the middle of a message.
            return False
        self._handle(worker, kind, value)
        return True

    def _handle(self, worker: Worker, kind: str, value: Any) -> None:
        session = self._session
        if kind == "report":
            self._log_report(value)
        elif kind == "warning":
            self._hook.pytest_warning_recorded.call_historic(kwargs=value)
        elif kind == "finished":
            reports, location = value
            for each in reports:
                self._log_report(each)
            self._finish_test(worker, location)
            if not worker.tests:
                self._send_next_file(worker)
        else:
            worker.has_ended = True
            session.config.pluginmanager.get_plugin("budget").worker_seconds[worker.name] = value

    def _log_report(self, data: dict[str, Any]) -> None:
        report = self._hook.pytest_report_from_serializable(config=self._session.config, data=data)
        self._hook.pytest_runtest_logreport(report=report)

    def _finish_test(self, worker: Worker, location: tuple[str, int | None, str]) -> None:
        """Report the end of a worker's first test. The worker sends `location`, because computing it is slow."""
        item = self._session.items[worker.tests.popleft()]
        self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=location)

    def _replace(self, worker: Worker) -> None:
        """Remove a worker that has ended. If it was in a test, fail that test and run the rest of its file."""
        self._workers.remove(worker)
        end = describe_exit(worker.close())
        if worker.has_ended:
            if not worker.tests:
                return
            end += ", as after a KeyboardInterrupt"
        if not worker.tests:
            raise RuntimeError(f"worker {worker.name} died between two tests: {end}")
        item = self._session.items[worker.tests[0]]
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="failed",
            longrepr=f"worker {worker.name} died while it ran this test: {end}",
            when="call",
        )
        report.worker_id, report.cpu_seconds, report.shared_cpu_seconds = worker.name, 0.0, 0.0
        self._hook.pytest_runtest_logreport(report=report)
        self._finish_test(worker, item.location)
        if worker.tests:
            self._files.appendleft(worker.tests)
        if self._files:
            self._start_worker()


class WorkerSide:
    """The forked process: it runs the files that it receives, and never returns into the main process's code."""

    def __init__(self, session: pytest.Session, name: str, connection: Connection) -> None:
        self._session, self._name, self._connection = session, name, connection
        self._last_item: pytest.Item | None = None
        self._reports: list[dict[str, Any]] = []
        """Reports of the test that runs. They are sent with the message that it has ended."""

    def run(self, set_up: Callable[[pytest.Config], None]) -> NoReturn:
        """Run files until the main process sends an empty one, or has closed the connection."""
        code = 1
        try:
            self._separate_from_main_process()
            set_up(self._session.config)
            with suppress(EOFError, ConnectionError, KeyboardInterrupt):
                self._run_files()
            self._tear_down_session()
            with suppress(ConnectionError):
                self._connection.send(("ended", cpu_seconds()))
            code = 0
        finally:
            if code:
                traceback.print_exc()
            # A normal exit of the interpreter would remove directories of the main process.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _separate_from_main_process(self) -> None:
        """Replace the files and plugins that must not be shared with the main process."""
        config = self._session.config
        plugins = config.pluginmanager
        capture = plugins.get_plugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        factory = config._tmp_path_factory
        factory._basetemp = factory.getbasetemp() / f"popen-{self._name}"
        factory._basetemp.mkdir(mode=0o700)
        # By default pytest looks for the hooks of all conftest.py files anew in each phase of each test.
        self._session.gethookproxy = cache(self._session.gethookproxy)
        # The main process prints the results. pytest-timeout writes the stacks of a test that hangs.
        terminal = plugins.unregister(name="terminalreporter")
        plugins.register(SimpleNamespace(_tw=terminal._tw), "terminalreporter")
        plugins.register(FewReports())
        plugins.register(self)

    def _run_files(self) -> None:
        items, hook = self._session.items, self._session.config.hook
        while numbers := self._connection.recv():
            for number, next_number in zip_longest(numbers, numbers[1:]):
                # The main process sends nothing before the end of the file, so it has closed the connection.
                if self._connection.poll():
                    return
                self._last_item = items[number]
                # After the last test of a file fixtures of the session stay: another file may follow.
                following = self._session if next_number is None else items[next_number]
                hook.pytest_runtest_protocol(item=self._last_item, nextitem=following)
                self._connection.send(("finished", (self._reports, self._last_item.location)))
                self._reports = []

    def _tear_down_session(self) -> None:
        """Tear down the fixtures of the session. An error counts as one of the last test's teardown."""
        call = pytest.CallInfo.from_call(lambda: self._session._setupstate.teardown_exact(None), "teardown")
        if self._last_item is not None:
            hook = self._last_item.ihook
            # The test's own teardown removed them, and plugins look for fixtures in them.
            self._last_item.funcargs = {}
            report = hook.pytest_runtest_makereport(item=self._last_item, call=call)
            with suppress(ConnectionError):
                hook.pytest_runtest_logreport(report=report)
                self._connection.send(("report", self._reports.pop()))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Encode a report for the main process."""
        report.worker_id = self._name
        config = self._session.config
        # The hook fails a test whose subtests have failed, which are counted in this process.
        config.hook.pytest_report_teststatus(report=report, config=config)
        self._reports.append(config.hook.pytest_report_to_serializable(config=config, report=report))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        """Send a test's warning to the main process, without its class, which a test module can have defined."""
        if when != "runtest":
            return
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        plain = warnings.WarningMessage(text, UserWarning, warning_message.filename, warning_message.lineno)
        value = {"warning_message": plain, "when": when, "nodeid": nodeid, "location": location}
        self._connection.send(("warning", value))
