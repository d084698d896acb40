"""Adapters for other programs: each module serves one package, and imports the engine on first use."""
