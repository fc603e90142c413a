"""The loss on held-out pairs."""

import torch

from multibranch.data import PackedBatches, PairStore
from multibranch.nn import MultiBranchTransformer, kernels
from multibranch.training.processes import Processes


@torch.no_grad()
def validation_loss(
    model: MultiBranchTransformer,
    store: PairStore,
    *,
    processes: Processes,
    tokens: int,
    smoothing: float,
) -> tuple[float, float]:
    """The smoothed and the plain cross-entropy a target token, over all pairs of `store`."""
    batches = PackedBatches(
        store, tokens=tokens, shuffle=False, rank=processes.rank, world=processes.world
    )
    smoothed = plain = 0.0
    count = 0
    was_training = model.training
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=processes.device)
    for batch in batches:
        batch = batch.to(processes.device)
        states = model.states(
            batch.source,
            batch.target_input,
            source_boundaries=batch.source_boundaries,
            target_boundaries=batch.target_boundaries,
            source_longest=batch.source_longest,
            target_longest=batch.target_longest,
        )
        loss = kernels.smoothed_cross_entropy(
            states,
            model.output_vectors,
            batch.target_output,
            smoothing=smoothing,
            ignore_index=model.padding,
        )
        sums += torch.stack(loss)
        count += batch.target_count
    model.train(was_training)
    smoothed, plain = sums.tolist()
    smoothed, plain, total = processes.total(smoothed, plain, count)
    return smoothed / max(1, total), plain / max(1, total)
