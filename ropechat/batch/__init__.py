"""Many prompts from a file: rows, the file of results, and the run over them."""
