"""The report's plots, drawn by matplotlib without a screen; each in a light and a dark version."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.analysis import Analysis
from bench.cells import JUDGED, YARDSTICK
from bench.tables import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which people tell apart however they see colours.
COLOURS: Final = (
    "#999999",
    "#0072B2",
    "#E69F00",
    "#CC79A7",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#5F6CB8",
    "#B8860B",
)
THEMES: Final = {
    "light": {"ink": "#1f2328", "ground": "#ffffff", "grid": "#d0d7de"},
    "dark": {"ink": "#e6edf3", "ground": "#0d1117", "grid": "#30363d"},
}
PIXELS_PER_INCH: Final = 110
PALETTE_COLOURS: Final = 96


@dataclass(frozen=True)
class Plot:
    """One picture in both themes, as PNG."""

    name: str
    title: str
    png: dict[str, bytes]


Drawing = Callable[[Any, Analysis], bool]


def plots(found: Analysis) -> Iterator[Plot]:
    """Return the plots for which there are figures."""
    drawings: tuple[tuple[str, str, tuple[float, float], Drawing], ...] = (
        ("goals", "Goals: kproc on processes over Kafka (log scale; the mark is the goal)", (9, 6.5), _goals),
        ("connections", "Small requests by connections", (8, 4.2), _connections),
        ("latency", "Produce to consume, 1,000 records/s: percentiles", (8, 4.2), _latency),
        ("collapse", "Open loop, 16 connections: p99 by rate", (8, 4.2), _collapse),
        ("cost", "CPU of the broker per GB", (9, 4.6), _cost),
        ("footprint", "Start and memory", (9, 3.6), _footprint),
    )
    for name, title, size, draw in drawings:
        png = {
            theme: drawn for theme in THEMES if (drawn := _draw(found, title, size, draw, theme)) is not None
        }
        if png:
            yield Plot(name, title, png)


def _draw(found: Analysis, title: str, size: tuple[float, float], draw: Drawing, theme: str) -> bytes | None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = THEMES[theme]
    style = {
        "text.color": colours["ink"],
        "axes.labelcolor": colours["ink"],
        "axes.edgecolor": colours["grid"],
        "xtick.color": colours["ink"],
        "ytick.color": colours["ink"],
        "grid.color": colours["grid"],
        "axes.facecolor": colours["ground"],
        "figure.facecolor": colours["ground"],
        "legend.facecolor": colours["ground"],
        "legend.edgecolor": colours["grid"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 9,
    }
    with pyplot.rc_context(style):
        figure = pyplot.figure(figsize=size, dpi=PIXELS_PER_INCH, layout="constrained")
        try:
            if not draw(figure, found):
                return None
            figure.suptitle(title, fontsize=11)
            out = io.BytesIO()
            figure.savefig(out, format="png", metadata={"Software": None})
            return _small(out)
        finally:
            pyplot.close(figure)


def _small(drawn: io.BytesIO) -> bytes:
    """The picture with a palette: a third of the bytes, so that results can be committed."""
    from PIL import Image

    out = io.BytesIO()
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(PALETTE_COLOURS).save(out, format="png", optimize=True)
    return out.getvalue()


def _colour(found: Analysis, peer: str) -> str:
    return COLOURS[found.peers.index(peer) % len(COLOURS)]


def _width(peer: str) -> float:
    return 2.4 if peer in (JUDGED, YARDSTICK) else 1.2


def _plain(axes: Axes, *, x: bool = False, y: bool = False) -> None:
    """Numbers as people write them on a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for wanted, axis in ((x, axes.xaxis), (y, axes.yaxis)):
        if wanted:
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.set_minor_formatter(NullFormatter())


def _goals(figure: Any, found: Analysis) -> bool:
    rows = [row for row in found.goals() if row["goal_ratio"] is not None]
    ratios = [found.to_yardstick.get((row["cell"], row["metric"], JUDGED)) for row in rows]
    shown = [(row, ratio) for row, ratio in zip(rows, ratios, strict=True) if ratio and ratio["median"] > 0]
    if not shown:
        return False
    axes = figure.subplots()
    shown.reverse()
    for place, (row, ratio) in enumerate(shown):
        is_met = found.verdict(row)[1]
        colour = COLOURS[4] if is_met else COLOURS[5]
        axes.plot([ratio["low"], ratio["high"]], [place, place], color=colour, linewidth=2, alpha=0.6)
        axes.plot(ratio["median"], place, "o", color=colour, markersize=6)
        axes.plot(row["goal_ratio"], place, "|", color=COLOURS[1], markersize=13, markeredgewidth=2.5)
    axes.axvline(1, color=COLOURS[0], linewidth=1)
    axes.set_xscale("log")
    _plain(axes, x=True)
    names = [
        f"{row['cell']}, {row['metric']} ({'more' if row['is_higher_better'] else 'less'})"
        for row, _ in shown
    ]
    axes.set_yticks(range(len(shown)), names)
    axes.set_xlabel("kproc / Kafka: green meets the goal, orange misses it; Kafka is the line at 1")
    axes.grid(axis="x", alpha=0.5)
    return True


def _connections(figure: Any, found: Analysis) -> bool:
    points: dict[str, list[tuple[int, Any]]] = {}
    for (cell, metric, peer), row in found.summary.items():
        match = re.fullmatch(r"one-(\d+)", cell)
        if match and metric == "rate":
            points.setdefault(peer, []).append((int(match[1]), row))
    return _lines(figure, found, points, "connections, one request in flight each", "requests/s")


