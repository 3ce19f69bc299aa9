"""The cleaner: retention, compaction, checkpoints, deleted and stray directories."""
