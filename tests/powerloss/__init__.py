"""Power loss: the storage on a disk in memory, images of what a crash would leave of it, and what they open as."""
