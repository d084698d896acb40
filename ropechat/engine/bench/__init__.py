"""Benchmarks of a model on this machine, compared with the memory bandwidth."""
