"""The n-th system call of a path fails, for every n, with every error that the call can have."""
