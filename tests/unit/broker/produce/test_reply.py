"""ProduceTemplate: it makes the bytes that the encoder makes."""

from __future__ import annotations

from kproc.broker.handler.produce_fast_path import FIRST_VERSION
from kproc.broker.produce.reply import ProduceTemplate
from kproc.wire.hot import encode_produce_response
from tests.support.cases import in_one_test

VERSIONS = range(FIRST_VERSION, 14)


@in_one_test("version", VERSIONS)
@in_one_test("name", ["t", "t" * 126, "t" * 249])
def test_an_answer_is_the_one_that_the_encoder_makes(version: int, name: str) -> None:
    template = ProduceTemplate(version, name, b"i" * 16, 3)
    record = template.pack(
        b"connectisequ",
        template.length,
        (99).to_bytes(4, "big"),
        template.before,
        2**40,
        -1,
        7,
        template.after,
    )
    row = (3, 0, 2**40, -1, 7, None, ())
    frame = encode_produce_response(version, 99, [(name, b"i" * 16, [row])])
    assert record == b"connectisequ" + bytes(4) + frame
    assert len(record) == template.bytes
