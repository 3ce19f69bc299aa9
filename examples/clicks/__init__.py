"""Example: send a click stream through a broker and Spark, and verify the results. README.md shows how to run it."""
