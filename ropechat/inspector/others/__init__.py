"""Records of other programs with logprobs: read.py finds the format, formats.py has the fields."""
