"""What rendering a chat template may cost, for the process that renders and the one that asks. A leaf."""

MAX_SOURCE_BYTES = 256 << 10
MAX_OUTPUT_BYTES = 4 << 20
MAX_REQUEST_BYTES = 16 << 20
"""Template, messages and variables as JSON."""
MAX_MEMORY_BYTES = 256 << 20
"""Address space beyond what the idle process has."""
CPU_SECONDS = 2.0
WALL_SECONDS = 20.0
"""For a process that is stopped or starved: the limit on processor time comes first otherwise."""
MAX_ERROR_LENGTH = 500
HEAD_BYTES = 4
"""Each message between the two is its length, big-endian, and JSON."""
