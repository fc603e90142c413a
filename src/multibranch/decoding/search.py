"""The loop that beam search and sampling share: steps, sentences that leave, replayed steps.

A search holds tensors for b sentences with `rows` hypotheses each. A step changes them in place and
asks nothing of the host; every few steps the host looks which sentences are done, takes their
results and lets the others close ranks.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from multibranch.decoding.ensemble import Ensemble
from multibranch.decoding.options import Hypothesis, SearchOptions
from multibranch.decoding.rules import NOTHING, Rules
from multibranch.nn.cache import Room
from multibranch.text.special import BOS, PAD

_TIDY_EVERY = 8  # steps after which the cache drops what no hypothesis descends from


class Recorder(Protocol):
    """Records what a function does on the device; gives back how to do that again."""

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]: ...


class Search(ABC):
    """Decodes one batch. Subclasses say what a step does (`step`) and what was found (`results`).

    Args:
        models: what to step through.
        sources: padded ids (b, s).
        source_tokens: the sources' lengths, ends not counted.
        prefixes: ids that each sentence's hypotheses begin with; empty for none.
        recorder: replay steps instead of running them one operation at a time.
        room: memory that one batch's caches leave to the next one's.
        stop: an event that breaks the search off once it is set.
    """

    # The tensors that have one entry a sentence, by name; they shrink as sentences leave.
    state: tuple[str, ...] = ("tokens", "history", "done", "sentence")

    def __init__(
        self,
        models: Ensemble,
        sources: Tensor,
        *,
        source_tokens: Sequence[int],
        prefixes: Sequence[Sequence[int]],
        options: SearchOptions,
        recorder: Recorder | None = None,
        room: Room | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        device = models.device
        self.models, self.options, self.recorder = models, options, recorder
        self.stop = stop
        self.rules = Rules(options, source_tokens, prefixes, device=device)
        self.caches = models.start(sources, beam=options.rows, steps=self.rules.steps, room=room)
        b = len(source_tokens)
        self.on_host = device.type == "cpu"
        self.taken = 0  # steps
        self.number = torch.zeros(1, dtype=torch.int64, device=device)  # of the step, for the rules
        self.tokens = torch.full((b, options.rows), BOS, device=device)
        self.history = torch.full((b, options.rows, self.rules.steps), PAD, device=device)
        self.done = torch.zeros(b, dtype=torch.bool, device=device)
        self.sentence = torch.arange(b, device=device)  # which sentence of the batch stands where
        lengths = torch.arange(1, self.rules.steps + 1, dtype=torch.float64, device=device)
        self.norms = lengths**options.length_penalty  # (steps,) of hypotheses that end at each step
        self.found: dict[int, list[Hypothesis]] = {}
        # Whether the models computed NaN, which leaves no hypothesis: one makes its whole row NaN.
        self.is_nan = torch.zeros((), dtype=torch.bool, device=device)

    @abstractmethod
    def step(self) -> None:
        """Read one token a row, choose the next ones; in place, and without asking the host."""

    @abstractmethod
    def results(self, places: Tensor) -> list[list[Hypothesis]]:
        """What was found for the sentences at these places, best first."""

    def run(self) -> list[list[Hypothesis]]:
        """All steps; gives back the hypotheses of every sentence in the order of the batch."""
        if self.recorder is None:
            self._run_steps()
        else:
            self._run_recorded(self.recorder)
        for cache in self.caches:
            cache.close()
        return [self.found[sentence] for sentence in range(len(self.found))]

    # -- Step after step --------------------------------------------------------------------

    def _run_steps(self) -> None:
        look_every = 1 if self.on_host else 4  # a look makes the host wait for the device
        while self._unfinished():
            self.step()
            self.taken += 1
            if self.taken % look_every == 0 or self.taken == self.rules.steps:
                self._let_go(at_least=1 if self.on_host else len(self.done) // 8 + 1)
            if self.taken % _TIDY_EVERY == 0:
                for cache in self.caches:
                    cache.tidy()

    def _unfinished(self) -> bool:
        if self.stop is not None and self.stop.is_set():
            raise InterruptedError("the search was broken off")
        if len(self.done) and self.taken >= self.rules.steps:
            self.done.fill_(True)
            self._let_go(at_least=1)
        return len(self.done) > 0

    def _let_go(self, *, at_least: int) -> None:
        """Take the results of the sentences that are done, once they are so many, or all."""
        done = self.done.tolist()
        count = sum(done)
        if count < min(at_least, len(done)) or not count:
            return
        leaving = [place for place, over in enumerate(done) if over]
        index = self._index(leaving)
        for sentence, found in zip(self.sentence[index].tolist(), self.results(index)):
            self.found[sentence] = found
        remaining = len(done) - count
        # Sentences from the end move into the gaps: few move, and the order does not matter.
        order = list(range(remaining))
        movers = iter(place for place in range(remaining, len(done)) if not done[place])
        for place in leaving:
            if place < remaining:
                order[place] = next(movers)
        stay = self._index(order)
        for name in self.state:
            setattr(self, name, getattr(self, name)[stay])
        self.rules.select(stay)
        if remaining:
            for cache in self.caches:
                cache.select(stay)

    def _index(self, places: list[int]) -> Tensor:
        return torch.tensor(places, dtype=torch.int64, device=self.done.device)

    # -- Replayed steps ---------------------------------------------------------------------

    def _run_recorded(self, recorder: Recorder) -> None:
        """In spans of one shape each: a step as it is, which warms up, then replays of the next."""
        span = 16
        self.step()  # the first has a shape of its own
        self.taken += 1
        while self._unfinished():
            span_steps = min(span, self.rules.steps - self.taken)
            for cache in self.caches:
                cache.reserve(span_steps)
                cache.fix()
            self.on_host = False  # no shortcuts that look at values: a replay cannot take them
            self.step()
            self.taken += 1
            self._replay(recorder, span_steps - 1)
            for cache in self.caches:
                cache.release()
            self._let_go(at_least=1)
            if len(self.done):
                for cache in self.caches:
                    cache.tidy()
            span = min(2 * span, 128)

    def _replay(self, recorder: Recorder, steps: int) -> None:
        if not steps:
            return
        replay = recorder(self.step)  # the caches count the recorded step already
        for number in range(steps):
            replay()
            self.taken += 1
            if number:
                for cache in self.caches:
                    cache.note_step()
            # Half of the sentences done: smaller shapes are worth another recording.
            if number % 4 == 3 and int(self.done.sum()) * 2 >= len(self.done):
                return


def best_of_rows(log_p: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest of every row of log_p (b, rows, V), descending, and their ids.

    The vocabulary is cut into V/8 groups of 8. The best `count` ids all lie in the `count` groups
    with the highest maxima (any other group's maximum is surpassed by `count` others), so only
    those are searched: one vectorised pass instead of a selection among V.
    """
    size = log_p.shape[-1]
    groups = size // 8
    if size % 8 or groups < count:
        return tuple(log_p.topk(count, dim=-1))  # type: ignore[return-value]
    maxima = log_p.unflatten(-1, (8, groups)).amax(-2)  # group g: ids g, g + V/8, g + 2·V/8, …
    best = maxima.topk(count, dim=-1, sorted=False).indices  # (b, rows, count)
    offsets = torch.arange(0, size, groups, device=log_p.device)
    ids = (best.unsqueeze(-1) + offsets).flatten(-2)  # (b, rows, 8·count)
    values, at = log_p.gather(-1, ids).topk(count, dim=-1)
    return values, ids.gather(-1, at)


def hypotheses(
    ids: Tensor, lengths: Tensor, scores: Tensor, norms: Tensor, unknowns: Tensor
) -> list[list[Hypothesis]]:
    """Hypothesis objects from ids (b, n, T), the rest (b, n); those of score −∞ do not exist.

    norms (steps,): length^α by the number of tokens before the end.
    """
    log_probabilities = (scores * norms[lengths]).tolist()
    rows = zip(
        ids.tolist(), lengths.tolist(), scores.tolist(), log_probabilities, unknowns.tolist()
    )
    return [
        [
            Hypothesis(tuple(tokens[:length]), score, log_p, unknown)
            for tokens, length, score, log_p, unknown in zip(*sentence)
            if score > NOTHING
        ]
        for sentence in rows
    ]
