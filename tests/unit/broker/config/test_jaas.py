"""JAAS lines: options as Java reads them."""

from __future__ import annotations

import pytest

from kproc.broker.config.jaas import JaasError, parse_jaas
from tests.support.cases import in_one_test


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('a.b.M required;', {}),
        ('M REQUIRED\n user_a="x y"\tuser_b=\'"\' // a comment\n /* and "another" */ c=d-e_f.g$ ;', {
            "user_a": "x y", "user_b": '"', "c": "d-e_f.g$",
        }),
        (r'M optional a="say \"hi\" \\ \n \101;=";', {"a": 'say "hi" \\ \n A;='}),
        ('M required a=1 a="2";', {"a": "2"}),
    ],
)  # fmt: skip
def test_options_are_read_as_java_reads_them(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == ("M", options)


@in_one_test(
    "text",
    ["", ";", "M", "M required", "M perhaps;", "M required a;", "M required a=;", "M required a b;", "M required =x;",
     "M required a=x", "M required; N required;", 'M required a="x;', "M required a=\"x\n\";", "M required a=x ]",
     '"a" "required"'],
)  # fmt: skip
def test_a_line_that_is_none_is_refused_without_its_values(text: str) -> None:
    with pytest.raises(JaasError) as refused:
        parse_jaas(text)
    assert "x" not in str(refused.value).replace("expected", "").replace("next", "")
