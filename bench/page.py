"""The report as one HTML page: no request to anywhere, tables that sort, light and dark as the reader likes it."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from typing import Final

from bench.analysis import Analysis
from bench.plots import Plot
from bench.tables import Field, Table, head_lines, problem_lines, tables

STYLE: Final = """
:root { --ink: #1f2328; --soft: #59636e; --ground: #ffffff; --raised: #f6f8fa; --line: #d0d7de;
  --good: #0a7d43; --bad: #b3261e; --link: #0550ae; color-scheme: light; }
:root[data-theme=dark] { --ink: #e6edf3; --soft: #9198a1; --ground: #0d1117; --raised: #161b22; --line: #30363d;
  --good: #4ac26b; --bad: #ff7b72; --link: #79b8ff; color-scheme: dark; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
header, main { max-width: 1240px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 24px; display: flex; gap: 16px; align-items: baseline; justify-content: space-between; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 20px; margin: 40px 0 6px; }
p.note, p.where { color: var(--soft); margin: 4px 0 10px; max-width: 110ch; font-size: 13.5px; }
nav { position: sticky; top: 0; z-index: 3; background: var(--ground); border-bottom: 1px solid var(--line);
  max-width: 1240px; margin: 12px auto 0; padding: 8px 24px; display: flex; flex-wrap: wrap; gap: 4px 16px; }
nav a { color: var(--link); text-decoration: none; font-size: 14px; } nav a:hover { text-decoration: underline; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
tr:last-child td { border-bottom: 0; } tbody tr:hover td { background: var(--raised); }
th { background: var(--raised); cursor: pointer; user-select: none; font-weight: 600; }
th:first-child, td:first-child, th.text, td.text { text-align: left; }
td:first-child, th:first-child { position: sticky; left: 0; background: var(--ground); font-weight: 600; }
th:first-child { background: var(--raised); }
th[aria-sort=ascending]::after { content: " \\2191"; } th[aria-sort=descending]::after { content: " \\2193"; }
td.good { color: var(--good); } td.bad { color: var(--bad); }
ul.problems { font-size: 13.5px; } ul.problems li { margin: 3px 0; overflow-wrap: anywhere; }
strong.warn { color: var(--bad); } code { font-size: 12.5px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(560px, 100%), 1fr)); gap: 16px; }
.plots img { width: 100%; border: 1px solid var(--line); border-radius: 8px; }
:root:not([data-theme=dark]) img.dark, :root[data-theme=dark] img.light { display: none; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0; }
.card { border: 1px solid var(--line); border-radius: 8px; background: var(--raised); padding: 10px 16px; }
.card b { display: block; font-size: 22px; } .card span { color: var(--soft); font-size: 13px; }
button { font: inherit; font-size: 13px; color: var(--ink); background: var(--raised); cursor: pointer;
  border: 1px solid var(--line); border-radius: 6px; padding: 3px 12px; }
footer { max-width: 1240px; margin: 40px auto 24px; padding: 0 24px; color: var(--soft); font-size: 13px; }
@media print { nav, button { display: none; } .scroll { overflow: visible; } }
"""
SCRIPT: Final = """
const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
const setTheme = (theme) => { root.dataset.theme = theme; };
setTheme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
document.querySelector("button.theme").addEventListener("click",
  () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));
const key = (row, at) => { const cell = row.cells[at], number = parseFloat(cell.dataset.sort);
  return Number.isNaN(number) ? cell.textContent : number; };
const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
  : typeof a === "number" ? -1 : typeof b === "number" ? 1 : a.localeCompare(b);
