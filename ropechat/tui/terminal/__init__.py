"""The terminal: screen modes, clipboard, editor, recovery after a crash."""
