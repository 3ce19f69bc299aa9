"""The command line and the embedded broker against running brokers."""
