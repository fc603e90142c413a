"""Greedy search and sampling: one hypothesis a sentence, its next token taken or drawn."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from multibranch.decoding.options import Hypothesis
from multibranch.decoding.rules import NOTHING
from multibranch.decoding.search import Search, hypotheses
from multibranch.text.special import EOS, PAD, UNK


class RowSearch(Search):
    """One hypothesis a sentence: the most probable token each time, or a drawn one.

    keys: of each sentence's draws (see `draw_key`), where `options.sample` asks for them.
    """

    state = (*Search.state, "keys", "sums", "ended", "lengths", "unknowns")

    def __init__(self, *arguments: Any, keys: Sequence[int] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        b, rows, _ = self.history.shape
        device = self.history.device
        keys = [0] * b if keys is None else keys
        self.keys = torch.tensor(keys, dtype=torch.int64, device=device)  # (b,) of the draws
        self.sums = torch.zeros(b, rows, dtype=torch.float64, device=device)  # log-probabilities
        self.ended = torch.zeros(b, rows, dtype=torch.bool, device=device)
        self.lengths = torch.zeros(b, rows, dtype=torch.int64, device=device)
        self.unknowns = torch.zeros(b, rows, dtype=torch.int64, device=device)

    def step(self) -> None:
        log_p = self.models.log_probabilities(self.tokens, self.caches)  # (b, rows, V)
        unknown = log_p[:, :, UNK].clone()
        self.is_nan |= unknown.isnan().any()
        forced = self.rules.forced(self.number).unsqueeze(1)  # (b, 1)
        free = (forced < 0).expand_as(self.tokens)
        forced = forced.clamp(min=0).expand_as(self.tokens)
        forced_log_p = log_p.gather(2, forced.unsqueeze(2)).squeeze(2)
        self.rules.apply(log_p, self.history, self.number)
        best, ids = log_p.max(2)
        self.unknowns += (unknown >= best) & free & ~self.ended
        if self.options.sample and self.options.temperature > 0:
            ids = self._draw(log_p)
        chosen = log_p.gather(2, ids.unsqueeze(2)).squeeze(2)
        ids = torch.where(free, ids, forced)
        chosen = torch.where(free, chosen, forced_log_p)
        self.sums += chosen.masked_fill(self.ended, 0.0)
        # A row to which every token is forbidden ends too; its sum of −∞ says that it is nothing.
        self.ended |= (ids == EOS) | (self.sums == NOTHING)
        self.lengths += ~self.ended
        self.tokens.copy_(ids.masked_fill(self.ended, PAD))
        self.history.index_copy_(2, self.number, self.tokens.unsqueeze(2))
        self.done |= self.ended.all(1)
        self.number += 1

    def _draw(self, log_p: Tensor) -> Tensor:
        """One id a row (b, rows), drawn from log_p (b, rows, V) as the options say."""
        options = self.options
        log_p = log_p.double()
        # Less the highest: near temperature 0 all would be −∞ otherwise, and none be drawn.
        scaled = (log_p - log_p.amax(2, keepdim=True)) / options.temperature
        ids = None
        if options.top_k or options.top_p < 1:
            count = min(options.top_k or scaled.shape[2], scaled.shape[2])
            scaled, ids = scaled.topk(count, dim=2)
        p = scaled.softmax(2)
        if options.top_p < 1:
            before = p.cumsum(2) - p
            p = p.masked_fill(before >= options.top_p, 0.0)
        up_to = p.cumsum(2)
        total = up_to[:, :, -1:]
        # Just below the total: rounding must not reach past the last token that can be drawn.
        level = torch.minimum(self._uniform().unsqueeze(2) * total, total * (1 - 1e-15))
        at = torch.searchsorted(up_to, level, right=True)
        at = at.clamp(max=up_to.shape[2] - 1)  # where every token is forbidden, as in greedy search
        return (at if ids is None else ids.gather(2, at)).squeeze(2)

    def _uniform(self) -> Tensor:
        """Numbers in [0, 1), (b, 1): functions of the sentence's key and the step alone."""
        mixed = _mix(self.keys.unsqueeze(1) + self.number * -7046029254386353131)
        return ((mixed >> 11) & ((1 << 53) - 1)).double() * 2.0**-53

    def results(self, places: Tensor) -> list[list[Hypothesis]]:
        lengths = self.lengths[places]
        scores = self.sums[places] / self.norms[lengths]
        return hypotheses(self.history[places], lengths, scores, self.norms, self.unknowns[places])


def draw_key(seed: int, number: int, source: Sequence[int]) -> int:
    """The key of the draws for a sentence's sample `number`, whatever batch they stand in."""
    said = f"{seed}:{number}:{','.join(map(str, source))}".encode()
    digest = hashlib.blake2b(said, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _mix(state: Tensor) -> Tensor:
    """The finaliser of SplitMix64 on int64, whose products wrap and whose shifts need a mask."""
    state = (state ^ ((state >> 30) & ((1 << 34) - 1))) * -4658895280553007687
    state = (state ^ ((state >> 27) & ((1 << 37) - 1))) * -7723592293110705685
    return state ^ ((state >> 31) & ((1 << 33) - 1))
