"""Ways to show and keep a trace."""
