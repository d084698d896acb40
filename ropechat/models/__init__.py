"""Where models are: names to files, what is on this machine, the Hub."""
