r"""The pre-tokenizer types of GGUF files (`tokenizer.ggml.pre`): how byte-level vocabularies split words.

A GGUF file has only the name. The patterns are from the models' tokenizer.json files, and the names are
llama.cpp's (src/llama-vocab.cpp); an unknown name is rejected. Each pattern of a type splits the words of the
previous one, and the text between matches is a word too.

Supported by llama.cpp and not here: tiny_aya, superbpe and afmoe (they group digits from the right, which
takes regexes quadratic time), kimi-k2 and chameleon (implemented in code), sarvam-moe and whitespace
(not byte level), and the types of embedding models.
"""

from collections.abc import Iterator
from typing import NamedTuple


class PreType(NamedTuple):
    """patterns: applied in order. ignore_merges: words that are tokens stay whole. adds_bos: by default."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_MARKS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_STEPS = "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
_JAIS2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|\s*[\r\n]+{_STEPS}|\s{{1,2}}(?!\S)|\s{{1}}"
_DEEPSEEK3 = (
    rf"{_ASCII_MARKS}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_BY_CASE = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_TEKKEN = rf"{_BY_CASE[0]}|{_BY_CASE[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_GPT4O = (
    rf"{_BY_CASE[0]}{_CONTRACTIONS}?|{_BY_CASE[1]}{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_BAILING = rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_MARKS}|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED_CODER = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_UFAKZEKA = rf"{_WORD}|\p{{N}}|{_MARKS}|{_SPACES}"
_MINICPM5 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}+|{_MARKS}|{_SPACES}"
_EXAONE_MOE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

# Cased letters as DeepSeek's first tokenizer lists them (code points, hexadecimal).
_CASED = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386 388-38A "
    "38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF "
    "1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D "
    "1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 "
    "1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F "
    "2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B A722-A76F "
    "A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_LETTERS = "".join(
    "-".join(chr(int(end, 16)) for end in dict.fromkeys(part.split("-"))) for part in _CASED.split()
)
_DEEPSEEK = (
    r"[\r\n]",
    rf"\s?[{_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"(?<!\s)\s+$",  # equivalent to the original \s+$, which takes quadratic time
    _CJK,
    r"\p{N}+",
)
_FALCON = r"[\p{P}\$\+<=>\^~\|`]+"

_GROUPS: tuple[tuple[str, PreType], ...] = (
    ("default", PreType((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum",
        PreType((GPT2,)),
    ),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", PreType((r"\p{N}", GPT2))),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        PreType((_LLAMA3,), ignore_merges=True, adds_bos=True),
    ),
    ("dbrx smaug-bpe chatglm-bpe glm4 glm5", PreType((_LLAMA3,))),
    ("qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2", PreType((_QWEN2,))),
    ("qwen35", PreType((_QWEN35,))),
    ("jais-2", PreType((_JAIS2,))),
    ("falcon", PreType((_FALCON, GPT2, "[0-9][0-9][0-9]"))),
    ("deepseek-llm", PreType(_DEEPSEEK)),
    ("deepseek-coder", PreType((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm", PreType((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3))),
    ("tekken", PreType((_TEKKEN,), ignore_merges=True, adds_bos=True)),
    ("gpt-4o llama4 kanana2 minimax-m2", PreType((_GPT4O,))),
    ("bailingmoe bailingmoe2 llada-moe", PreType((_BAILING,))),
    ("seed-coder", PreType((_SEED_CODER,))),
    ("ufakzeka", PreType((_UFAKZEKA,))),
    ("laguna", PreType((r"[^\n]+|[\n]+", _QWEN2))),
    ("minicpm5", PreType((r"\p{N}{1,3}", _MINICPM5), ignore_merges=True)),
    ("exaone-moe", PreType((_EXAONE_MOE,))),
    ("bloom poro-chat gpt3-finnish", PreType((_BLOOM,))),
    ("viking", PreType((_BLOOM, r"\p{N}"))),
)
PRE_TYPES: dict[str, PreType] = {name: kind for names, kind in _GROUPS for name in names.split()}


def known_patterns() -> Iterator[str]:
    """Yield every pattern above; each takes linear time on any text."""
    for kind in PRE_TYPES.values():
        yield from kind.patterns
