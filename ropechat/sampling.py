"""How the next token is drawn."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """Sampling settings; temperature 0 is greedy."""

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 512
    seed: int | None = None
