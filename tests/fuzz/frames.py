"""Frames of every API and version, made from the codec's schemas by functions that are compiled once.

A maker appends its field's bytes, so that strings can be written that no codec of ours would: not UTF-8, too long,
null where null is not allowed. What may end the connection is told by `is_rough`: it goes last on its connection.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kproc.broker.request.own_requests import PRIVATE_API_KEY
from kproc.wire import codec
from kproc.wire.header import ApiKey, first_flexible
from kproc.wire.primitives import encode_unsigned_varint
from kproc.wire.schema import FIXED_CODES, Field, Schema
from tests.fuzz import values
from tests.support import mutate
from tests.support.well_formed import pool_of

Make = Callable[[bytearray], None]
# They keep the frame's length right, so that only what is in it is wrong.
DAMAGES: Final = (
    mutate.flip_bits, mutate.cut_short, mutate.telling_int32, mutate.telling_int16, mutate.long_varint,
    mutate.random_tail, mutate.doubled_piece,
)  # fmt: skip
# How likely a field is at its edge, drawn for each request.
WILDNESS: Final = (0.0, 0.03, 0.03, 0.1, 0.4)
ROUGHNESS: Final = 0.002  # How likely a string is none.
_LONG_ARRAY: Final = 300
_FRAME_BYTES_MAX: Final = 1 << 20


class FrameMaker:
    """Makes frames, all from one seed. What answers teach (member ids, sessions) may be added to its pools."""

    def __init__(
        self, source: random.Random, topics: Mapping[str, bytes], served: Mapping[int, Sequence[int]]
    ) -> None:
        self.source = source
        self._random = source.random
        self._wildness = 0.0
        self.is_rough = False
        self.records = values.batches(source, 1_200)
        names = [
            *topics,
            "__consumer_offsets",
            "__cluster_metadata",
            "absent",
            *(f"made-{n}" for n in range(30)),
        ]
        groups = [f"group-{n}" for n in range(12)]
        self.members: list[bytes] = [b"", b"", b"m"]
        self.sessions: list[int] = [0, 0, 1]
        self.pools: dict[str, list[bytes]] = {
            "topic": [name.encode() for name in names],
            "group": [name.encode() for name in groups],
            "config": [name.encode() for name in values.setting_names()],
            "value": [value.encode() for value in values.setting_values()],
            "resource": [name.encode() for name in (*names, *groups, "1", "0", "")],
            "member": self.members,
            "protocol": [b"consumer", b"range", b"range", b"roundrobin", b""],
            "principal": [b"User:ANONYMOUS", b"User:a", b"User:*", b"Group:a", b"nobody"],
            "host": [b"*", b"127.0.0.1", b"10.0.0.7", b""],
            "entity": [b"client-id", b"user"],  # Of "ip" names would be looked up, which is slow.
        }
        self.ids = [*topics.values(), bytes(16), source.randbytes(16)]
        self._makers: dict[tuple[int, int], Make] = {}
        self.choices = [(key, version) for key, versions in served.items() for version in versions]

    def frame(self, correlation_id: int, choice: tuple[int, int] | None = None) -> tuple[int, bytes]:
        """(API key, frame); sets `is_rough`."""
        draw = self._random
        key, version = choice or self.choices[int(draw() * len(self.choices))]
        make = self._makers.get((key, version))
        if make is None:
            schema = codec.schema_of(key, version, "request")
            make = self._makers[key, version] = self._struct(schema, "", ApiKey(key))
        self._wildness = WILDNESS[int(draw() * len(WILDNESS))]
        self.is_rough = False
        out = bytearray(4)
        out += struct.pack(">hhi", key, version, correlation_id)
        client = b"fuzz" if draw() < 0.9 else values.EDGE_TEXTS[int(draw() * len(values.EDGE_TEXTS))]
        out += struct.pack(">h", len(client)) + client if draw() < 0.98 else b"\xff\xff"
        if version >= first_flexible(key):
            out.append(0)
        make(out)
        out[:4] = struct.pack(">i", len(out) - 4)
        return key, bytes(out)

    def own_operation(self, correlation_id: int) -> bytes:
        """A frame for one of kproc's own operations, or nearly one."""
        head = struct.pack(">hhih", PRIVATE_API_KEY, 0, correlation_id, 4) + b"fuzz"
        body = values.odd_json(self.source)
        return struct.pack(">i", len(head) + len(body)) + head + body

    def damaged(self, correlation_id: int) -> bytes:
        """A frame of which something is wrong, but its length."""
        _, frame = self.frame(correlation_id)
        if len(frame) > 5_000 and self._random() < 0.9:
            _, frame = self.frame(correlation_id)
        if len(frame) < 20:  # Too short to be hit at random.
            return mutate.random_tail(frame, self.source)
        return self.source.choice(DAMAGES)(frame, self.source)

    # -- makers ----------------------------------------------------------------------------------------------------

    def _struct(self, schema: Schema, inside: str, key: ApiKey) -> Make:
        steps = [self._field(field, schema, inside, key) for field in schema.fields if field.tag is None]
        tags = sorted((field.tag, field) for field in schema.fields if field.tag is not None)
        tagged = [(tag, self._field(field, schema, inside, key)) for tag, field in tags]
        is_flexible, draw = schema.is_flexible, self._random

        def make(out: bytearray) -> None:
            for step in steps:
                step(out)
            if not is_flexible:
                return
            if not tagged and draw() < 0.98:
                out.append(0)
                return
            block, count = bytearray(), 0
            for tag, step in tagged:
                if draw() < 0.5:
                    value = bytearray()
                    step(value)
                    block += encode_unsigned_varint(tag) + encode_unsigned_varint(len(value)) + value
                    count += 1
            if draw() < 0.05:
                block += encode_unsigned_varint(1_000) + b"\3abc"
                count += 1
            out.append(count)
            out += block

        return make

    def _field(self, field: Field, schema: Schema, inside: str, key: ApiKey) -> Make:
        one = self._one(field, schema, inside, key)
        return self._array(field, schema, one) if field.is_array else one

    def _one(self, field: Field, schema: Schema, inside: str, key: ApiKey) -> Make:
        if field.kind == "struct":
            assert field.struct is not None
            make = self._struct(field.struct, field.name, key)
            return self._nullable(make) if field.is_nullable and not field.is_array else make
        is_nullable = field.is_nullable and not field.is_array
        if field.kind == "string":
            return self._string(self._pool(field.name, inside, key), schema.is_flexible, is_nullable)
        if field.kind == "bytes":
            pool = self.records if field.name == "records" else [*values.BYTES]
            return self._bytes(pool, schema.is_flexible, is_nullable)
        if field.kind == "uuid":
            return self._fixed(self.ids, [bytes(16), b"\xff" * 16])
        if field.name == "session_id":
            return self._session
        pack = struct.Struct(">" + FIXED_CODES[field.kind]).pack
        if field.kind == "bool":
            return self._fixed([b"\0", b"\1"], [b"\0", b"\1", b"\2"])
        sane = [pack(value) for value in values.number_sane(field.kind, field.name)]
        return self._fixed(sane, [pack(value) for value in values.number_edges(field.kind, field.name)])

    def _pool(self, name: str, inside: str, key: ApiKey) -> list[bytes]:
        if name == "member_id":
            return self.pools["member"]
        if name == "entity_type":
            return self.pools["entity"]
        if name.removesuffix("_filter") in ("principal", "host"):
            return self.pools[name.removesuffix("_filter")]
        if key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP) and "protocol" in inside + name:
            return self.pools["protocol"]
        return self.pools[pool_of(name, inside)]

    def _fixed(self, sane: Sequence[bytes], edges: Sequence[bytes]) -> Make:
        draw, sane_count, edge_count = self._random, len(sane), len(edges)

        def make(out: bytearray) -> None:
            if draw() < self._wildness:
                out += edges[int(draw() * edge_count)]
            else:
                out += sane[int(draw() * sane_count)]

        return make

    def _session(self, out: bytearray) -> None:
        out += struct.pack(">i", self.sessions[int(self._random() * len(self.sessions))])

    def _string(self, pool: list[bytes], is_flexible: bool, is_nullable: bool) -> Make:
        draw, edges, bad = self._random, values.EDGE_TEXTS, values.BAD_TEXTS

        def make(out: bytearray) -> None:
            luck = draw()
            if luck < ROUGHNESS * (self._wildness > 0):
                self.is_rough = True
                text = bad[int(draw() * len(bad))] if draw() < 0.8 else None
            elif is_nullable and luck > 0.85:
                text = None
            elif draw() < self._wildness:
                text = edges[int(draw() * len(edges))]
            else:
                text = pool[int(draw() * len(pool))]
            if text is None:
                out += b"\0" if is_flexible else b"\xff\xff"
            elif is_flexible:
                out += encode_unsigned_varint(len(text) + 1) + text
            else:
                out += struct.pack(">H", len(text) & 0xFFFF) + text

        return make

    def _bytes(self, pool: Sequence[bytes], is_flexible: bool, is_nullable: bool) -> Make:
        draw = self._random

        def make(out: bytearray) -> None:
            if is_nullable and draw() < 0.05:
                out += b"\0" if is_flexible else b"\xff\xff\xff\xff"
                return
            data = pool[int(draw() * len(pool))]
            out += encode_unsigned_varint(len(data) + 1) if is_flexible else struct.pack(">i", len(data))
            out += data

        return make

    def _nullable(self, make: Make) -> Make:
        draw = self._random

        def make_nullable(out: bytearray) -> None:
            if draw() < 0.5:
                out += b"\xff"
            else:
                out += b"\1"
                make(out)

        return make_nullable

    def _array(self, field: Field, schema: Schema, one: Make) -> Make:
        draw, is_flexible, is_nullable = self._random, schema.is_flexible, field.is_nullable

        def make(out: bytearray) -> None:
            luck = draw()
            if is_nullable and luck < 0.1:
                out += b"\0" if is_flexible else b"\xff\xff\xff\xff"
                return
            count = 1 if luck < 0.7 else int(luck * 10) - 6
            if luck > 0.97:
                count = 0
            elif luck < self._wildness * 0.04 + 0.1 and len(out) < 2_000:
                count = _LONG_ARRAY
            out += encode_unsigned_varint(count + 1) if is_flexible else struct.pack(">i", count)
            start, width = len(out), 0
            for number in range(count):
                at = len(out)
                if at - start > _FRAME_BYTES_MAX:
                    self.is_rough = True  # Cannot be finished; the frame is short of what it announced.
                    return
                if number and draw() < 0.1:
                    out += out[at - width : at]  # The same again.
                    continue
                one(out)
                width = len(out) - at

        return make
