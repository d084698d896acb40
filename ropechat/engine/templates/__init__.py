"""Chat templates, rendered in a sandboxed process."""
