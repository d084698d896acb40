"""Text to rows of cells; nothing here knows a widget."""
