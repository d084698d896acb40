"""Batch runs: many prompts from a file, a record for each in the output."""
