"""Text to ids and back for one model: both sides, their tokenisers and their vocabularies.

A pipeline is three or four small files: ``text.json`` (what is done to the text),
``tokenizer.json`` (the vocabulary, a `tokenizers` file), ``tokenizer.target.json`` where the sides
have vocabularies of their own, and ``tokenizer_config.json``, with which Hugging Face's
AutoTokenizer loads the first.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

from tokenizers import Tokenizer

from multibranch.disk import damaged, remedy, write_json
from multibranch.errors import UserError
from multibranch.text.normalise import PunctuationNormaliser, collapse
from multibranch.text.special import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from multibranch.text.vocabulary import WordEncoder

KINDS = ("moses-bpe", "tokenised-bpe", "words", "classification")
SIDES = ("source", "target")
_SETTINGS = "text.json"
_TOKENIZERS = {"source": "tokenizer.json", "target": "tokenizer.target.json"}
FILES = (_SETTINGS, *_TOKENIZERS.values())  # those that `load` reads, the last not always there
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """What is done to the text of a corpus before its vocabulary sees it.

    ``kind`` is one of KINDS. ``source`` and ``target`` are languages: those of Moses (de, en, …),
    or for code: nl (natural language), java, python. ``source_percent`` and ``target_percent`` say
    how the corpus writes its percent signs ("joined" or "apart"; empty: as the language does).
    """

    kind: str
    source: str
    target: str
    lowercase: bool = False
    split_hyphens: bool = False
    normalise_punctuation: bool = False
    source_percent: str = ""
    target_percent: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"unknown kind of text '{self.kind}'; it is one of {', '.join(KINDS)}.")

    def language(self, side: str) -> str:
        """The language of one side."""
        if side not in SIDES:
            raise ValueError(f"side is 'source' or 'target', not {side!r}")
        return self.source if side == "source" else self.target

    def reversed(self) -> "TextSettings":
        """The same with the sides exchanged."""
        return dataclasses.replace(
            self,
            source=self.target,
            target=self.source,
            source_percent=self.target_percent,
            target_percent=self.source_percent,
        )


class TextPipeline:
    """Tokenises, encodes, decodes and detokenises the two sides of a corpus."""

    def __init__(
        self, settings: TextSettings, tokenizer: Tokenizer, target: Tokenizer | None = None
    ) -> None:
        self.settings = settings
        self.shared = target is None
        self._tokenizers = {"source": tokenizer, "target": tokenizer if target is None else target}
        for one in self._tokenizers.values():
            _check(one)
            # "<s>" in a text is three characters, not the beginning of a sentence.
            one.encode_special_tokens = True
            # `transformers` leaves them on in a tokenizer that it was asked to pad with.
            one.no_padding()
            one.no_truncation()

    @classmethod
    def load(cls, folder: str | Path) -> "TextPipeline":
        """Read the files that ``save`` wrote; anything missing or damaged is a UserError."""
        folder = Path(folder)
        settings = _read_settings(folder / _SETTINGS)
        shared = settings.pop("shared")
        try:
            parsed = TextSettings(**settings)
        except TypeError as error:
            raise damaged(folder / _SETTINGS, str(error)) from error
        for name, kind in get_type_hints(TextSettings).items():
            if not isinstance(getattr(parsed, name), kind):
                wanted = "a text" if kind is str else "true or false"
                raise damaged(folder / _SETTINGS, f"{name} must be {wanted}")
        source = _read_tokenizer(folder / _TOKENIZERS["source"])
        target = None if shared else _read_tokenizer(folder / _TOKENIZERS["target"])
        return cls(parsed, source, target)

    def save(self, folder: str | Path) -> None:
        """Write the pipeline's files into ``folder``."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        settings = {"format": _FORMAT, "shared": self.shared, **dataclasses.asdict(self.settings)}
        write_json(folder / _SETTINGS, settings)
        write_json(folder / "tokenizer_config.json", _hugging_face_config())
        if self.shared:
            (folder / _TOKENIZERS["target"]).unlink(missing_ok=True)
        for side in SIDES[:1] if self.shared else SIDES:
            # Its own way of writing a file would tell of a full disk by no error of the system's.
            content = self._tokenizers[side].to_str(pretty=True)
            (folder / _TOKENIZERS[side]).write_text(content, encoding="utf-8", newline="\n")

    @property
    def source_size(self) -> int:
        """Entries of the source vocabulary."""
        return self._tokenizers["source"].get_vocab_size()

    @property
    def target_size(self) -> int:
        """Entries of the target vocabulary."""
        return self._tokenizers["target"].get_vocab_size()

    def tokenizer(self, side: str) -> Tokenizer:
        """The `tokenizers` object of one side."""
        return self._tokenizers[side]

    def tokenise(self, line: str, side: str) -> str:
        """One line of raw text → its words, separated by blanks."""
        return self._tokenise[side](line)

    def detokenise(self, words: str, side: str) -> str:
        """Words separated by blanks → text as people write it."""
        return self._detokenise[side](words)

    def encode(
        self, lines: Sequence[str], *, side: str, tokenised: bool = False
    ) -> list[list[int]]:
        """Lines → ids, each list ending with EOS and without BOS.

        ``tokenised`` says that the lines are words separated by blanks already.
        """
        if not tokenised:
            lines = [self.tokenise(line, side) for line in lines]
        if self.settings.kind == "words":
            lines = [_without_special(line) for line in lines]
        return self._encoders[side](lines)

    def decode(
        self, ids: Sequence[Sequence[int]], *, side: str, tokenised: bool = False
    ) -> list[str]:
        """Ids → lines; each list is read up to its first EOS, BOS and PAD are passed over.

        With ``tokenised`` the words stay as the tokeniser made them, separated by blanks.
        """
        lines: list[str] = self._tokenizers[side].decode_batch(
            [_visible(sequence) for sequence in ids], skip_special_tokens=False
        )
        return lines if tokenised else [self.detokenise(line, side) for line in lines]

    @cached_property
    def _encoders(self) -> dict[str, WordEncoder]:
        source = WordEncoder(self._tokenizers["source"])
        target = source if self.shared else WordEncoder(self._tokenizers["target"])
        return {"source": source, "target": target}

    @cached_property
    def _tokenise(self) -> dict[str, Callable[[str], str]]:
        return {side: tokeniser(self.settings, side) for side in SIDES}

    @cached_property
    def _detokenise(self) -> dict[str, Callable[[str], str]]:
        return {side: detokeniser(self.settings, side) for side in SIDES}


