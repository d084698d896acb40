"""Markdown: its blocks line by line, what is inside them, and where each character is in the source."""