for (const head of document.querySelectorAll("th")) {
  const sort = () => {
    const body = head.closest("table").tBodies[0], at = head.cellIndex;
    const order = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order === 1 ? "ascending" : "descending");
    body.append(...[...body.rows].sort((a, b) => order * compare(key(a, at), key(b, at))));
  };
  head.tabIndex = 0;
  head.addEventListener("click", sort);
  head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
}
"""
TEXT_COLUMNS: Final = {"cell", "metric", "what", "broker", "verdict", "goal"}


def page(found: Analysis, plots: Sequence[Plot]) -> str:
    """The whole page."""
    all_tables = list(tables(found))
    links = [(table.name, table.title) for table in all_tables]
    if plots:
        links.insert(1 if found.goals() else 0, ("plots", "Plots"))
    parts = [_opening(found), _cards(found), _problems(found)]
    for number, table in enumerate(all_tables):
        parts.append(_table(table))
        if number == 0 and plots:
            parts.append(_plots(plots))
    nav = "".join(f'<a href="#{name}">{html.escape(title)}</a>' for name, title in links)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>kproc beside Apache Kafka, commit {html.escape(found.commit)}</title>\n"
        f"<style>{STYLE}</style>\n</head>\n<body>\n"
        '<header><h1>kproc beside Apache Kafka</h1><button class="theme">light / dark</button></header>\n'
        f"<nav>{nav}</nav>\n<main>\n{''.join(parts)}</main>\n"
        "<footer>A click on a column's head sorts by it. Raw samples, schema and method: bench/README.md. Kafka is a "
        "trademark of the Apache Software Foundation.</footer>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _prose(text: str) -> str:
    """The few marks of Markdown that the tables use."""
    text = html.escape(text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*\*(.+?)\*\*", r'<strong class="warn">\1</strong>', text)


def _opening(found: Analysis) -> str:
    return "".join(f'<p class="where">{_prose(line)}</p>\n' for line in head_lines(found))


def _cards(found: Analysis) -> str:
    """Return the figures that a reader looks for first."""
    verdicts = [found.verdict(row)[1] for row in found.goals()]
    runs = sum(row["count"] for row in found.summary.values() if row["place"] == 0)
    cards = [(f"{runs:,}", "runs of one cell on one broker")]
    if verdicts:
        cards.insert(0, (f"{verdicts.count(True)} of {len(verdicts)}", "goals met"))
    failed = sum(row["failed"] for row in found.failures.values())
    cards.append((f"{failed}", "failed runs"))
    if found.against is not None:
        worse = sum(row["verdict"] == "worse" for row in found.changes)
        cards.append((f"{worse}", f"worse than {found.against}"))
    shown = "".join(f'<div class="card"><b>{value}</b><span>{words}</span></div>' for value, words in cards)
    return f'<div class="cards">{shown}</div>\n'


def _problems(found: Analysis) -> str:
    lines = problem_lines(found)
    if not lines:
        return ""
    shown = "".join(f"<li>{_prose(line)}</li>" for line in lines)
    is_open = " open" if found.failures else ""
    words = f"What is missing, and why ({len(lines)})"
    return f'<details{is_open}><summary>{words}</summary><ul class="problems">{shown}</ul></details>\n'


def _plots(plots: Sequence[Plot]) -> str:
    images = []
    for plot in plots:
        for theme, png in plot.png.items():
            data = base64.b64encode(png).decode()
            title = html.escape(plot.title, quote=True)
            images.append(f'<img class="{theme}" alt="{title}" src="data:image/png;base64,{data}">')
    return f'<h2 id="plots">Plots</h2>\n<div class="plots">{"".join(images)}</div>\n'


def _table(table: Table) -> str:
    text = {number for number, name in enumerate(table.head) if name in TEXT_COLUMNS}
    head = "".join(
        f"<th{' class=text' if number in text else ''}>{html.escape(name)}</th>"
        for number, name in enumerate(table.head)
    )
    rows = "".join(
        f"<tr>{''.join(_field(field, is_text=number in text) for number, field in enumerate(row))}</tr>\n"
        for row in table.rows
    )
    return (
        f'<h2 id="{table.name}">{html.escape(table.title)}</h2>\n<p class="note">{_prose(table.note)}</p>\n'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n'
    )


def _field(field: Field, *, is_text: bool) -> str:
    classes = " ".join(filter(None, [field.mood, "text" if is_text else ""]))
    attributes = f' class="{classes}"' if classes else ""
    if isinstance(field.sort, float | int):
        attributes += f' data-sort="{field.sort}"'
    return f"<td{attributes}>{html.escape(field.text)}</td>"
