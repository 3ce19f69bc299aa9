"""`kproc pipeline demo`: a click stream through broker and Spark, and the proof that nothing was lost on the way."""
