"""Brokers for the tests, on each transport, and the guard that nothing is left behind.

    pytest                              fast tests, on processes: no real clients, no faults, nothing `long`
    pytest -m clients                   unmodified client libraries and tools against the broker
    pytest -m faults --rounds 100       kill -9 of every role, under load, with a checker
    pytest -m '' --bootstrap HOST:PORT  client and api tests against a broker that runs already, Apache Kafka
                                        for instance: a test that fails there is wrong itself
    pytest --transports process,thread,inline
                                        on all transports what depends on them, as scripts/test and .ci/run do; with
                                        -m '' everything
    pytest tests/api --transports connection-threads,asyncio
                                        those of bench/alternatives; else tests/bench/test_alternatives.py tests them

A test asks for `broker` (one per session, on threads and inline one per file, default settings but no round of
retention, shared: use topics of your own, which `topic` makes) or for `start_broker` (one of its own, with settings,
gone when the test ends).
"""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# `--import-mode=importlib` puts nothing on the path, and the tests share `tests.support`.
ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

# Compiled modules are kept, whatever the environment says: without them each worker compiles the tests anew, and each
# of some hundred brokers takes twice as long to begin. Not beside the sources, where somebody does not want them.
KEPT_MODULES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kproc" / "pycache"
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = sys.pycache_prefix or str(KEPT_MODULES)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# After that: Hypothesis is a plugin of pytest, which rewrites its asserts, and so compiled anew where nothing is kept.
import hypothesis  # noqa: E402
from hypothesis.internal.conjecture import providers  # noqa: E402

from bench.alternatives.broker import ALTERNATIVES  # noqa: E402
from tests.support.broker import TRANSPORTS, BrokerUnderTest, EmbeddedBroker, ExternalBroker  # noqa: E402
from tests.support.broker_starts import forked_starts, real_starts  # noqa: E402
from tests.support.budget import (  # noqa: E402
    EXAMPLES,
    PLAIN_EXAMPLES,
    Budget,
    is_long,
    is_plain,
    is_whole_run,
    leaves_out_all,
    leaves_out_slow,
)
from tests.support.forked_workers import ForkedWorkers  # noqa: E402
from tests.support.java_tools import tools_process  # noqa: E402
from tests.support.leak_guard import LeakGuard, lost_sockets_collected  # noqa: E402
from tests.support.memory_directory import DISK_VARIABLE, chosen_memory_directory  # noqa: E402
from tests.support.skips import Skips  # noqa: E402
from tests.support.topics import TopicFactory  # noqa: E402

