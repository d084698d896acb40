"""The chat without a screen: session, inference thread, recorder. Imports no textual."""
