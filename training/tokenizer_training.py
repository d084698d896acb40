"""The tokenizer: byte-level BPE learned from the corpus. Every byte is a token, so every text can be written.

Digits stand alone, so that sums are done on digits. R. Sennrich et al., "Neural Machine Translation of Rare
Words with Subword Units" (2016).
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from training.corpus import dialogues
from training.material import table

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
NAMED = 60  # times that each name is added, so that it becomes a token
SPECIAL = (END, TURN_START, TURN_END)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def _names() -> list[str]:
    """Names of the dictionary: each shall be one token, however rare."""
    world = table("world")
    rows = [*world["animals"], *world["capitals"], *world["opposites"]]
    names = [row[0] for row in world["things"]] + [name for row in rows for name in (row[0], row[1], row[-1])]
    names += [item for items in world["lists"].values() for item in items] + world["days"] + world["months"]
    words = dict.fromkeys(word for name in names for word in name.split() if word.isalpha())
    return [form for word in words for form in (word, word.lower())]


def _texts(seed: int, count: int) -> Iterator[str]:
    for chat in itertools.islice(dialogues(seed, "train"), count):
        if chat.text:
            yield chat.text
        for turn in chat.turns:
            yield turn.question
            yield turn.answer
        yield "user\n"
        yield "assistant\n"
    for name in _names():
        yield f" {name}" * NAMED


def learn(seed: int, vocab_size: int, count: int = 12_000) -> "Tokenizer":
    """A tokenizer of at most `vocab_size` tokens from `count` dialogues."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"[0-9]| ?[^\s0-9]+|\s"), "isolated")
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, words])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=3,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, count), trainer)
    return tokenizer


def save(tokenizer: "Tokenizer", folder: Path, context: int) -> None:
    """tokenizer.json and tokenizer_config.json, as transformers reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END,
        "unk_token": None,
        "additional_special_tokens": [TURN_START, TURN_END],
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
