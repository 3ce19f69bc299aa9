"""The alert rules and the Grafana board in scripts/monitoring, and the metrics that their expressions name."""

from __future__ import annotations

import json
import re
from pathlib import Path

MONITORING = Path(__file__).resolve().parents[2] / "scripts" / "monitoring"
FUNCTIONS = {
    "delta", "deriv", "histogram_quantile", "increase", "label_values", "predict_linear", "rate", "resets", "sum",
    "time",
}  # fmt: skip
GROUPING = {"by", "without", "on", "ignoring"}
WORDS = {"and", "or", "unless", "bool"}
TOKEN = re.compile(
    r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<range>\[[^\]]*\])|(?P<name>[A-Za-z_:][\w:]*)'
    r"|(?P<number>\d+(?:\.\d+)?)|(?P<sign>=~|!~|!=|==|<=|>=|[-+*/<>={}(),]))"
)
Named = tuple[str, set[str]]


def tokens_of(expression: str) -> list[tuple[str, str]]:
    """Kind and text of each token; AssertionError where it is no PromQL of the kind used here."""
    position, answer = 0, []
    while expression[position:].strip():
        found = TOKEN.match(expression, position)
        assert found is not None, f"at {position}: {expression}"
        answer.append((str(found.lastgroup), found.group(str(found.lastgroup))))
        position = found.end()
    return answer


def names_in(expression: str) -> tuple[list[Named], set[str]]:
    """Every metric with the labels that are matched, and the labels that are grouped by."""
    tokens = [*tokens_of(expression), ("end", "")]
    metrics: list[Named] = []
    grouped: set[str] = set()
    at = 0

    def until(closing: str) -> list[str]:
        nonlocal at
        inside = []
        while tokens[at][1] != closing:
            assert tokens[at][0] != "end", expression
            inside.append(tokens[at][1] if tokens[at][0] == "name" else "")
            at += 1
        return [name for name in inside if name]

    while tokens[at][0] != "end":
        kind, text = tokens[at]
        at += 1
        if kind != "name" or text in WORDS:
            continue
        if text in GROUPING:
            assert tokens[at][1] == "(", expression
            grouped |= set(until(")"))
        elif tokens[at][1] == "(" or tokens[at][1] in GROUPING:
            assert text in FUNCTIONS, f"{text} in {expression}"
            if text == "label_values":
                at += 1
                metrics.append((tokens[at][1], set()))
                grouped |= set(until(")")[1:])
        else:
            metrics.append((text, set(until("}")) if tokens[at][1] == "{" else set()))
    assert metrics, expression
    return metrics, grouped


def alerts() -> list[str]:
    text = (MONITORING / "alerts.yml").read_text()
    found = re.findall(r"^ +expr: (.*)$", text, re.MULTILINE)
    assert len(found) == text.count("- alert: ") > 10
    return [str(each) for each in found]


def board() -> list[str]:
    content = json.loads((MONITORING / "grafana.json").read_text())
    queries = [each["query"] for each in content["templating"]["list"] if each["type"] == "query"]
    panels = [panel for panel in content["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in content["panels"]}) == len(content["panels"])
    return queries + [target["expr"] for panel in panels for target in panel["targets"]]
