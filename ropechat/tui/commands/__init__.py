"""Commands and the keys that run them."""
