"""Other people's test suites against kproc: librdkafka's own and kafka-python's. `scripts/librdkafka-tests`.

`*.toml` say how each test of a suite is expected to end and why, here and on Apache Kafka 4.3; a run compares. What
they say is shown in kproc/COMPATIBILITY.md.
"""
