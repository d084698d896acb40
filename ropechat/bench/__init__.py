"""How fast this machine is with a model: what is run, how it is timed, what the memory could give at most."""
