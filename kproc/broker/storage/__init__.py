"""The log on disk: Kafka's files, appended to and read by the one Handler that owns a partition."""
