"""The network layer: Acceptor and Processor. Frames in, frames out; nothing here knows a topic."""
