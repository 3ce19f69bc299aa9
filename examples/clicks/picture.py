"""Picture of a run: records per second and the lag of the queries over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

INK, MUTED, GRID = "#1f2328", "#656d76", "#d8dee4"
GENERATED: Final = "#8c959f"
COLOURS: Final = ("#0969da", "#bc4c00", "#1a7f37", "#8250df")
_WIDTH, _HEIGHT = 10.0, 6.4
_PAUSE_S: Final = 5.0
_TOUCH_S: Final = 0.001


def draw(
    path: Path,
    *,
    title: str,
    generated: Sequence[tuple[float, int]],
    reports: Mapping[str, Sequence[Mapping[str, Any]]],
    behind: Mapping[str, Sequence[tuple[float, int]]],
) -> None:
    """Draw the picture to `path`.

    generated: (seconds, records so far). reports: the batches of each query, with `at`, `rows` and `took_s`.
    behind: (seconds, records of lag) of each query.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter

    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(_WIDTH, _HEIGHT), dpi=130, layout="constrained"
    )
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12)
    _step(above, _rates(generated), GENERATED, "sent by the generator", fill=True)
    for colour, (name, batches) in zip(COLOURS, reports.items(), strict=False):
        points = _batch_rates([batch for batch in batches if batch["rows"] and batch["took_s"] > 0])
        _step(above, points, colour, f"{name}: read")
        below.step(*zip(*behind[name], strict=True), where="post", color=colour, linewidth=1.5, label=name)
    above.set_ylabel("records / s", color=MUTED)
    below.set_ylabel("records behind", color=MUTED)
    below.set_xlabel("seconds since the start", color=MUTED)
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.grid(visible=True, color=GRID, linewidth=0.6)
        axes.tick_params(colors=MUTED, labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(GRID)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _at: _short(value)))
        axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper right")
    figure.savefig(path)
    plt.close(figure)


def _rates(generated: Sequence[tuple[float, int]]) -> list[tuple[float, float, float]]:
    """Return (from, to, records per second) of intervals of at least a second."""
    found: list[tuple[float, float, float]] = []
    start = 0
    for at in range(1, len(generated)):
        passed = generated[at][0] - generated[start][0]
        if passed >= 1.0 or at == len(generated) - 1:
            if passed > 0:
                count = generated[at][1] - generated[start][1]
                found.append((generated[start][0], generated[at][0], count / passed))
            start = at
    return found


def _batch_rates(batches: Sequence[Mapping[str, Any]]) -> list[tuple[float, float, float]]:
    """Return (from, to, records per second) of each batch. It extends to the next batch if that begins soon."""
    found: list[tuple[float, float, float]] = []
    for at, batch in enumerate(batches):
        end = batch["at"] + batch["took_s"]
        if at + 1 < len(batches) and batches[at + 1]["at"] - end < _PAUSE_S:
            end = max(end, batches[at + 1]["at"])
        found.append((batch["at"], end, batch["rows"] / (end - batch["at"])))
    return found


def _step(
    axes: Any, points: Sequence[tuple[float, float, float]], colour: str, label: str, *, fill: bool = False
) -> None:
    if not points:
        return
    xs: list[float] = []
    ys: list[float] = []
    for start, end, rate in points:
        if xs and start - xs[-1] < _TOUCH_S:  # They meet: no way down to zero and up again.
            del xs[-1], ys[-1]
            xs += [start, end, end]
            ys += [rate, rate, 0.0]
            continue
        xs += [start, start, end, end]
        ys += [0.0, rate, rate, 0.0]
    if fill:
        axes.fill_between(xs, ys, color=colour, alpha=0.35, linewidth=0, label=label)
    else:
        axes.plot(xs, ys, color=colour, linewidth=1.5, label=label)


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value / 1e3:g} k" if value >= 1e3 else f"{value:g}"