def tokeniser(settings: TextSettings, side: str) -> Callable[[str], str]:
    """The function that turns one raw line of a side into words separated by blanks."""
    language = settings.language(side)
    split: Callable[[str], str] = collapse
    if settings.kind == "moses-bpe":
        from multibranch.text.moses import MosesTokeniser

        split = MosesTokeniser(language, split_hyphens=settings.split_hyphens)
        if settings.normalise_punctuation:
            split = _chain(PunctuationNormaliser(language), split)
    elif settings.kind == "words":
        from multibranch.text.programs import code_tokeniser

        split = code_tokeniser(language)
    return _chain(split, _lower) if settings.lowercase else split


def detokeniser(settings: TextSettings, side: str) -> Callable[[str], str]:
    """The function that turns words separated by blanks into text as people write it."""
    language = settings.language(side)
    if settings.kind == "words":
        from multibranch.text.programs import code_detokeniser

        return code_detokeniser(language)
    if settings.kind == "classification":
        return collapse
    from multibranch.text.detokenise import MosesDetokeniser

    percent = settings.source_percent if side == "source" else settings.target_percent
    return MosesDetokeniser(language, percent=percent)


def _chain(first: Callable[[str], str], second: Callable[[str], str]) -> Callable[[str], str]:
    return lambda line: second(first(line))


def _lower(line: str) -> str:
    # Moses knows no final sigma: its lower-casing looks at one character at a time.
    return line.replace("Σ", "σ").lower()


def _visible(ids: Sequence[int]) -> list[int]:
    """What a reader sees of a sequence: up to its first EOS, without BOS and PAD."""
    visible: list[int] = []
    for number in ids:
        if number == EOS:
            break
        if number not in (BOS, PAD):
            visible.append(int(number))
    return visible


def _without_special(line: str) -> str:
    """A word of the text that is spelt like a special token is an unknown word."""
    if not any(token in line for token in SPECIAL_TOKENS):
        return line
    unknown = SPECIAL_TOKENS[UNK]
    return " ".join(unknown if word in SPECIAL_TOKENS else word for word in line.split(" "))


def _check(tokenizer: Tokenizer) -> None:
    found = tuple(tokenizer.id_to_token(number) for number in range(len(SPECIAL_TOKENS)))
    if found != SPECIAL_TOKENS:
        raise UserError(
            f"this vocabulary begins with {found} instead of {SPECIAL_TOKENS}: it was not made by "
            "`multibranch prepare`; use one that was."
        )


def _hugging_face_config() -> Mapping[str, Any]:
    names = {"bos_token": BOS, "pad_token": PAD, "eos_token": EOS, "unk_token": UNK}
    return {
        "tokenizer_class": "MultiBranchTokenizer",
        **{name: SPECIAL_TOKENS[number] for name, number in names.items()},
        "clean_up_tokenization_spaces": False,
        "padding_side": "right",
    }


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"{path.parent} holds no text pipeline (no {path.name}); give a folder that "
            "`multibranch prepare` or `multibranch train` wrote."
        ) from error
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from error
    if not isinstance(settings, dict) or not isinstance(settings.get("shared"), bool):
        raise damaged(path, "it does not hold the settings of a text pipeline")
    if settings.pop("format", None) != _FORMAT:
        raise damaged(path, f"it is not of format {_FORMAT}")
    return settings


def _read_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise UserError(f"{path} is missing; {remedy(path)}.")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise damaged(path, str(error)) from error
