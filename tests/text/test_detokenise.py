"""Detokenising: words back to text as people write it, and how much of real text comes back."""

import lzma
from pathlib import Path

import pytest

from multibranch.text.detokenise import MosesDetokeniser, unescape
from multibranch.text.moses import MosesTokeniser


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "Hello, world! (Really?) [yes] {no}"),
        ("en", "It's the girls' school; they don't know it, said Mr O'Neill."),
        ("en", '"Stop," he said, "or I\'ll go."'),
        ("en", 'That was in the system."'),
        ("en", "He asked for $5, £3 and US$9 at 10:30 (50%)."),
        ("en", "Article 10(3) of COM(1999) 312, and/or the R&D of AT&T"),
        ("en", "the ‘so-called’ “third” way isn’t ours"),
        ("en", "in the '90s... and 'so' on …"),
        ("de", "Er sagte: „Das geht nicht“, und ging."),
        ("de", "ein „Mongolian BBQ“-Schild und McDonald's-Menü für 5 %"),
        ("de", "eine 10 %ige Erhöhung auf +3 °C, »gut«, Herr d'Estaing"),
        ("fr", "l'homme qu'on voit : « oui » ! 5 %"),
        ("es", "¿Qué? ¡No! 5%"),
        ("en", "state-of-the-art, well-known"),
        ("en", ""),
    ],
)
def test_text_comes_back_from_its_words(language: str, text: str) -> None:
    assert MosesDetokeniser(language)(MosesTokeniser(language)(text)) == text


def test_split_hyphens_are_joined() -> None:
    words = MosesTokeniser("en", split_hyphens=True)("state-of-the-art")
    assert MosesDetokeniser("en")(words) == "state-of-the-art"


def test_the_corpus_decides_how_percent_signs_are_written() -> None:
    assert MosesDetokeniser("de")("5 %") == "5 %"
    assert MosesDetokeniser("de", percent="joined")("5 %") == "5%"
    assert MosesDetokeniser("en", percent="apart")("5 %") == "5 %"


def test_escapes_are_undone_once() -> None:
    assert (
        unescape("&amp;lt; &lt;x&gt; &#124; &bar; &#91;&#93; &apos;&quot;") == "&lt; <x> | | [] '\""
    )


@pytest.mark.parametrize("language", ["de", "en"])
@pytest.mark.parametrize(
    ("corpus", "files", "percent"),
    [
        ("multi30k-de-en", ("valid", "test", "train"), {"de": "apart", "en": "apart"}),
        ("europarl-de-en", ("valid", "test"), {"de": "apart", "en": "joined"}),
        ("newstest-en-de", ("newstest2013", "newstest2014"), {"de": "joined", "en": "joined"}),
    ],
)
def test_ninety_nine_lines_of_a_hundred_come_back(
    shared_data: Path, corpus: str, files: tuple[str, ...], percent: dict[str, str], language: str
) -> None:
    """``percent`` is what the corpora show; preparing a corpus finds it out."""
    split = MosesTokeniser(language)
    join = MosesDetokeniser(language, percent=percent[language])
    for file in files:
        path = shared_data / corpus / f"{file}.{language}.xz"
        text = lzma.decompress(path.read_bytes()).decode().removesuffix("\n")
        lines = [" ".join(line.split()) for line in text.split("\n")]
        back = sum(join(split(line)) == line for line in lines)
        assert back >= 0.99 * len(lines), f"{file}.{language}: {back} of {len(lines)}"
