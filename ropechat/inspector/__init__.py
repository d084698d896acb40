"""What a trace shows: tables, JSON lines, why a token was drawn."""
