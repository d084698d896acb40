"""What the app does when a command runs, one subject per file."""
