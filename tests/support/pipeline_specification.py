"""Specifications of pipelines: a whole one, and one whose master and connector the test chooses."""

from __future__ import annotations

ORDERS = """\
[pipeline]
name = "orders"
checkpoint = "state/orders"
trigger = "500 ms"

[spark]
master = "local[2,4]"
conf."spark.sql.shuffle.partitions" = 2

[[source]]
name = "orders"
topic = "orders"
starting = "earliest"
format = "json"
schema = { id = "long", at = "timestamp", amount = "double" }
metadata = ["key"]
max_offsets_per_trigger = 1000
watermark = { column = "at", delay = "10 seconds" }
options.kafka.isolation.level = "read_committed"

[[source]]
name = "customers"
csv = "customers.csv"
options = { header = true }

[[transform]]
name = "per_minute"
sql = '''
  select window(at, '1 minute') w, sum(amount) s
  from orders group by 1
'''

[[transform]]
name = "clean"
python = "steps.py:clean"
inputs = ["orders", "customers"]
arguments = { limit = 3 }

[[sink]]
name = "to_topic"
input = "per_minute"
topic = "orders.per_minute"
key = "cast(w.start as string)"
trigger = "available-now"

[[sink]]
name = "lake"
input = "clean"
parquet = "/lake"
partition_by = "day"
"""


CONNECTOR_SPEC = """
[pipeline]
name = "p"
checkpoint = "state"
connector = "{connector}"
[spark]
master = "{master}"
conf = {{ "spark.ui.enabled" = true, "spark.x" = 2 }}
[[source]]
name = "t"
topic = "t"
[[sink]]
name = "out"
input = "t"
noop = true
"""
