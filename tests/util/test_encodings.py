"""Text of an unknown encoding."""

import pytest

from ropechat.util.encodings import decode

TEXTS = {
    "French": "Où est passé le garçon naïf ? Il a déjà mangé des crêpes à Noël, l'été dernier.",
    "German": "Größe und Übermut: äußerst schöne Straßen in Köln.",
    "Spanish": "¿Dónde está el niño? Mañana será otro día.",
    "English": "hello café world and many ascii words, one accent",
    "Polish": "Zażółć gęślą jaźń, proszę państwa.",
    "Russian": "Привет, как дела? Сегодня хорошая погода, и мы идём в лес.",
    "Greek": "Καλημέρα, τι κάνετε; Σήμερα ο καιρός είναι καλός.",
    "Japanese": "これは日本語のテキストです。今日は天気がいいですね。カタカナも。",
    "Chinese": "今天天气很好，我们去公园散步吧。这是一个测试文本。",
    "Taiwan": "今天天氣很好，我們去公園散步吧。這是一個測試文本。",
    "Korean": "안녕하세요. 오늘 날씨가 좋습니다. 이것은 시험입니다.",
}


@pytest.mark.parametrize(
    ("language", "encoding"),
    [
        *(("French", "cp1252"), ("German", "cp1252"), ("Spanish", "cp1252"), ("English", "latin-1")),
        *(("Polish", "cp1250"), ("Russian", "cp1251"), ("Russian", "koi8_r"), ("Greek", "cp1253")),
        *(("Japanese", "shift_jis"), ("Japanese", "euc_jp"), ("Chinese", "gb18030"), ("Taiwan", "big5")),
        *(("Korean", "euc_kr"), ("Russian", "utf-16-le"), ("French", "utf-16-be")),
        *(
            (language, encoding)
            for language in TEXTS
            for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32")
        ),
    ],
)
def test_texts_are_read(language: str, encoding: str) -> None:
    assert decode(TEXTS[language].encode(encoding))[0] == TEXTS[language]


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\x01\0\0\0", bytes(range(256)) * 4, b"\xff\x00\x01" * 50])
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_an_empty_file_is_text() -> None:
    assert decode(b"")[0] == ""
