"""`kproc bench`: the benchmarks of a checkout, each with its own command line.

The benchmarks, and the brokers that they compare with, are in `bench/` beside the package. Only a checkout has this
directory. In an installed kproc the command fails with a message. Arguments are passed on unchanged, so that `kproc
bench compare` does the same as `python -m bench.compare`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import typer

from kproc.cli.common import Failure

app = typer.Typer(
    name="bench",
    help="Run benchmarks. They need a checkout of kproc.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
# Context settings of typer that pass all arguments after the command's name to the benchmark, including --help.
AS_THEY_ARE = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
EXTRA = "pip install '.[bench,spark]'"


@app.command("compare", context_settings=AS_THEY_ARE)
def compare(context: typer.Context) -> None:
    """Compare the transports and Apache Kafka."""
    _run("bench.compare", context.args)


@app.command("report", context_settings=AS_THEY_ARE)
def report(context: typer.Context) -> None:
    """Make tables and plots of samples, and find regressions."""
    _run("bench.report", context.args)


@app.command("simulate", context_settings=AS_THEY_ARE)
def simulate(context: typer.Context) -> None:
    """Simulate more cores, with service times measured here."""
    _run("bench.simulate", context.args)


@app.command("sweep", context_settings=AS_THEY_ARE)
def sweep(context: typer.Context) -> None:
    """Measure throughput over processes and connections.

    The Universal Scalability Law is fitted to the samples.
    """
    _run("bench.sweep", context.args)


def _run(module: str, arguments: list[str]) -> None:
    """Run `main(arguments)` of a module in `bench/`, and exit with its result."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "bench" / "compare.py").exists():
        raise Failure(
            f"kproc {module.replace('.', ' ')} needs a checkout of kproc, because the package has no benchmarks: "
            "clone it and install it with pip install -e '.[bench,spark]'; kproc perf needs none"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as problem:
        raise Failure(f"{problem.name} is missing: {EXTRA}") from None
    code = main(arguments)
    if code:
        raise typer.Exit(code)
