"""Validation: the loss on held-out pairs, the score of their translations, how branches differ."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from multibranch.data import PackedBatches, PairStore
from multibranch.nn import MultiBranchTransformer, branch_similarity
from multibranch.training.processes import Processes
from multibranch.training.setup import cast_weights
from multibranch.training.step import Objective, arguments

# A score of the model on the validation sentences, and its name: (model) → (value, name).
Score = Callable[[MultiBranchTransformer], tuple[float, str]]


@torch.no_grad()
def validation_loss(
    objective: Objective,
    pairs: PairStore,
    *,
    processes: Processes,
    tokens: int,
    sharded: bool = False,
) -> tuple[float, float]:
    """The smoothed and the plain cross-entropy a target token, over all pairs.

    sharded: whether the objective is FSDP's, which gathers weights as it is called.
    """
    batches = PackedBatches(
        pairs, tokens=tokens, shuffle=False, rank=processes.rank, world=processes.world
    )
    # Not through the call, which may be compiled for the shapes of training.
    loss_of = objective if sharded else objective.forward
    was_training = objective.training
    objective.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=processes.device)
    count = 0
    for batch in batches:
        sums += loss_of(
            *arguments(batch.to(processes.device), [None]),
            source_longest=batch.source_longest,
            target_longest=batch.target_longest,
        )
        count += batch.target_count
    objective.train(was_training)
    smoothed, plain, total = processes.total(*sums.tolist(), count)
    return smoothed / max(1, total), plain / max(1, total)


class Validation:
    """Measures a model while it is trained.

    Args:
        objective: the objective that is trained.
        pairs: the validation pairs.
        tokens: target tokens of a batch of them.
        score: how to score the model, where that is wanted.
        precision: what the model computes in.
        sharded: whether its weights are shared out between the processes.
    """

    def __init__(
        self,
        objective: Objective,
        pairs: PairStore,
        *,
        processes: Processes,
        tokens: int,
        score: Score | None,
        precision: torch.dtype,
        sharded: bool,
    ) -> None:
        self.objective = objective
        self.pairs = pairs
        self.processes = processes
        self.tokens = tokens
        self.score = score
        self.precision = precision
        self.sharded = sharded

    def loss(self) -> dict[str, Any]:
        """The loss, smoothed and plain, the same in every process."""
        loss, plain = validation_loss(
            self.objective,
            self.pairs,
            processes=self.processes,
            tokens=self.tokens,
            sharded=self.sharded,
        )
        return {"loss": loss, "plain": plain}

    def all(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """Everything: the loss and the score, the same in every process, and the similarity.

        weights: those of the model, whole.
        """
        record = self.loss()
        scored: tuple[float, str] = (0.0, "")
        if self.processes.first:
            model = self._whole(weights) if self.sharded else self.objective.model
            record["similarity"] = branch_similarity(model)
            if self.score is not None:
                was_training = model.training
                scored = self.score(model.eval())
                model.train(was_training)
        if self.score is not None:
            (record["score"],) = self.processes.total(scored[0])
            record["score_name"] = scored[1]
        return record

    def of_other(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """The loss with other weights, computed by this process alone.

        As for the score, a model whose weights are shared out is made whole for that.
        """
        loss, plain = validation_loss(
            Objective(self._whole(weights), smoothing=self.objective.smoothing),
            self.pairs,
            processes=Processes(0, 1, self.processes.device),
            tokens=self.tokens,
        )
        return {"loss": loss, "plain": plain}

    def _whole(self, weights: Mapping[str, Tensor]) -> MultiBranchTransformer:
        model = MultiBranchTransformer(**self.objective.model.settings)
        model.load_state_dict(dict(weights))
        cast_weights(model, self.precision)
        return model.to(self.processes.device)
