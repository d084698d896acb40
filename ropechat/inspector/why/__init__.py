"""Why this token: what leaving out each part of the context does to the probability of an answer."""
