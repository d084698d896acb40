"""The settings, by flags, environment variables and the settings file."""
