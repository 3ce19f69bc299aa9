"""python -m tests.differential: see the package's text."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.differential.brokers import both_brokers, common_versions, warm_up
from tests.differential.report import Report
from tests.differential.steps import Pair
from tests.differential.themes import THEMES, WITHOUT_RIGHTS
from tests.differential.work import Task, run_all
from tests.support.kafka_jars import missing_reason


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.differential", description=__doc__)
    parser.add_argument("--sequences", type=int, default=50, help="of each theme")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--themes", default=",".join(THEMES), help=f"some of {','.join(THEMES)}")
    parser.add_argument("--at", type=int, help="only the sequence of this number")
    parser.add_argument("--workers", type=int, default=6, help="sequences at once; more of themes that mostly wait")
    parser.add_argument(
        "--fresh", type=int, default=1000, help="sequences after which both brokers are made anew"
    )
    parser.add_argument(
        "--rights", action="store_true", help="as a guest who may do only what some rules allow"
    )
    parser.add_argument("--brokers", help="KPROC_HOST:PORT,KAFKA_HOST:PORT that run already; node.id 1")
    return parser.parse_args()


@contextmanager
def _pair(given: str | None, *, rights: bool) -> Iterator[Pair]:
    if given is None:
        with both_brokers(with_authorizer=rights) as pair:
            yield pair
    else:
        kproc, kafka = given.split(",")
        for bootstrap in (kproc, kafka):
            warm_up(bootstrap)
        yield kproc, kafka


def main() -> int:
    """0 without a difference, 1 with one, 2 when Kafka cannot run here."""
    arguments = _arguments()
    # Started in the background it ignores SIGINT; whichever it gets, no broker and no directory is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.brokers is None and (reason := missing_reason()):
        print(reason, file=sys.stderr)
        return 2
    numbers = range(arguments.sequences) if arguments.at is None else [arguments.at]
    themes = arguments.themes.split(",")
    if arguments.rights:
        themes = [theme for theme in themes if theme not in WITHOUT_RIGHTS]
    if unknown := set(themes) - set(THEMES):
        print(f"no such theme: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    tasks = [Task(theme, number, arguments.seed, arguments.rights) for number in numbers for theme in themes]
    report, known = Report(), dict[str, bool]()
    for first in range(0, len(tasks), arguments.fresh):
        some = tasks[first : first + arguments.fresh]
        with _pair(arguments.brokers, rights=arguments.rights) as pair:
            for result in run_all(pair, some, common_versions(pair), known, workers=arguments.workers):
                for line in report.take(result):
                    print(line, flush=True)
        print(report.progress(len(tasks)), file=sys.stderr, flush=True)
    print(report.ending())
    return 0 if report.is_clean else 1


sys.exit(main())
