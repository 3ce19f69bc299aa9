"""An analysis as tables of text: Markdown as it is, and what the page is made from. Knows no Spark and no HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.analysis import Analysis, Row
from bench.cells import JUDGED, YARDSTICK
from bench.machine import STOLEN_MAX


@dataclass(frozen=True)
class Field:
    """One field of a table: text, what it sorts by, and how it is coloured (good, bad, or neither)."""

    text: str
    sort: float | str | None = None
    mood: str = ""


@dataclass
class Table:
    """A table with a title and a sentence about how to read it."""

    name: str
    title: str
    note: str
    head: list[str]
    rows: list[list[Field]] = field(default_factory=list)


def short(value: float) -> str:
    """Three significant digits, or whole numbers: nobody believes more."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def spread(row: Row) -> str:
    """Median and, with more than one round, the range."""
    if row["count"] == 1 or short(row["low"]) == short(row["high"]):
        return short(row["median"])
    return f"{short(row['median'])} [{short(row['low'])}-{short(row['high'])}]"


def tables(found: Analysis) -> Iterator[Table]:
    """All tables of the report, in order."""
    if found.goals():
        yield goals(found)
    if set(found.peers) - {YARDSTICK, JUDGED} and JUDGED in found.peers:
        yield variants(found)
    for workload in dict.fromkeys(cell["workload"] for cell in found.cells):
        yield figures(found, workload)
    if found.percentiles:
        yield percentiles(found)
    if found.against is not None:
        yield changes(found)


def goals(found: Analysis) -> Table:
    """Each goal beside what was reached."""
    note = f"kproc on processes (`{JUDGED}`) beside Apache Kafka; ratios are paired within each round: median [range]."
    table = Table("goals", "Goals", note, ["cell", "metric", "Kafka", "kproc", "ratio", "goal", "verdict"])
    for row in found.goals():
        key = (row["cell"], row["metric"])
        words, is_met = found.verdict(row)
        verdict = "no figure" if is_met is None else "met" if is_met else "missed"
        ratio = found.to_yardstick.get((*key, JUDGED))
        table.rows.append(
            [
                Field(row["cell"]),
                Field(f"{row['metric']}, {row['unit']}"),
                _figure(found, row, YARDSTICK, with_ratio=False),
                _figure(found, row, JUDGED, with_ratio=False),
                Field(f"{spread(ratio)}", ratio["median"]) if ratio else Field("-"),
                Field(words),
                Field(verdict, verdict, {"met": "good", "missed": "bad"}.get(verdict, "")),
            ]
        )
    return table


def variants(found: Analysis) -> Table:
    """The judged broker over every other transport, by each cell's first metric."""
    others = [name for name in found.peers if name not in (YARDSTICK, JUDGED)]
    note = (
        f"How many times better `{JUDGED}` is than each variant in the first metric of each cell: above 1 it wins, "
        "below 1 it loses. Median of the ratios paired within each round."
    )
    table = Table("variants", "Processes against the other transports", note, ["cell", "metric", *others])
    for cell in found.cells:
        rows = found.metrics(cell["cell"])
        if not rows:
            continue
        row = rows[0]
        fields = [Field(cell["cell"]), Field(f"{row['metric']}, {row['unit']}")]
        for name in others:
            ratio = found.of_judged.get((cell["cell"], row["metric"], name))
            if ratio is None or ratio["median"] == 0:
                fields.append(_nothing(found, cell["cell"], name))
                continue
            better = ratio["median"] if row["is_higher_better"] else 1 / ratio["median"]
            fields.append(
                Field(f"{better:.2f}", better, "good" if better > 1.03 else "bad" if better < 0.97 else "")
            )
        table.rows.append(fields)
    return table


def figures(found: Analysis, workload: str) -> Table:
    """All metrics of a workload on all brokers."""
    cells = [cell for cell in found.cells if cell["workload"] == workload]
    notes = []
    for cell in cells:
        loop = f" ({cell['loop']} loop)" if cell["loop"] else ""
        notes.append(f"`{cell['cell']}`: {cell['title']}{loop}")
    names = {cell["cell"] for cell in cells}
    told = {(cell, peer) for cell, _, peer in found.summary} | found.failures.keys() | found.empties.keys()
    peers = [peer for peer in found.peers if any((name, peer) in told for name in names)]
    table = Table(workload, workload.capitalize(), "; ".join(notes) + ".", ["cell", "metric", *peers])
    for cell in cells:
        rows = found.metrics(cell["cell"])
        if not rows:
            fields = [_nothing(found, cell["cell"], name) for name in peers]
            table.rows.append([Field(cell["cell"]), Field("-"), *fields])
        for row in rows:
            arrow = "more" if row["is_higher_better"] else "less"
            head = [Field(cell["cell"]), Field(f"{row['metric']}, {row['unit']} ({arrow})")]
            table.rows.append([*head, *(_figure(found, row, name) for name in peers)])
    return table


def percentiles(found: Analysis) -> Table:
    """Latencies from the merged histograms of all rounds."""
    note = "Microseconds, from the merged histograms of all rounds; never compare an open with a closed loop."
    table = Table("percentiles", "Percentiles", note, ["cell", "what", "broker"])
    fractions: list[float] = sorted({fraction for rows in found.percentiles.values() for fraction, _ in rows})
    table.head += ["max" if fraction == 1 else f"p{fraction * 100:g}" for fraction in fractions]
    places = {cell["cell"]: place for place, cell in enumerate(found.cells)}
    order = {name: place for place, name in enumerate(found.peers)}
    for key in sorted(found.percentiles, key=lambda key: (places[key[0]], key[1], order[key[2]])):
        values = dict(found.percentiles[key])
        fields = [
            Field(short(values[one]), values[one]) if one in values else Field("-") for one in fractions
        ]
        table.rows.append([Field(key[0]), Field(key[1]), Field(key[2]), *fields])
    return table


