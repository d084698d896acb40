"""Limits of rendering a chat template, shared by the renderer process and its client."""

MAX_SOURCE_BYTES = 256 << 10
MAX_OUTPUT_BYTES = 4 << 20
MAX_REQUEST_BYTES = 16 << 20
"""Template, messages and variables as JSON."""
MAX_MEMORY_BYTES = 256 << 20
"""Address space in addition to that of the idle process."""
CPU_SECONDS = 2.0
WALL_SECONDS = 20.0
"""For a process that is stopped or gets no CPU; a process that computes reaches CPU_SECONDS first."""
MAX_ERROR_LENGTH = 500
