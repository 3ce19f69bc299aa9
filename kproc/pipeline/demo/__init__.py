"""`kproc pipeline demo`: send a click stream through the broker and Spark, and verify the results."""
