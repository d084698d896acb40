"""Finding models: names to files, the models on this machine, the Hub."""
