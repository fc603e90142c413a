"""The built-in translation corpus: sentences of one meaning in Valdish and in English."""

from collections.abc import Iterator

from multibranch.data.builtin import english, valdish
from multibranch.data.builtin.author import Author
from multibranch.data.builtin.chance import Chance

SHORTEST, LONGEST = 4, 25  # words


def pairs(seed: int) -> Iterator[tuple[str, str]]:
    """An endless stream of (Valdish, English) sentences."""
    author = Author(Chance("translation", seed))
    while True:
        meaning = author.sentence()
        source, target = spell(valdish.sentence(meaning)), spell(english.sentence(meaning))
        if all(SHORTEST <= text.count(" ") + 1 <= LONGEST for text in (source, target)):
            yield source, target


def spell(words: list[str]) -> str:
    """Words as a sentence: commas where clauses meet or end, a capital letter first."""
    text = ""
    for word, after in zip(words, [*words[1:], ""]):
        if word == "," and after in (",", ".", "?", ""):
            continue
        text += word if word in (",", ".", "?") else f" {word}"
    text = text.strip()
    return text[0].upper() + text[1:]
