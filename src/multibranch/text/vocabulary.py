"""Vocabularies learned from word counts: joint BPE for languages, whole words for code.

Both are `tokenizers` objects whose input is words separated by single blanks and whose output is
ids with EOS at the end. The first four ids are those of ``text.special``.

BPE marks the beginning of a word with ▁ and knows every printable ASCII character and every other
character that the training text holds at least ten times. What remains is spelt in UTF-8 bytes, so
that any text comes back exactly as it went in, at the price of 116 entries (only the bytes that
non-ASCII characters are made of). A ▁ in the text itself travels as the byte 0x01.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from multibranch.errors import UserError
from multibranch.text.special import EOS, SPECIAL_TOKENS, UNK, unused_tokens

WORD_START = "▁"
_ESCAPED_START = "\x01"
_ASCII = [chr(code) for code in range(0x21, 0x7F)]
_BYTES = [0x01, *range(0x80, 0xC0), *range(0xC2, 0xF5)]
_FEED_WORDS = 2000
_FEED_TOTAL = 50_000_000
_CACHED_WORDS = 300_000
_LONG_WORD = 100  # characters; longer words are not kept
_BLOB = 1000  # characters; what is longer is no word of any language, and learning from it is slow


class WordCounter:
    """Counts words in bounded memory, and the characters of every word it ever saw.

    Past ``limit`` different words the rarest are forgotten, so a corpus of any size fits. BPE does
    not miss them: a word that is rare among millions moves no merge.
    """

    def __init__(self, limit: int = 500_000) -> None:
        self.limit = limit
        self.words: Counter[str] = Counter()
        self.forgotten = 0
        self._forgotten_characters: Counter[str] = Counter()

    @property
    def characters(self) -> Counter[str]:
        """How often each character was seen, in forgotten words too."""
        return self._forgotten_characters + _characters(self.words)

    def update(self, counts: Mapping[str, int]) -> None:
        """Add the counts of one piece of text."""
        self.words.update(counts)
        if len(self.words) > self.limit:
            self._forget()

    def update_from(self, other: "WordCounter") -> None:
        """Add everything that another counter has counted."""
        self.words.update(other.words)
        self.forgotten += other.forgotten
        self._forgotten_characters.update(other._forgotten_characters)
        if len(self.words) > self.limit:
            self._forget()

    def _forget(self) -> None:
        kept = Counter(dict(self.words.most_common(self.limit // 2)))
        self.forgotten += len(self.words) - len(kept)
        self._forgotten_characters.update(_characters(self.words - kept))
        self.words = kept


def _characters(words: Mapping[str, int]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counted[character] += count
    return counted


def learn_bpe(
    counter: WordCounter, *, merges: int | None = None, size: int | None = None, rare: int = 10
) -> Tokenizer:
    """Learn byte-pair encoding with ``merges`` merges, or as many as make ``size`` entries.

    Characters seen fewer than ``rare`` times are spelt in bytes. Words of over 1,000 characters
    teach nothing: the time that one takes grows with the square of its length.
    """
    alphabet = {
        character
        for character, count in counter.characters.items()
        if count >= rare and character > "\x7f" and character != WORD_START
    }
    alphabet |= {WORD_START, *_ASCII}
    fixed = len(SPECIAL_TOKENS) + len(_BYTES) + len(alphabet)
    if size is not None:
        merges = size - fixed
    if merges is None or merges < 0:
        raise UserError(
            f"a vocabulary of size {size} has no room for the {fixed} entries that characters, "
            "bytes and special tokens take; ask for a larger one."
        )
    words = {
        word: count
        for word, count in sorted(counter.words.items())
        if len(word) <= _BLOB
        and "<0x" not in word
        and all(character in alphabet for character in word)
    }
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + merges,
        initial_alphabet=sorted(alphabet),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_repeat(words), trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    taken = set(SPECIAL_TOKENS)
    entries = [
        *SPECIAL_TOKENS,
        *(f"<0x{byte:02X}>" for byte in _BYTES),
        *(piece for piece in pieces if piece not in taken),
    ]
    pairs = [(first, second) for first, second in learned["merges"]]
    return _bpe(entries, [pair for pair in pairs if "".join(pair) not in taken])


def learn_words(counter: WordCounter, *, size: int) -> Tokenizer:
    """The ``size`` most frequent words, special ones included; ties go by the alphabet."""
    ranked = sorted(counter.words.items(), key=lambda item: (-item[1], item[0]))
    frequent = [word for word, _ in ranked if word not in SPECIAL_TOKENS]
    entries = [*SPECIAL_TOKENS, *frequent[: size - len(SPECIAL_TOKENS)]]
    entries += unused_tokens(len(entries))
    vocabulary = {token: number for number, token in enumerate(entries)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[UNK]))
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    return _finish(tokenizer)


def _bpe(entries: list[str], merges: list[tuple[str, str]]) -> Tokenizer:
    entries = entries + unused_tokens(len(entries))
    vocabulary = {token: number for number, token in enumerate(entries)}
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary, merges, unk_token=SPECIAL_TOKENS[UNK], fuse_unk=False, byte_fallback=True
        )
    )
    tokenizer.normalizer = normalizers.Replace(WORD_START, _ESCAPED_START)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, prepend_scheme="always")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(WORD_START, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace(_ESCAPED_START, WORD_START),
            decoders.Replace(Regex("^ "), ""),
        ]
    )
    return _finish(tokenizer)


def _finish(tokenizer: Tokenizer) -> Tokenizer:
    """Name the special tokens, and end every sequence with EOS."""
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    end = SPECIAL_TOKENS[EOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B:1 {end}:1", special_tokens=[(end, EOS)]
    )
    return tokenizer


def _repeat(counts: Mapping[str, int]) -> Iterator[str]:
    """Every word as often as it was counted: the trainer takes text, not counts.

    Past fifty million occurrences all counts are divided alike, to keep the time bounded.
    """
    divisor = -(-sum(counts.values()) // _FEED_TOTAL)
    occurrences = itertools.chain.from_iterable(
        itertools.repeat(WORD_START + word, count // divisor) for word, count in counts.items()
    )
    while lot := list(itertools.islice(occurrences, _FEED_WORDS)):
        yield " ".join(lot)


class WordEncoder:
    """Encodes lines of words by looking each word up, several times as fast as the tokenizer.

    Both vocabularies look at one word at a time, so a line's ids are its words' ids in a row. The
    words seen so far are kept, up to a limit, and new ones encoded together.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}

    def __call__(self, lines: Sequence[str]) -> list[list[int]]:
        """Words separated by single blanks → ids with EOS at the end."""
        if not all(map(_single_blanks, lines)):
            return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(lines))]
        words = [line.split(" ") if line else [] for line in lines]
        known = self._learn(set(itertools.chain.from_iterable(words)))
        encoded = [[i for word in line for i in known[word]] for line in words]
        for ids in encoded:
            ids.append(EOS)
        return encoded

    def _learn(self, words: set[str]) -> dict[str, list[int]]:
        """The ids of these words and of others; no thread takes any out of this dictionary."""
        if len(self._known) > _CACHED_WORDS:
            self._known = {}
        known = self._known
        new = [word for word in words if word not in known]
        encodings = self._tokenizer.encode_batch_fast(new, add_special_tokens=False)
        learned = dict(zip(new, (encoding.ids for encoding in encodings)))
        if any(len(word) > _LONG_WORD for word in new):
            # Such words hardly come twice, and would fill the memory of what runs for months.
            long = {word: ids for word, ids in learned.items() if len(word) > _LONG_WORD}
            known.update((word, ids) for word, ids in learned.items() if word not in long)
            return {**{word: known[word] for word in words if word in known}, **long}
        known.update(learned)
        return known


def _single_blanks(line: str) -> bool:
    return "  " not in line and line[:1] != " " and line[-1:] != " "
