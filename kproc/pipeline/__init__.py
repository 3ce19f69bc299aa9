"""Data pipelines on Spark, declared in TOML: sources, transforms, sinks; `kproc pipeline` runs them."""
