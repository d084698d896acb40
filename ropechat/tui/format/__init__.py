"""State to lines of text."""
