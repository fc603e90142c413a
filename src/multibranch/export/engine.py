"""CTranslate2Engine: an exported model with the interface of decoding.Translator.

The search options mean what they mean there, and so do the scores. CTranslate2's beam search is
ours (2·beam candidates, ended ones set aside, done when `beam` have ended) but for two things:

- It ends nothing: what is unfinished at the maximum length comes back as it is. We end it, as ours
  does. And it has one maximum length for a batch: sentences that pass their own are searched again.
- What it may not write is taken out before the softmax, so that the probabilities of the rest grow;
  ours does it after. So nothing is forbidden at first. Only where something turned up that may not
  is the sentence searched again, with that forbidden; the same where a minimum length, forbidden
  repetitions or a prefix are asked for. What is found so is scored by the model anew.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from multibranch.decoding import Hypothesis, SearchOptions, Translator
from multibranch.decoding.generate import MOST_ROWS, batches
from multibranch.decoding.translator import as_paths, unused_ids
from multibranch.directory import EXPORTED
from multibranch.errors import UserError
from multibranch.export.folder import vocabulary
from multibranch.export.opening import (
    check_options,
    check_vocabularies,
    described,
    opened,
    package,
    refuse_others,
)
from multibranch.text import EOS, SPECIAL_TOKENS, TextPipeline

BATCH_TOKENS = 256  # with a beam of 5; on a CPU more is slower, for small models and for large
_END = SPECIAL_TOKENS[EOS]


@dataclass(frozen=True)
class _Sentence:
    """What one search is given: source and prefix as tokens, and the most tokens it may write."""

    source: list[str]
    prefix: list[str]
    limit: int


@dataclass(frozen=True)
class _Found:
    """One hypothesis as CTranslate2 gives it, the end of sentence not among its tokens."""

    tokens: list[str]
    score: float
    ended: bool


class CTranslate2Engine(Translator):
    """Translates lines with a model that `multibranch export --format ctranslate2` wrote.

    Use `load`. What CTranslate2 cannot do (ensembles, choosing branches, sampling, a repetition
    penalty) is refused by name. `Hypothesis.unknowns` is 0: it does not say what it did not choose.

    Args:
        engine: a ctranslate2.Translator.
        text: the model's text pipeline.
        positions: the longest sequence that the model reads or writes, in tokens.
        defaults: search options other than SearchOptions' own defaults, by name.
    """

    def __init__(
        self,
        engine: Any,
        text: TextPipeline,
        *,
        positions: int,
        defaults: dict[str, Any] | None = None,
    ) -> None:
        self.engine = engine
        self.text = text
        self.positions = positions
        self._defaults = defaults or {}
        self._never = unused_ids(text, text.target_size)
        self._source_tokens = vocabulary(text, "source")
        self._target_tokens = vocabulary(text, "target")
        self._target_ids = {token: number for number, token in enumerate(self._target_tokens)}
        # Where words have no parts <unk> is often the likeliest: it is forbidden from the start.
        self._knows_unknown = text.settings.kind == "words"

    @classmethod
    def load(
        cls,
        folders: str | Path | Sequence[str | Path],
        *,
        device: str | torch.device = "auto",
        branches: Sequence[int] | None = None,
        precision: str = "float32",
        cuda_graphs: bool = False,
        threads: int | None = None,
        workers: int | None = None,
    ) -> "CTranslate2Engine":
        """Load an exported folder.

        Args:
            device: "auto" is a GPU where there is one.
            branches, precision, cuda_graphs: of the other engine; only their defaults are taken.
            threads: CPU threads; as many as PyTorch uses unless given.
            workers: batches decoded at once, which share the threads. One a thread unless given:
                two batches at once wait less for each other than the parts of one. On two cores a
                single sentence, too, came back later from one worker with two threads.
        """
        places = as_paths(folders)
        refuse_others(places, branches=branches, precision=precision, cuda_graphs=cuda_graphs)
        [folder] = places
        package()
        said = described(folder)
        text = TextPipeline.load(folder)
        check_vocabularies(folder, text)
        engine = opened(folder, device=str(device), threads=threads, workers=workers)
        made = cls(engine, text, positions=said["positions"], defaults=said["decoding"])
        made.options()  # what the folder remembers must be options that CTranslate2 can follow
        return made

    @property
    def device(self) -> torch.device:
        return torch.device(self.engine.device)

    @property
    def precision(self) -> str:
        """CTranslate2's compute type, which follows from the folder's quantization."""
        return str(self.engine.compute_type)

    def options(self, **changes: Any) -> SearchOptions:
        """As Translator's; what CTranslate2 cannot do is refused here."""
        asked = super().options(**changes)
        check_options(asked)
        return asked

    def search(
        self,
        sources: Sequence[Sequence[int]],
        options: SearchOptions,
        *,
        prefixes: Sequence[Sequence[int]] | None = None,
        batch_tokens: int | None = None,
        progress: Callable[[int], None] | None = None,
        stop: threading.Event | None = None,
    ) -> list[list[Hypothesis]]:
        """Ids in, hypotheses without texts out; see the head of this module. `stop` is not seen."""
        begun = prefixes if prefixes is not None else [()] * len(sources)
        sentences = [self._sentence(s, p, options) for s, p in zip(sources, begun)]
        forbid = bool(options.min_length or options.no_repeat_ngram or any(map(len, begun)))
        forbid |= self._knows_unknown and not options.allow_unknown
        found: list[list[Hypothesis]] = [[] for _ in sentences]
        again: dict[int, list[int]] = {}  # by limit, the sentences to search again
        # One step more than the longest has tokens: its end.
        for members, results in self._batched(
            sentences, options, batch_tokens, forbid=forbid, more=1
        ):
            fine = [not self._in_doubt(sentences[m], r, options) for m, r in zip(members, results)]
            for m in (m for m, ok in zip(members, fine) if not ok):
                again.setdefault(sentences[m].limit, []).append(m)
            kept = [(m, r) for m, r, ok in zip(members, results, fine) if ok]
            self._note(found, kept, sentences, options, score_anew=forbid)
            if progress is not None and kept:
                progress(len(kept))
        for alike in again.values():
            lot = [sentences[m] for m in alike]
            for places, results in self._batched(lot, options, batch_tokens, forbid=True, more=0):
                searched = [(alike[place], result) for place, result in zip(places, results)]
                self._note(found, searched, sentences, options, score_anew=True)
                if progress is not None:
                    progress(len(searched))
        return found

    # -- What CTranslate2 is asked ----------------------------------------------------------

    def _sentence(
        self, source: Sequence[int], prefix: Sequence[int], options: SearchOptions
    ) -> _Sentence:
        if len(source) > self.positions or len(prefix) >= self.positions:
            raise UserError(
                f"a line has {max(len(source), len(prefix))} tokens, and this exported model takes "
                f"{self.positions}: split the line, or export with more --positions"
            )
        longest = max(options.longest(len(source) - 1), len(prefix))
        return _Sentence(
            [self._source_tokens[number] for number in source[:-1]],
            [self._target_tokens[number] for number in prefix],
            min(longest, self.positions - 1),
        )

    def _batched(
        self,
        sentences: Sequence[_Sentence],
        options: SearchOptions,
        batch_tokens: int | None,
        *,
        forbid: bool,
        more: int,
    ) -> Iterator[tuple[list[int], list[list[_Found]]]]:
        """Search in batches of similar length, some at a time so that every worker has one.

        A batch may take `more` steps than the largest of its sentences' limits.
        """
        tokens = batch_tokens or max(64, BATCH_TOKENS * 5 // max(5, options.beam))
        lengths = [len(sentence.source) + 1 for sentence in sentences]
        begun: deque[tuple[list[int], Callable[[], list[list[_Found]]]]] = deque()
        for members in batches(lengths, tokens, most=MOST_ROWS // options.beam):
            lot = [sentences[member] for member in members]
            limit = max(sentence.limit for sentence in lot) + more
            begun.append((members, self._submit(lot, options, forbid=forbid, limit=limit)))
            if len(begun) > 2 * self.engine.num_translators:
                first, wait = begun.popleft()
                yield first, wait()
        for members, wait in begun:
            yield members, wait()

    def _submit(
        self, sentences: Sequence[_Sentence], options: SearchOptions, *, forbid: bool, limit: int
    ) -> Callable[[], list[list[_Found]]]:
        """Begin the search of a batch, at most `limit` steps; what is given back awaits it."""
        forbidden = [[self._target_tokens[number]] for number in sorted(options.forbidden)]
        prefixes = [sentence.prefix for sentence in sentences]
        pending = self.engine.translate_batch(
            [sentence.source for sentence in sentences],
            prefixes if any(prefixes) else None,
            asynchronous=True,
            beam_size=options.beam,
            num_hypotheses=options.beam,  # all: they tell whether the search went as ours
            # At exactly 0 it stops by another rule.
            length_penalty=options.length_penalty or 1e-30,
            no_repeat_ngram_size=options.no_repeat_ngram,
            suppress_sequences=forbidden if forbid else None,
            return_end_token=True,  # so that the length in its scores counts it, as in ours
            max_input_length=0,
            max_decoding_length=max(1, limit),
            min_decoding_length=min(options.min_length, max(1, limit)),
            return_scores=True,
        )

        def wait() -> list[list[_Found]]:
            with _damage_told():
                return [_found(one.result()) for one in pending]

        return wait

    def _in_doubt(self, sentence: _Sentence, results: list[_Found], options: SearchOptions) -> bool:
        """Whether our search would have gone another way."""
        return any(
            not one.ended
            or len(one.tokens) > sentence.limit
            or self._has_forbidden(one, sentence, options)
            for one in results
        )

    def _has_forbidden(self, found: _Found, sentence: _Sentence, options: SearchOptions) -> bool:
        written = found.tokens[len(sentence.prefix) :]
        return not options.forbidden.isdisjoint(self._target_ids[token] for token in written)

    # -- What it answered -------------------------------------------------------------------

    def _note(
        self,
        found: list[list[Hypothesis]],
        results: Sequence[tuple[int, list[_Found]]],
        sentences: Sequence[_Sentence],
        options: SearchOptions,
        *,
        score_anew: bool,
    ) -> None:
        """Put the results of some sentences into `found` as hypotheses, best first."""
        if score_anew:
            results = self._scored_anew(results, sentences, options)
        for member, several in results:
            found[member] = [
                Hypothesis(
                    tuple(self._target_ids[token] for token in one.tokens),
                    one.score,
                    one.score * (len(one.tokens) + 1) ** options.length_penalty,
                )
                for one in several[: options.n_best]
            ]

    def _scored_anew(
        self,
        results: Sequence[tuple[int, list[_Found]]],
        sentences: Sequence[_Sentence],
        options: SearchOptions,
    ) -> list[tuple[int, list[_Found]]]:
        """The hypotheses ended, each once, with the model's own scores, best first."""
        distinct = []
        for member, several in results:
            sentence = sentences[member]
            allowed = [o for o in several if not self._has_forbidden(o, sentence, options)]
            cut = {tuple(one.tokens[: sentence.limit]) for one in allowed}
            distinct += [(member, tokens) for tokens in sorted(cut)]
        with _damage_told():
            scores = self.engine.score_batch(
                [sentences[member].source for member, _ in distinct],
                [list(tokens) for _, tokens in distinct],
                max_batch_size=BATCH_TOKENS,
                batch_type="tokens",
                max_input_length=0,
            )
        scored: dict[int, list[_Found]] = {member: [] for member, _ in results}
        for (member, tokens), scoring in zip(distinct, scores):
            score = sum(scoring.log_probs) / (len(tokens) + 1) ** options.length_penalty
            scored[member].append(_Found(list(tokens), score, True))
        return [
            (member, sorted(several, key=lambda one: -one.score))
            for member, several in scored.items()
        ]


@contextmanager
def _damage_told() -> Iterator[None]:
    """Inside, that the model has fewer positions than its description says is a UserError."""
    try:
        yield
    except RuntimeError as error:
        if "position encodings" not in str(error):
            raise
        raise UserError(
            f"the exported model has fewer positions than its {EXPORTED} says (CTranslate2: "
            f"{error}): export the model again, with more --positions"
        ) from None


def _found(result: Any) -> list[_Found]:
    return [
        _Found(tokens[:-1], score, True)
        if tokens and tokens[-1] == _END
        else _Found(tokens, score, False)
        for tokens, score in zip(result.hypotheses, result.scores)
    ]