def _lines(
    figure: Any, found: Analysis, points: dict[str, list[tuple[int, Any]]], x_label: str, y_label: str
) -> bool:
    """Median by a number, with the range as a band."""
    if not any(len(rows) > 1 for rows in points.values()):
        return False
    axes = figure.subplots()
    for peer in found.peers:
        rows = sorted(points.get(peer, []), key=lambda point: point[0])
        if not rows:
            continue
        at, medians = [number for number, _ in rows], [row["median"] for _, row in rows]
        axes.plot(
            at, medians, "o-", color=_colour(found, peer), label=peer, linewidth=_width(peer), markersize=4
        )
        low, high = [row["low"] for _, row in rows], [row["high"] for _, row in rows]
        axes.fill_between(at, low, high, color=_colour(found, peer), alpha=0.12)
    axes.set_xscale("log", base=4)
    _plain(axes, x=True, y=True)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.5)
    axes.legend()
    return True


def _latency(figure: Any, found: Analysis) -> bool:
    curves = {peer: rows for (cell, what, peer), rows in found.percentiles.items()
              if cell == "latency-1000" and what == "latency"}  # fmt: skip
    if not curves:
        return False
    axes = figure.subplots()
    labels: list[float] = sorted({fraction for rows in curves.values() for fraction, _ in rows})
    for peer in found.peers:
        if peer in curves:
            at = [labels.index(fraction) for fraction, _ in curves[peer]]
            values = [value for _, value in curves[peer]]
            axes.plot(
                at, values, "o-", color=_colour(found, peer), label=peer, linewidth=_width(peer), markersize=4
            )
    axes.set_yscale("log")
    _plain(axes, y=True)
    axes.set_xticks(range(len(labels)), ["max" if one == 1 else f"p{one * 100:g}" for one in labels])
    axes.set_ylabel("us from the intended send (log)")
    axes.grid(alpha=0.5)
    axes.legend()
    return True


def _collapse(figure: Any, found: Analysis) -> bool:
    if not found.steps:
        return False
    axes = figure.subplots()
    for peer in found.peers:
        steps = [step for step in found.steps.get(peer, []) if step["p99_us"]]
        if not steps:
            continue
        colour = _colour(found, peer)
        by_rate: dict[int, list[float]] = {}  # Of all rounds: the line goes through their medians.
        for step in steps:
            by_rate.setdefault(step["rate"], []).append(step["p99_us"] / 1000)
        medians = [median(values) for values in by_rate.values()]
        axes.plot(list(by_rate), medians, "-", color=colour, label=peer, linewidth=_width(peer))
        for step in steps:
            axes.plot(
                step["rate"], step["p99_us"] / 1000, "o" if step["holds"] else "x", color=colour, markersize=5
            )
    axes.axhline(50, color=COLOURS[0], linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain(axes, x=True, y=True)
    axes.set_xlabel("requests/s that were due (log); x: the broker did not keep up")
    axes.set_ylabel("p99, ms (log); the line is the bound")
    axes.grid(alpha=0.5)
    axes.legend()
    return True


def _bars(axes: Any, found: Analysis, names: list[tuple[str, str]], titles: list[str]) -> None:
    """A group of bars for each (cell, metric), one bar a peer."""
    peers = [peer for peer in found.peers if any((*key, peer) in found.summary for key in names)]
    width = 0.8 / max(1, len(peers))
    for number, peer in enumerate(peers):
        rows = [found.summary.get((*key, peer)) for key in names]
        at = [place + number * width for place, row in enumerate(rows) if row]
        axes.bar(
            at, [row["median"] for row in rows if row], width * 0.92, color=_colour(found, peer), label=peer
        )
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(names))], titles, rotation=25, ha="right")
    axes.grid(axis="y", alpha=0.5)


def _cost(figure: Any, found: Analysis) -> bool:
    cells = [cell["cell"] for cell in found.cells if cell["workload"] in ("produce", "consume")]
    names = [(cell, "CPU") for cell in cells if any((cell, "CPU", peer) in found.summary and
             found.summary[cell, "CPU", peer]["unit"] == "s/GB" for peer in found.peers)]  # fmt: skip
    if not names:
        return False
    axes = figure.subplots()
    _bars(axes, found, names, [cell for cell, _ in names])
    axes.set_ylabel("CPU seconds per GB")
    axes.legend(ncols=3)
    return True


def _footprint(figure: Any, found: Analysis) -> bool:
    wanted = [
        (("ready", "ready"), "start to ready, s"),
        (("idle", "memory"), "idle memory, MB"),
        (("idle", "CPU"), "idle CPU, % of a core"),
        (("idle-10000", "memory"), "KB a connection"),
    ]
    shown = [
        (key, title) for key, title in wanted if any((*key, peer) in found.summary for peer in found.peers)
    ]
    if not shown:
        return False
    keys = [key for key, _ in shown]
    peers = [peer for peer in found.peers if any((*key, peer) in found.summary for key in keys)]
    panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
    panels[0].set_yticks(range(len(peers)), peers)
    panels[0].invert_yaxis()
    for axes, (key, title) in zip(panels, shown, strict=True):
        for place, peer in enumerate(peers):
            if row := found.summary.get((*key, peer)):
                axes.barh(place, row["median"], color=_colour(found, peer))
                axes.annotate(f" {short(row['median'])}", (row["median"], place), va="center", fontsize=8)
        axes.margins(x=0.25)
        axes.set_xlabel(title)
        axes.grid(axis="x", alpha=0.5)
    return True
