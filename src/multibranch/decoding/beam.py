"""Beam search.

At every step the live hypotheses of a sentence are continued in all ways, and the continuations
ranked by log-probability. Those among the first `beam` that end the sentence are finished, with the
score log-probability / length^α; the first `beam` of the others live on. The search of a sentence
ends when `beam` hypotheses have finished, or at its maximum length, where all that live are ended.

Early stopping ends it sooner, and gives the same n best. Every hypothesis that could still finish
continues a live one. Its log-probability g' is at most its ancestor's g, since log-probabilities
only add numbers ≤ 0. Its length l is at most the maximum length L (both with the end of sentence).
For α ≥ 0 and g ≤ 0, therefore, g'/l^α ≤ g/l^α ≤ g/L^α; for α < 0 the longest is the worst, and the
bound is g/l^α with the least l at which it can end. Once the n-th best finished score exceeds the
bound of the best live hypothesis, no later one can enter the n best, whatever else full search
would do.
"""

from typing import Any

import torch
from torch import Tensor

from multibranch.decoding.options import Hypothesis
from multibranch.decoding.rules import NOTHING
from multibranch.decoding.search import Search, best_of_rows, hypotheses
from multibranch.text.special import EOS, PAD, UNK


class BeamSearch(Search):
    """The `options.n_best` best hypotheses of every sentence, best first."""

    state = (
        *Search.state,
        "scores",
        "unknowns",
        "count",
        "final_scores",
        "final_ids",
        "final_lengths",
        "final_unknowns",
    )

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        b, beam, length = self.history.shape
        n_best, device = self.options.n_best, self.history.device
        real: dict[str, Any] = {"dtype": torch.float64, "device": device}
        whole: dict[str, Any] = {"dtype": torch.int64, "device": device}
        # All rows begin alike: only the first is alive, for else all would stay alike.
        self.scores = torch.full((b, beam), NOTHING, **real)
        self.scores[:, 0] = 0.0
        self.unknowns = torch.zeros(b, beam, **whole)
        self.count = torch.zeros(b, **whole)  # hypotheses that have finished
        self.final_scores = torch.full((b, n_best), NOTHING, **real)
        self.final_ids = torch.full((b, n_best, length), PAD, **whole)
        self.final_lengths = torch.zeros(b, n_best, **whole)
        self.final_unknowns = torch.zeros(b, n_best, **whole)

    def step(self) -> None:
        scores, parents, ids = self._candidates()
        self._finish(scores, parents, ids)
        self._continue(scores, parents, ids)
        self._stop()
        self.number += 1

    def _candidates(self) -> tuple[Tensor, Tensor, Tensor]:
        """The best 2·beam continuations of every sentence: score, parent row and id, (b, 2·beam).

        At most `beam` of them end the sentence, one a row, so at least `beam` do not. A row has at
        most one end, so that beam + 1 of its continuations suffice.
        """
        # At first all rows have read the same, the beginning, and it is computed once.
        tokens = self.tokens if self.taken else self.tokens[:, :1]
        log_p = self.models.log_probabilities(tokens, self.caches)  # (b, beam or 1, V)
        b, rows, size = log_p.shape
        beam = self.tokens.shape[1]
        unknown = log_p[:, :, UNK].clone()
        self.is_nan |= unknown.isnan().any()
        free = self.on_host and self.rules.forces_nothing(self.taken)
        forced = None if free else self._forced(log_p)
        self.rules.apply(log_p, self.history[:, :rows], self.number)
        values, ids = best_of_rows(log_p, min(beam + 1, size))  # (b, beam or 1, beam + 1)
        wanted = unknown >= values[:, :, 0]
        if forced is not None:
            values, ids, wanted = self._with_forced(forced, values, ids, wanted)
        self.unknowns += wanted
        ids = ids.expand(b, beam, -1)
        sums = self.scores.unsqueeze(2) + values
        best, at = sums.flatten(1).topk(2 * beam, dim=1)
        return best, at // values.shape[2], ids.flatten(1).gather(1, at)

    def _forced(self, log_p: Tensor) -> tuple[Tensor, Tensor]:
        """The ids that sentences must go on with, or −1, (b, 1, 1), and what they add to rows."""
        b, rows, _ = log_p.shape
        ids = self.rules.forced(self.number)[:, None, None]
        return ids, log_p.gather(2, ids.clamp(min=0).expand(b, rows, 1))

    def _with_forced(
        self, forced: tuple[Tensor, Tensor], values: Tensor, ids: Tensor, wanted: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The rows' best continuations, for sentences that must go on with an id that one alone.

        wanted (b, rows): whether a row would have gone on with the unknown word.
        """
        forced_ids, forced_log_p = forced
        free = forced_ids < 0
        first = torch.arange(values.shape[2], device=ids.device) == 0
        values = torch.where(free, values, forced_log_p.masked_fill(~first, NOTHING))
        return values, torch.where(free, ids, forced_ids), wanted & free[:, :, 0]

    def _finish(self, scores: Tensor, parents: Tensor, ids: Tensor) -> None:
        """Take the hypotheses that end among the first `beam` candidates into the n best."""
        beam, n_best = self.tokens.shape[1], self.options.n_best
        scores, parents, ids = scores[:, :beam], parents[:, :beam], ids[:, :beam]
        ended = (ids == EOS) & (scores > NOTHING) & ~self.done.unsqueeze(1)
        if self.on_host and not bool(ended.any()):
            return
        self.count += ended.sum(1)
        norm = self.norms.index_select(0, self.number)
        finished = (scores / norm).masked_fill(~ended, NOTHING)
        best, at = torch.cat([self.final_scores, finished], dim=1).topk(n_best, dim=1)
        self.final_scores.copy_(best)
        lengths = self.number.expand_as(parents)
        self._keep_best("final_lengths", lengths, at)
        self._keep_best("final_unknowns", self.unknowns.gather(1, parents), at)
        rows = parents.unsqueeze(2).expand(-1, -1, self.history.shape[2])
        self._keep_best("final_ids", self.history.gather(1, rows), at)

    def _keep_best(self, name: str, new: Tensor, at: Tensor) -> None:
        """Of the entries that there are and the new ones, keep those at `at`, in place."""
        both = torch.cat([getattr(self, name), new], dim=1)
        index = at if both.dim() == 2 else at.unsqueeze(2).expand(-1, -1, both.shape[2])
        getattr(self, name).copy_(both.gather(1, index))

    def _continue(self, scores: Tensor, parents: Tensor, ids: Tensor) -> None:
        """The best `beam` candidates that do not end live on."""
        best, at = scores.masked_fill(ids == EOS, NOTHING).topk(self.tokens.shape[1], dim=1)
        self.scores.copy_(best)
        parents = parents.gather(1, at)
        # A row may be dead (fewer continuations than rows): its token is PAD, its score −∞.
        self.tokens.copy_(ids.gather(1, at).masked_fill(best == NOTHING, PAD))
        rows = parents.unsqueeze(2).expand_as(self.history)
        self.history.copy_(self.history.gather(1, rows))
        self.history.index_copy_(2, self.number, self.tokens.unsqueeze(2))
        self.unknowns.copy_(self.unknowns.gather(1, parents))
        for cache in self.caches:
            cache.reorder(parents)

    def _stop(self) -> None:
        """Which sentences are done: see the argument at the head of this module."""
        best = self.scores[:, 0]
        self.done |= (self.count >= self.tokens.shape[1]) | (best == NOTHING)
        if self.options.early_stopping:
            if self.options.length_penalty >= 0:
                norm = self.norms[self.rules.max_length]
            else:
                soonest = (self.number + 1).clamp(min=self.options.min_length)
                norm = self.norms.index_select(0, soonest.clamp(max=len(self.norms) - 1))
            self.done |= best / norm < self.final_scores[:, -1]

    def results(self, places: Tensor) -> list[list[Hypothesis]]:
        return hypotheses(
            self.final_ids[places],
            self.final_lengths[places],
            self.final_scores[places],
            self.norms,
            self.final_unknowns[places],
        )