def changes(found: Analysis) -> Table:
    """This commit beside another; the worst first."""
    note = (
        f"Commit {found.commit} beside {found.against}. `worse`, `better`: the ranges of the rounds do not touch and "
        "the medians differ by 5 % or more. Runs of two commits are not paired: look at Kafka's rows for what the "
        "machine did."
    )
    head = ["cell", "metric", "broker", "before", "now", "now / before", "verdict"]
    table = Table("changes", "Changes between commits", note, head)
    for row in found.changes:
        before = {name: row[f"{name}_before"] for name in ("median", "low", "high", "count")}
        mood = {"worse": "bad", "better": "good"}.get(row["verdict"], "")
        table.rows.append(
            [
                Field(row["cell"]),
                Field(f"{row['metric']}, {row['unit']}"),
                Field(row["peer"]),
                Field(spread(before), before["median"]),
                Field(spread(row), row["median"]),
                Field(f"{row['change']:.2f}", row["change"]),
                Field(row["verdict"], row["verdict"], mood),
            ]
        )
    return table


def _figure(found: Analysis, row: Row, peer: str, *, with_ratio: bool = True) -> Field:
    """Median [range] (ratio to Kafka), coloured by the ratio."""
    key = (row["cell"], row["metric"], peer)
    mine = found.summary.get(key)
    if mine is None:
        return _nothing(found, row["cell"], peer)
    ratio = found.to_yardstick.get(key)
    if ratio is None or not with_ratio:
        return Field(spread(mine), mine["median"])
    gain = ratio["median"] if row["is_higher_better"] else 1 / ratio["median"] if ratio["median"] else 1.0
    mood = "good" if gain > 1.03 else "bad" if gain < 0.97 else ""
    return Field(f"{spread(mine)} ({short(ratio['median'])}x)", mine["median"], mood)


def _nothing(found: Analysis, cell: str, peer: str) -> Field:
    if (cell, peer) in found.empties:
        return Field("empty")
    return Field("failed", mood="bad") if (cell, peer) in found.failures else Field("-")


# -- Markdown


def head_lines(found: Analysis) -> list[str]:
    """Where, when and with which code; a warning where the machine was not quiet."""
    run = found.runs[-1]
    changes = " with local changes" if run["has_local_changes"] else ""
    rounds = sum(1 for _ in found.runs)
    lines = [
        f"Commit {found.commit}{changes} · {run['cpu']}, {run['cores']} cores, {run['memory_gb']:g} GB · "
        f"Linux {run['kernel']} · Python {run['python']} · {run['java']} · {run['time']} · "
        f"`kproc bench compare {' '.join(run['arguments'] or [])}`{f' and {rounds - 1} more' if rounds > 1 else ''}.",
        "Load generator and broker share these cores. Median [smallest-largest] over the rounds; in parentheses the "
        f"ratio to {YARDSTICK}, paired within each round. `group` answers acks=all after fdatasync; `none`, like Kafka "
        "by default, does not.",
    ]
    if run["note"]:
        lines.append(run["note"])
    if not all(one["is_quiet"] for one in found.runs):
        loads = ", ".join(f"{one['load_before']:g}" for one in found.runs)
        lines.append(f"**Not a quiet machine (load {loads} at the start): not to be quoted.**")
    lines += [
        f"**The host gave {one['stolen']:.0%} of the CPU time that was wanted to other machines (up to "
        f"{one['stolen_max']:.0%} around one run): not to be quoted.**"
        for one in found.runs
        if one["stolen"] is not None and one["stolen"] > STOLEN_MAX
    ]
    return lines


def problem_lines(found: Analysis) -> list[str]:
    """Every failure and every empty cell, with its reason."""
    lines = [
        f"**{cell}, {peer}: failed in {row['failed']} of {row['rounds']} rounds**: {' '.join(str(row['why']).split())}"
        for (cell, peer), row in sorted(found.failures.items())
    ]
    reasons: dict[tuple[str, str], list[str]] = {}
    for (cell, peer), why in sorted(found.empties.items()):
        reasons.setdefault((peer, why), []).append(cell)
    everything = {cell["cell"] for cell in found.cells}
    for (peer, why), cells in reasons.items():
        where = "all cells" if set(cells) == everything else ", ".join(cells)
        lines.append(f"{peer} is empty in {where}: {why}")
    return lines


def markdown(found: Analysis, plots: list[tuple[str, str]]) -> str:
    """The whole report; `plots` are (file, title)."""
    lines = ["# kproc beside Apache Kafka and beside itself", ""]
    for line in head_lines(found):
        lines += [line, ""]
    if problems := problem_lines(found):
        lines += ["## What is missing", "", *(f"- {line}" for line in problems), ""]
    for table in tables(found):
        lines += [f"## {table.title}", "", table.note, ""]
        lines += ["| " + " | ".join(table.head) + " |", "|" + "---|" * len(table.head)]
        for row in table.rows:
            texts = [
                f"**{one.text}**" if one.text in ("missed", "worse", "failed") else one.text for one in row
            ]
            lines.append("| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |")
        lines.append("")
    if plots:
        lines += ["## Plots", "", *(f"![{title}]({name})\n" for name, title in plots)]
    return "\n".join(lines).rstrip() + "\n"
