"""Vocabularies: what BPE and word vocabularies hold, and that ids lose nothing."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multibranch.errors import UserError
from multibranch.text.special import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from multibranch.text.vocabulary import WordCounter, WordEncoder, learn_bpe, learn_words

WORDS = {"low": 5, "lower": 2, "newest": 6, "widest": 3, "ß": 20, "é": 3, "<s>": 50, "▁x": 40}


def counter(words: dict[str, int] = WORDS, limit: int = 500_000) -> WordCounter:
    made = WordCounter(limit)
    made.update(words)
    return made


def test_special_ids_come_first_and_sizes_are_multiples_of_eight() -> None:
    for tokenizer in (learn_bpe(counter(), merges=7), learn_words(counter(), size=9)):
        assert [tokenizer.id_to_token(i) for i in range(4)] == list(SPECIAL_TOKENS)
        assert (BOS, PAD, EOS, UNK) == (0, 1, 2, 3)
        assert tokenizer.get_vocab_size() % 8 == 0


def test_bpe_merges_the_most_frequent_pairs_first() -> None:
    tokenizer = learn_bpe(counter({"newest": 6, "widest": 3, "low": 5, "lower": 2}), merges=3)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    assert merges == [["e", "s"], ["es", "t"], ["l", "o"]]
    assert tokenizer.encode("newest").tokens == ["▁", "n", "e", "w", "est", "</s>"]


def test_the_vocabulary_has_as_many_merges_as_asked_for() -> None:
    words = {f"{a}{b}{c}": 3 for a in "abcdef" for b in "ghijkl" for c in "mnopqr"}
    tokenizer = learn_bpe(counter(words), merges=100)
    assert len(json.loads(tokenizer.to_str())["model"]["merges"]) == 100
    # 4 special tokens, 116 bytes, ▁ and 94 printable ASCII characters, and the merges.
    assert tokenizer.get_vocab_size() == -(-(4 + 116 + 95 + 100) // 8) * 8
    assert learn_bpe(counter(words), size=400).get_vocab_size() == 400


def test_a_vocabulary_too_small_for_its_characters_is_refused() -> None:
    with pytest.raises(UserError, match="a vocabulary of size 100 has no room for the 215"):
        learn_bpe(counter({"a": 1}), size=100)


def test_what_is_too_long_for_a_word_teaches_nothing_and_takes_no_time() -> None:
    words = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
    tokenizer = learn_bpe(counter({**words, "a" * 5_000_000: 2}), merges=20)
    assert tokenizer.to_str() == learn_bpe(counter(words), merges=20).to_str()
    longest = learn_bpe(counter({**words, "ab" * 500: 2}), merges=20)
    assert longest.encode("ab").tokens == ["▁", "ab", "</s>"]


def test_learning_twice_gives_the_same_vocabulary() -> None:
    words = {f"{a}{b}{a}": 2 + len(a) for a in "abcdefgh" for b in "ijklmnop"}
    turned = dict(reversed(list(words.items())))
    assert (
        learn_bpe(counter(words), merges=80).to_str()
        == learn_bpe(counter(turned), merges=80).to_str()
    )


def test_frequent_characters_are_entries_and_rare_ones_are_spelt_in_bytes() -> None:
    tokenizer = learn_bpe(counter(), merges=10)
    assert tokenizer.encode("ß").tokens == ["▁ß", "</s>"]
    assert tokenizer.encode("é").tokens == ["▁", "<0xC3>", "<0xA9>", "</s>"]


TEXTS = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters=[chr(c) for c in range(32)]),
    max_size=30,
).filter(lambda text: not text.startswith(" "))


@given(TEXTS)
@settings(max_examples=500, deadline=None)
def test_bpe_gives_back_any_text_exactly(text: str) -> None:
    """Any Unicode: unseen characters, ▁, the special tokens' own spelling, several blanks."""
    tokenizer = BPE
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text).ids
    assert ids[-1] == EOS
    assert UNK not in ids or "\x7f" in text
    if "\x7f" not in text:
        assert tokenizer.decode(ids[:-1], skip_special_tokens=False) == text


BPE = learn_bpe(counter(), merges=30)


@pytest.mark.parametrize(
    "text", ["a ▁ b▁", "<s> </s> <unk> <pad>", "<0x41>", "x  y ", "\u00a0x\u2028y"]
)
def test_spellings_that_look_like_the_vocabularys_own_survive(text: str) -> None:
    BPE.encode_special_tokens = True
    ids = BPE.encode(text).ids
    assert not set(ids[:-1]) & {BOS, PAD, EOS, UNK}
    assert BPE.decode(ids[:-1], skip_special_tokens=False) == text


def test_word_vocabularies_hold_the_most_frequent_words() -> None:
    tokenizer = learn_words(counter({"b": 3, "a": 3, "c": 9, "d": 1, "<s>": 99}), size=7)
    assert [tokenizer.id_to_token(i) for i in range(8)] == [
        *SPECIAL_TOKENS,
        "c",
        "a",
        "b",
        "<unused0>",
    ]
    assert tokenizer.encode("b d c").ids == [6, UNK, 4, EOS]
    assert tokenizer.decode([6, UNK, 4], skip_special_tokens=False) == "b <unk> c"


def test_counting_forgets_rare_words_but_no_character() -> None:
    bounded = WordCounter(limit=1000)
    for start in range(0, 50_000, 500):
        bounded.update(Counter({f"w{n}": 1 for n in range(start, start + 500)} | {"often": 2}))
    bounded.update({"ж": 1})
    assert len(bounded.words) <= 1000
    assert bounded.words["often"] == 200
    assert bounded.forgotten > 40_000
    assert bounded.characters["ж"] == 1 and bounded.characters["w"] == 50_000


@given(st.lists(TEXTS, max_size=5))
@settings(max_examples=200, deadline=None)
def test_encoding_word_by_word_is_encoding_the_line(lines: list[str]) -> None:
    """The shortcut gives what the tokenizer itself gives, odd blanks included."""
    BPE.encode_special_tokens = True
    words = learn_words(counter(), size=50)
    words.encode_special_tokens = True
    for tokenizer in (BPE, words):
        expected = [tokenizer.encode(line).ids for line in lines]
        encoder = WordEncoder(tokenizer)
        assert encoder(lines) == expected
        assert encoder(lines) == expected
