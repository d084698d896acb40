"""Messages in, steps out: the engine, its prompts and its chat templates."""
