"""Fine-tuning a classifier: the loop over epochs, and the update, run plainly or as CUDA graphs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from multibranch.tasks.understanding_config import ClassifierTraining
from multibranch.tasks.understanding_tokens import (
    Batch,
    Tokens,
    evaluation_batches,
    take,
    training_order,
)

_EVALUATION_BATCH = 128
_WARM_UP = 3  # passes before a graph is captured, for the libraries' own set-up


@dataclass
class Epoch:
    """What an epoch came to: mean training loss, seconds, and scores by their name."""

    number: int
    loss: float
    seconds: float
    scores: dict[str, float] = field(default_factory=dict)


def fine_tune(
    model: nn.Module,
    tokens: Tokens,
    training: ClassifierTraining,
    *,
    device: torch.device,
    after_epoch: Callable[[Epoch], None],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Train the model on the tokens, in place.

    Batches are a function of the seed and the epoch; dropout and drop-branch follow the seed.
    `progress` is told how many updates of how many are done, `after_epoch` what an epoch came to.
    """
    tokens = tokens.to(device)
    model.to(device).train()
    torch.manual_seed(training.seed)
    first = training_order(tokens.lengths, training.batch, seed=training.seed, epoch=0)
    total = training.max_updates or training.epochs * len(first)
    updates = make_updates(model, training, device)
    done = 0
    for epoch in range(-(-total // len(first))):
        started = time.perf_counter()
        order = training_order(tokens.lengths, training.batch, seed=training.seed, epoch=epoch)
        order = order[: total - done]
        for positions in order:
            rate = training.learning_rate * linear(done, total, warmup=training.warmup)
            updates.run(take(tokens, positions, training.batch), rate)
            done += 1
            if progress is not None:
                progress(done, total)
        loss = updates.take_loss() / len(order)
        after_epoch(Epoch(epoch + 1, loss, time.perf_counter() - started))
        model.train()


def linear(done: int, total: int, *, warmup: float) -> float:
    """The factor of the learning rate: up over the first share of updates, then down to 0."""
    rising = max(1, round(warmup * total))
    if done < rising:
        return (done + 1) / rising
    return (total - done) / max(1, total - rising)


@torch.no_grad()
def predict(model: nn.Module, tokens: Tokens, *, device: torch.device, bfloat16: bool) -> Tensor:
    """The probabilities (n, labels) of every example, on the CPU."""
    model.to(device).eval()
    tokens = tokens.to(device)
    found: list[tuple[np.ndarray, Tensor]] = []
    for positions, batch in evaluation_batches(tokens, _EVALUATION_BATCH):
        with _arithmetic(device, bfloat16):
            logits = model(**batch.inputs(model)).logits
        found.append((positions, logits.float().softmax(-1)))
    probabilities = torch.empty(len(tokens), found[0][1].shape[1])
    for positions, part in found:
        probabilities[torch.from_numpy(positions)] = part.cpu()
    return probabilities


def uses_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether matrix products run in bfloat16: where asked for, and on a GPU by itself."""
    return precision == "bfloat16" or (precision == "auto" and device.type == "cuda")


@contextmanager
def _arithmetic(device: torch.device, bfloat16: bool) -> Iterator[None]:
    """The precision of products; and attention without cuDNN, which plans anew for every shape."""
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16), sdpa_kernel(kernels):
        yield


class Updates:
    """One optimiser step a call. Gradients stay allocated: what was dropped has a gradient of 0."""

    def __init__(self, model: nn.Module, training: ClassifierTraining, device: torch.device):
        self.model = model
        self.clip_norm = training.clip_norm
        self.device = device
        self.bfloat16 = uses_bfloat16(training.precision, device)
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self.rate = torch.zeros((), device=device)
        beta1, beta2 = training.betas
        self.optimiser = torch.optim.AdamW(
            self.parameters,
            lr=self.rate,
            betas=(beta1, beta2),
            eps=training.epsilon,
            weight_decay=training.weight_decay,
            fused=True,
            capturable=device.type == "cuda",
        )
        self.loss = torch.zeros((), device=device)
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, self.gradients):
            parameter.grad = gradient

    def run(self, batch: Batch, rate: float) -> None:
        self.rate.fill_(rate)
        self._gradients(batch)
        self._step()

    def take_loss(self) -> float:
        """The sum of the losses since this was asked last."""
        value = float(self.loss)
        self.loss.zero_()
        return value

    def _gradients(self, batch: Batch) -> None:
        with _arithmetic(self.device, self.bfloat16):
            logits = self.model(**batch.inputs(self.model)).logits
        losses = F.cross_entropy(logits.float(), batch.labels, reduction="none")
        loss = (losses * batch.weights).sum() / batch.weights.sum()
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        pairs = list(zip(self.gradients, found))
        torch._foreach_copy_(
            [kept for kept, new in pairs if new is not None],
            [new for _, new in pairs if new is not None],
        )
        if dropped := [kept for kept, new in pairs if new is None]:
            torch._foreach_zero_(dropped)
        self.loss += loss.detach()

    def _step(self) -> None:
        if self.clip_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        self.optimiser.step()


class GraphedUpdates(Updates):
    """The same updates, captured once for each width of a batch and replayed as one launch."""

    def __init__(self, model: nn.Module, training: ClassifierTraining, device: torch.device):
        super().__init__(model, training, device)
        # The optimiser makes its state at its first step; one with no gradient leaves it zero.
        self.optimiser.step()
        for state in self.optimiser.state.values():
            state["step"].zero_()
        self.batches: dict[int, Batch] = {}
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.pool: Any = None

    def run(self, batch: Batch, rate: float) -> None:
        width = batch.ids.shape[1]
        self.rate.fill_(rate)
        if width not in self.graphs:
            self.batches[width] = batch
            self._capture(width)
        static = self.batches[width]
        for name in ("ids", "mask", "types", "labels", "weights"):
            if (value := getattr(batch, name)) is not None:
                getattr(static, name).copy_(value)
        self.graphs[width].replay()

    def _capture(self, width: int) -> None:
        batch = self.batches[width]
        loss = self.loss.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                self._gradients(batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self._gradients(batch)
            self._step()
        self.loss.copy_(loss)
        self.pool = graph.pool()
        self.graphs[width] = graph


def make_updates(model: nn.Module, training: ClassifierTraining, device: torch.device) -> Updates:
    """What runs the updates: as CUDA graphs where asked for, and on a GPU by itself."""
    graphs = device.type == "cuda" if training.graphs is None else training.graphs
    return (GraphedUpdates if graphs else Updates)(model, training, device)
