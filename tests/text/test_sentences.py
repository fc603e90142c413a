"""Documents as paragraphs and sentences."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multibranch.text.sentences import SentenceSplitter, halves, paragraphs


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("en", "One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("en", "Dr. Who met Mr. Smith at 3.14 p.m. today. He left.", 2),
        ("en", "He said “No.” Then he left. (Really.) Yes…", 4),
        ("en", "J. R. Smith came. and went", 1),
        ("en", "It was 1999. Then came 2000.", ["It was 1999.", "Then came 2000."]),
        ("de", "Am 3. Mai kam er. Er ging, z.B. nach Rom.", 2),
        ("de", "„Wirklich?“ Ja! So... Nein.", ["„Wirklich?“", "Ja!", "So...", "Nein."]),
        ("fr", "Où ? Là ! Bien.", ["Où ?", "Là !", "Bien."]),
        ("zh", "你好。再见！好吗？是", ["你好。", "再见！", "好吗？", "是"]),
        ("ar", "كيف؟ نعم. لا", ["كيف؟", "نعم.", "لا"]),
        ("en", "   ", []),
        ("en", "...", ["..."]),
        ("unknown", "One. Two.", ["One.", "Two."]),
    ],
)
def test_sentences(language, text, sentences):
    found = SentenceSplitter(language)(text)
    if isinstance(sentences, int):
        assert len(found) == sentences, found
    else:
        assert found == sentences


@given(st.text(st.sampled_from("aA1 .!?…。,;\"'“”()\t\n"), max_size=60))
def test_nothing_but_blanks_is_lost(text):
    found = SentenceSplitter("en")(text)
    assert "".join("".join(found).split()) == "".join(text.split())


@given(st.text(st.sampled_from("ab ,;、 "), max_size=40))
def test_halves_are_two_parts_of_what_was_cut(text):
    cut = halves(text)
    if cut is None:
        assert len(text.split()) <= 1
    else:
        assert all(part and part == part.strip() for part in cut)
        assert "".join("".join(cut).split()) == "".join(text.split())


def test_halves_are_cut_behind_a_clause_near_the_middle():
    assert halves("Der Mann geht, und die Frau kommt.") == ("Der Mann geht,", "und die Frau kommt.")
    assert halves("a, b c d e f g h") == ("a, b c", "d e f g h")
    assert halves("word") is None


def test_paragraphs_are_lines_that_are_not_blank():
    assert paragraphs("a b\r\n\n c \u2028d\x0ce\x85f\n") == ["a b", "c", "d", "e", "f"]


@pytest.mark.parametrize("unit", [".", ". ", ".'", "'", " ", "a. ", "x", "! ", "。", ", ", "\n"])
def test_large_texts_take_time_in_proportion(unit):
    text = unit * 200_000
    began = time.monotonic()
    for paragraph in paragraphs(text):
        SentenceSplitter("en")(paragraph)
    halves(text)
    assert time.monotonic() - began < 10  # what grows with the square would take minutes
