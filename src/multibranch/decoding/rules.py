"""What hypotheses may and must contain: suppressed ids, lengths, prefixes, repetitions.

Every rule works on the whole batch at once and reads the number of the step from a tensor, so that
a recorded step can be replayed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from multibranch.decoding.options import SearchOptions
from multibranch.text.special import EOS, PAD

NOTHING = float("-inf")


class Rules:
    """The rules for one batch of b sentences.

    source_tokens: the sentences' lengths, ends not counted.
    prefixes: ids that each sentence's hypotheses begin with.
    """

    def __init__(
        self,
        options: SearchOptions,
        source_tokens: Sequence[int],
        prefixes: Sequence[Sequence[int]],
        *,
        device: torch.device,
    ) -> None:
        self.options = options
        longest = [
            max(options.longest(source), len(prefix))
            for source, prefix in zip(source_tokens, prefixes)
        ]
        self.steps = max(longest) + 1  # the last one ends what is left
        self._free = range(max(map(len, prefixes)), min(longest))  # steps that force no sentence
        self.max_length = torch.tensor(longest, device=device)  # (b,)
        # One column more than the longest prefix needs: −1, where nothing is forced any more.
        table = torch.full((len(prefixes), max(map(len, prefixes)) + 1), -1)
        for row, prefix in enumerate(prefixes):
            table[row, : len(prefix)] = torch.as_tensor(prefix, dtype=torch.int64)
        self.prefix = table.to(device)  # (b, longest prefix + 1)
        # PAD must be among them: other rules write there what they have no use for.
        self.never = torch.tensor(sorted(options.forbidden), device=device)

    def select(self, sentences: Tensor) -> None:
        """Keep the rules of these sentences only."""
        self.max_length = self.max_length[sentences]
        self.prefix = self.prefix[sentences]

    def forces_nothing(self, step: int) -> bool:
        """Whether every sentence may go on with any id at this step, as far as the host knows."""
        return step in self._free

    def forced(self, step: Tensor) -> Tensor:
        """The id that each sentence must go on with at this step (1,), or −1: (b,)."""
        column = step.clamp(max=self.prefix.shape[1] - 1)
        prefix = self.prefix.index_select(1, column).squeeze(1)
        return prefix.masked_fill(step >= self.max_length, EOS)

    def apply(self, log_p: Tensor, history: Tensor, step: Tensor) -> None:
        """Lower or forbid tokens in log_p (b, beam, V), in place.

        history (b, beam, T): the rows' tokens, PAD from this step (1,) on.
        """
        options = self.options
        if options.repetition_penalty != 1:
            lowered = log_p.gather(2, history).mul_(options.repetition_penalty)
            log_p.scatter_(2, history, lowered)
        if options.no_repeat_ngram:
            _forbid_repeated(log_p, history, step, options.no_repeat_ngram)
        log_p.index_fill_(2, self.never, NOTHING)
        if options.min_length:
            too_short = (step < options.min_length).view(1, 1)
            log_p[:, :, EOS].masked_fill_(too_short, NOTHING)


def _forbid_repeated(log_p: Tensor, history: Tensor, step: Tensor, size: int) -> None:
    """Forbid every token that would complete a sequence of `size` tokens that the row has had."""
    if history.shape[2] < size:
        return
    windows = history.unfold(2, size, 1)  # (b, beam, T − size + 1, size)
    latest = step + torch.arange(1 - size, 0, device=step.device)  # the row's last size − 1 places
    recent = history.index_select(2, latest.clamp(min=0))  # (b, beam, size − 1)
    # Only windows that lie within the row; so before size − 1 tokens there are none.
    places = torch.arange(windows.shape[2], device=step.device) + (size - 1)
    repeats = (windows[..., :-1] == recent.unsqueeze(2)).all(-1) & (places < step)
    forbidden = windows[..., -1].masked_fill(~repeats, PAD)
    log_p.scatter_(2, forbidden, NOTHING)
