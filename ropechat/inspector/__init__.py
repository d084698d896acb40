"""Presenting a trace: tables, JSON lines, and explanations of why a token was sampled."""
