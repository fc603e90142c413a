"""What a search is asked for, and what it finds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from multibranch.errors import UserError
from multibranch.text.special import BOS, EOS, PAD, UNK

_MOST = 1_000_000  # what is counted in a search: more is a slip, and beyond any memory


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to decode. Lengths are in target tokens, the end of sentence not counted.

    beam: hypotheses kept alive for every sentence; 1 is greedy search.
    n_best: hypotheses given back for every sentence, at most `beam`; when sampling, how many are
        drawn.
    length_penalty: α of score = log-probability / length^α; this length counts the end of
        sentence. 0 prefers short hypotheses, 1 is the mean of the tokens, more prefers long ones.
        This is fairseq's `--lenpen` and the paper's (IWSLT: beam 5, 1.2; WMT: beam 4, 0.6).
    min_length: no hypothesis ends before so many tokens.
    max_length: every hypothesis ends after so many tokens; where it is None, after
        max_ratio · (source tokens) + max_extra.
    repetition_penalty: θ ≥ 1; the log-probability of a token that the hypothesis already has is
        multiplied by θ. 1 changes nothing.
    no_repeat_ngram: no sequence of so many tokens comes twice in a hypothesis; 0 allows all.
    allow_unknown: whether <unk> may be generated.
    never: further ids that are never generated.
    sample: draw hypotheses from the model instead of searching for the best.
    temperature, top_k, top_p: what to draw from: the distribution sharpened (below 1) or flattened
        (above 1), its top_k most probable tokens (0: all), of these the fewest that together have
        the probability top_p.
    seed: fixes the draws. Each sentence has draws of its own, whatever stands beside it.
    early_stopping: stop as soon as no hypothesis can enter the n best; the result is the same.
    """

    beam: int = 5
    n_best: int = 1
    length_penalty: float = 1.0
    min_length: int = 0
    max_length: int | None = None
    max_ratio: float = 1.5
    max_extra: int = 10
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    allow_unknown: bool = False
    never: tuple[int, ...] = ()
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1
    early_stopping: bool = True

    def __post_init__(self) -> None:
        counts = ("beam", "n_best", "min_length", "max_length", "max_extra", "no_repeat_ngram")
        for name in counts:
            value = getattr(self, name)
            _require(value is None or value <= _MOST, name, value, f"at most {_MOST:,}")
        _require(self.beam >= 1, "beam", self.beam, "at least 1")
        _require(self.n_best >= 1, "n_best", self.n_best, "at least 1")
        if not self.sample and self.n_best > self.beam:
            raise UserError(
                f"a beam of {self.beam} cannot give the {self.n_best} best hypotheses; "
                "widen the beam or ask for fewer"
            )
        _require(abs(self.length_penalty) <= 10, "length_penalty", self.length_penalty, "−10 to 10")
        _require(self.min_length >= 0, "min_length", self.min_length, "at least 0")
        _require(0 <= self.max_ratio <= 1000, "max_ratio", self.max_ratio, "0 to 1000")
        _require(self.max_extra >= 0, "max_extra", self.max_extra, "at least 0")
        if self.max_length is not None:
            _require(self.max_length >= 0, "max_length", self.max_length, "at least 0")
            if self.max_length < self.min_length:
                raise UserError(
                    f"max_length {self.max_length} is below min_length {self.min_length}; "
                    "change one of them"
                )
        penalty = self.repetition_penalty
        _require(1 <= penalty < float("inf"), "repetition_penalty", penalty, "at least 1")
        _require(self.no_repeat_ngram >= 0, "no_repeat_ngram", self.no_repeat_ngram, "at least 0")
        hot = self.temperature
        _require(0 <= hot < float("inf"), "temperature", hot, "at least 0")
        _require(self.top_k >= 0, "top_k", self.top_k, "at least 0")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")

    @property
    def rows(self) -> int:
        """Rows of a sentence in a batch. Samples have no past in common: each is a sentence."""
        return 1 if self.sample else self.beam

    @property
    def forbidden(self) -> set[int]:
        """The ids that no hypothesis may contain."""
        unknown = set() if self.allow_unknown else {UNK}
        return ({BOS, PAD, *self.never} | unknown) - {EOS}

    def longest(self, source_tokens: int) -> int:
        """The most tokens a hypothesis for a source of so many tokens may have."""
        if self.max_length is not None:
            return self.max_length
        return max(int(self.max_ratio * source_tokens + self.max_extra), self.min_length)


@dataclass(frozen=True)
class Hypothesis:
    """One output for one sentence.

    ids: its tokens, the end of sentence not among them.
    score: what hypotheses are ranked by, log_probability / length^α.
    log_probability: the model's, the end of sentence included; with a repetition penalty, the
        penalised one.
    unknowns: at how many of its positions <unk> was the most probable token.
    text: the ids as text, where a Translator made it.
    """

    ids: tuple[int, ...]
    score: float
    log_probability: float
    unknowns: int = 0
    text: str = ""


BLANK = Hypothesis((), 0.0, 0.0)  # what a blank line becomes: nothing, for certain


def best_texts(found: Iterable[Sequence[Hypothesis]]) -> list[str]:
    """The text of each line's best hypothesis; empty where there is none."""
    return [hypotheses[0].text if hypotheses else "" for hypotheses in found]


def read_options(said: Any, path: Path) -> dict[str, Any]:
    """The search options that the file at `path` says under "decoding", by name, checked."""
    try:
        _require(said is None or isinstance(said, dict), "it", repr(said), "an object of options")
        hints = get_type_hints(SearchOptions)
        options = {name: value for name, value in (said or {}).items() if name in hints}
        for name, value in options.items():
            wanted, fits = _TYPES[hints[name]]
            _require(fits(value), name, repr(value), wanted)
        SearchOptions(**options)
    except (TypeError, AttributeError, UserError) as error:
        raise UserError(f'"decoding" in {path} is no set of search options: {error}') from None
    return options


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# By the type of an option, what a file must say for it, and whether a value is that.
_TYPES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", _is_whole),
    int | None: ("a whole number or null", lambda value: value is None or _is_whole(value)),
    float: ("a number", lambda value: isinstance(value, float) or _is_whole(value)),
    tuple[int, ...]: (
        "a list of whole numbers",
        lambda value: isinstance(value, list | tuple) and all(map(_is_whole, value)),
    ),
}


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise UserError(f"{name} must be {wanted}, not {value}")
