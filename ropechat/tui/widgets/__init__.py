"""The widgets of the chat screen."""
