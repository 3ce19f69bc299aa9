"""What the tests share: starting brokers, speaking raw frames, counting what a process holds."""
