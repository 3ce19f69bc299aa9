"""The load generator: C sources compiled on demand, and the functions that run it. `kload.h` describes the sources."""