# The same examples in every run: a plain run must not fail by chance, nor because the host is busy.
# `--hypothesis-profile default` looks further.
hypothesis.settings.register_profile(
    "same-examples",
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same-examples")

EXTERNAL = "external"
# Directories whose tests spend most of their time waiting for processes, those with the longest files first. The tests
# of the other directories keep a core busy; of these, too, those with long files come first.
WAITING = ("spark", "clients", "faults", "cli")
BUSY_FIRST = ("simulation", "fuzz", "rig", "bench", "property", "wire")
# Their brokers are forked, also where a test does not ask for a transport.
FORKING = ("api", "cli", "clients", "faults", "spark")
# When so much of the others has been handed out, no file that waits is left: these take longest.
WAITING_SHARE = 0.85
# A test of a plain run that hangs ends with the stacks of its threads.
HANG_SECONDS = 900
# Higher ones keep so many metrics slabs of rigs in cycles that a fork needs more memory than the machine has.
GC_THRESHOLDS = 10_000, 20, 20
# Records of tests have fixed times, years ago. By default retention takes them all five minutes after the
# broker began, between any two lines of whatever test runs then.
SHARED_SETTINGS = {"log.retention.check.interval.ms": 86_400_000}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kproc")
    group.addoption(
        "--bootstrap", metavar="HOST:PORT", help="use this running broker instead of starting kproc"
    )
    group.addoption("--transports", default=",".join(TRANSPORTS), help="comma separated; default: all")
    group.addoption("--rounds", type=int, default=4, help="rounds of kill -9 in all, over the roles")
    group.addoption(
        "--records-per-kill", type=int, default=4_000, help="what Spark copies exactly once for each kill"
    )
    group.addoption("--batch-records", type=int, default=500, help="of each of Spark's micro-batches there")
    group.addoption(
        "--volume-mb", type=int, default=14, help="what the test of compaction under load produces"
    )
    group.addoption(
        "--cpu-report", metavar="FILE", help="write the CPU and wall seconds of each test to FILE, as JSON"
    )
    group.addoption(
        "--workers", type=int, metavar="N", help="run the tests in N processes, which are forked after the collection"
    )
    group.addoption("--seed", type=int, default=20_240, help="seed of the kills and of the malformed frames")


def pytest_configure(config: pytest.Config) -> None:
    # A shell lets what it starts in the background ignore SIGINT. Each child would inherit that, and never see Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not config.getoption("hypothesis_profile", None):
        # Constants of all modules that are loaded by then would be among the examples, which would not be the same for
        # a file alone and for all of them; and every worker parses every module for them.
        providers._get_local_constants = lambda: providers._local_constants
    # Once; pytest's `log_level` sets it three times for each test, and each time forgets what every logger knew.
    logging.getLogger().setLevel(logging.INFO)
    if is_plain(config.option.markexpr) and not config.getoption("hypothesis_profile", None):
        few = hypothesis.settings(
            hypothesis.settings.get_profile("same-examples"), max_examples=PLAIN_EXAMPLES
        )
        hypothesis.settings.register_profile("few-examples", few)
        hypothesis.settings.load_profile("few-examples")
    _take_own_temporary_directory(config)
    config.pluginmanager.register(Skips(), "skips")
    config.pluginmanager.register(LeakGuard(), "leak-guard")
    config.pluginmanager.register(Budget(config, config.getoption("cpu_report")), "budget")
    if config.option.workers:
        config.pluginmanager.register(
            ForkedWorkers(config.option.workers, scope_of, _take_own_temporary_directory), "forked-workers"
        )
    config.addinivalue_line("markers", "own_broker: starts brokers with settings; skipped with --bootstrap")
    config.addinivalue_line(
        "markers",
        "transports(*names, slow=()): only these transports make sense for the test; on those in `slow`, which are "
        "among them, it repeats what another test shows there: by hand",
    )
    config.addinivalue_line(
        "markers",
        "every_transport: the transport can change the result; a test without this marker or `transports` runs on the "
        "first of the chosen transports, and on the others only by hand (`slow`)",
    )
    config.addinivalue_line(
        "markers", "no_leak_guard: the test itself checks what is left, or leaves it on purpose"
    )


def _take_own_temporary_directory(config: pytest.Config) -> None:
    """A directory for this run alone, so that what another run leaves or makes is not taken for ours.

    Children inherit it by TMPDIR. pytest's own `tmp_path` stays where it was, to be looked at afterwards.
    """
    os.environ.setdefault(DISK_VARIABLE, tempfile.gettempdir())
    in_memory = chosen_memory_directory(config)
    own = tempfile.TemporaryDirectory(prefix="test-run-", dir=in_memory, ignore_cleanup_errors=True)
    os.chmod(own.name, 0o711)  # Other users can enter it: the modes of what is in it must do.
    # On a disk pytest keeps the directories of failed tests. Memory would not be free again before the next boot.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", own.name if in_memory else tempfile.gettempdir())
    os.environ["TMPDIR"] = tempfile.tempdir = own.name
    # A profile of the developer would name the broker of every command that gets no --bootstrap.
    os.environ["XDG_CONFIG_HOME"] = str(Path(own.name, "config"))
    os.environ.pop("KPROC_PROFILE", None)
    config.add_cleanup(own.cleanup)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep nothing of the modules that this run's tests wrote.

    Other runs go on meanwhile, and their checkout can be below the same temporary directory.
    """
    factory = getattr(session.config, "_tmp_path_factory", None)
    for directory in (tempfile.tempdir, getattr(factory, "_basetemp", None)):
        if directory is not None:
            shutil.rmtree(f"{KEPT_MODULES}{directory}", ignore_errors=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that reaches the `transport` fixture one variant per transport that it names."""
    if "transport" not in metafunc.fixturenames:
        return
    chosen = metafunc.config.getoption("transports").split(",")
    known = (*TRANSPORTS, *ALTERNATIVES)
    unknown = set(chosen) - set(known)
    if unknown:
        raise pytest.UsageError(f"--transports: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
    marker = metafunc.definition.get_closest_marker("transports")
    names = [name for name in (marker.args if marker else known) if name in chosen]
    if metafunc.config.getoption("bootstrap"):
        names = [EXTERNAL]
    if marker:
        by_hand = marker.kwargs.get("slow", ())
    else:
        # The roles run the same code on every transport: one of them is enough, unless the test is about messages,
        # sleeping and waking.
        by_hand = () if metafunc.definition.get_closest_marker("every_transport") else names[1:]
    if leaves_out_slow(metafunc.config.option.markexpr):
        # Most variants of the tests of APIs. Each worker would make them first.
        names = [name for name in names if name not in by_hand] or names
    variants = [pytest.param(name, marks=pytest.mark.slow) if name in by_hand else name for name in names]
    metafunc.parametrize("transport", variants, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Choose the number of workers of a plain run, unless somebody says how many or looks into a test."""
    options = config.option
    looks = options.collectonly or options.usepdb or options.trace or options.capture == "no"
    if (
        is_plain(options.markexpr)
        and is_whole_run(config)
        and not looks
        and options.workers is None
        and getattr(options, "numprocesses", None) is None
    ):
        cores = len(os.sched_getaffinity(0))
        # Three workers for two cores, because tests wait for other processes in a third of their time.
        options.workers = cores + (cores + 1) // 2
        # A timer of the kernel. pytest's `faulthandler_timeout` starts a thread for each test, and waits for its end.
        options.timeout = getattr(options, "timeout", None) or HANG_SECONDS


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A plain run of everything passes over the files of which it would take no test: each worker would import them.

    Nor does it take the house rules, which read all files of the repository: scripts/check has them.
    """
    markers = config.option.markexpr
    if collection_path.suffix != ".py" or not (is_plain(markers) and is_whole_run(config)):
        return None
    return collection_path.parent.name == "tidy" or leaves_out_all(markers, collection_path.read_text()) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Without rounds of garbage collection: what is made here stays, and every worker would look through it often.

    Nor does a round while the tests run look through it. Rounds are rare then: at Python's thresholds they took 8 % of
    the CPU of tests/unit, and hardly any object waits for one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        callspec = getattr(item, "callspec", None)
        if is_long(has_own_broker=_has_own_broker(item), seed=callspec and callspec.params.get("seed")):
            item.add_marker(pytest.mark.long)
        names = getattr(item, "fixturenames", None)
        if names is not None and "fork_server" not in names and _directory(item.nodeid) in FORKING:
            names.insert(0, "fork_server")
    if config.option.workers:
        places = places_of_files(item.nodeid.partition("::")[0] for item in items)
        items.sort(key=lambda item: places[item.nodeid.partition("::")[0]])
    if not config.getoption("bootstrap"):
        return
    for item in items:
        if _has_own_broker(item):
            item.add_marker(pytest.mark.skip(reason="needs a broker of its own settings"))


def _has_own_broker(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker("own_broker")) or "start_broker" in getattr(item, "fixturenames", ())


def places_of_files(files: Iterable[str]) -> dict[str, int]:
    """Return the place of each file in the order in which workers get them.

    Files that wait alternate with files that compute, because either kind alone leaves a core or a worker idle. The
    files that share a JVM are first, because together they take minutes. At the end no worker has a long file while
    the others have none.
    """
    waiting: list[str] = []
    busy: list[str] = []
    for file in dict.fromkeys(files):
        (waiting if _directory(file) in WAITING else busy).append(file)
    waiting.sort(
        key=lambda file: (not uses_spark_session(file), shared_session(file) == file, WAITING.index(_directory(file)))
    )
    busy.sort(key=lambda file: (*BUSY_FIRST, _directory(file)).index(_directory(file)))
    share = {file: WAITING_SHARE * at / len(waiting) for at, file in enumerate(waiting)}
    share |= {file: at / len(busy) for at, file in enumerate(busy)}
    return {file: place for place, file in enumerate(sorted(share, key=share.__getitem__))}


def _directory(file: str) -> str:
    return file.split("/")[1]


_SPARK_ARGUMENT = re.compile(r"^def \w+\([^)]*\bspark\b", re.MULTILINE)


@cache
def uses_spark_session(file: str) -> bool:
    """Return True if a test or fixture of this file asks for the shared session of Spark."""
    return file.startswith("tests/spark/") and bool(_SPARK_ARGUMENT.search((ROOT / file).read_text()))


@cache
def shared_session(file: str) -> str:
    """Return the name of the JVM or library that this file shares with other files; its own name if it shares none."""
    if uses_spark_session(file):
        return "the Spark session"
    if 'usefixtures("java_tools")' in (ROOT / file).read_text():
        return "the JVM of Kafka's tools"
    if file.startswith("tests/wire/"):
        # To import its 1,000 modules takes 3 s of CPU.
        return "kio"
    return file


def scope_of(node_id: str) -> str:
    """Return the name that all tests share that must run in one worker: those of a file, or of a JVM or kio."""
    return shared_session(node_id.partition("::")[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    # A worker sends its reports as UTF-8, and one that it cannot send ends the whole run: a hostile path in a log line.
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode("utf-8")) for name, text in report.sections
    ]
    return report


@pytest.fixture(scope="session")
def fork_server() -> Iterator[None]:
    """The process that forks brokers. Without it each of some hundred brokers imports all of kproc."""
    with forked_starts():
        yield


@pytest.fixture
def real_start() -> Iterator[None]:
    """For a test whose subject is a start: brokers start as users start them."""
    with real_starts():
        yield


@pytest.fixture(scope="session")
def transport(request: pytest.FixtureRequest, fork_server: None) -> str:
    """The transport of this variant of the test."""
    return str(request.param)


@pytest.fixture(scope="session")
def shared_broker(fork_server: None) -> Iterator[EmbeddedBroker]:
    """The broker of roles in processes that all files share."""
    with EmbeddedBroker(transport=TRANSPORTS[0], settings=SHARED_SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def broker(
    transport: str, pytestconfig: pytest.Config, request: pytest.FixtureRequest
) -> Iterator[BrokerUnderTest]:
    """A broker with default settings but for retention's: on processes one for all files, else one for each file.

    An idle broker on threads takes 1 % of a core. A start takes 0.2 s of CPU.
    """
    if transport == EXTERNAL:
        yield ExternalBroker(str(pytestconfig.getoption("bootstrap")))
    elif transport == TRANSPORTS[0]:
        yield request.getfixturevalue("shared_broker")
    else:
        with EmbeddedBroker(transport=transport, settings=SHARED_SETTINGS) as running:
            yield running


@pytest.fixture
def start_broker(transport: str) -> Iterator[Callable[..., BrokerUnderTest]]:
    """`start_broker(settings={...})`: a broker of this test alone."""
    with ExitStack() as stack:

        def start(settings: dict[str, Any] | None = None) -> BrokerUnderTest:
            return stack.enter_context(EmbeddedBroker(transport=transport, settings=settings))

        yield start


@pytest.fixture
def topic(broker: BrokerUnderTest) -> TopicFactory:
    """`topic(partitions=4, configs={...})`: the name of a new topic on the shared broker."""
    return TopicFactory(broker.bootstrap)


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A temporary directory on a disk, for a test that depends on its file system. `tmp_path` may be in memory."""
    with tempfile.TemporaryDirectory(prefix="test-run-", dir=os.environ[DISK_VARIABLE]) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def java_tools() -> Iterator[None]:
    """The JVM that Apache Kafka's tools run in."""
    with tools_process():
        yield


@pytest.fixture(scope="module", autouse=True)
def module_sockets() -> Iterator[None]:
    """Set up before the module's fixtures, so that a socket which one of them has lost is blamed on this module."""
    with lost_sockets_collected():
        yield
