"""Adam on float32 weights, whatever the model computes in.

A bfloat16 model has float32 masters beside its own weights: gradients are gathered for the masters,
Adam updates those, and the model receives rounded copies. A float32 model is its own master.
An update whose gradient is not finite is skipped on the device, without asking the host.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from multibranch.training.loss import gradient_norm


class Optimiser:
    """Gathers gradients, and updates a model's weights with Adam.

    Args:
        model: its parameters, float32 or bfloat16, are updated in place.
        betas, epsilon, weight_decay: Adam's (decoupled decay).
        clip_norm: the largest norm of the whole gradient; 0 leaves it alone.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        betas: Sequence[float] = (0.9, 0.98),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        clip_norm: float = 0.0,
    ) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in named]
        self.parameters: list[Tensor] = [parameter for _, parameter in named]
        self.mixed = any(p.dtype != torch.float32 for p in self.parameters)
        self.masters: list[Tensor] = [
            nn.Parameter(p.detach().float().clone()) if self.mixed else p for p in self.parameters
        ]
        self.clip_norm = clip_norm
        device = self.parameters[0].device
        on_gpu = device.type == "cuda"
        # As tensors on the device, these can change between replays of a captured step.
        self.rate = torch.zeros((), device=device)
        self.skipped = torch.zeros((), device=device)  # 1 after an update that was skipped
        self.adam = torch.optim.AdamW(
            self.masters,
            lr=self.rate if on_gpu else 0.0,
            betas=(betas[0], betas[1]),
            eps=epsilon,
            weight_decay=weight_decay,
            fused=True,
            capturable=on_gpu,
        )
        self.adam.grad_scale = None  # type: ignore[attr-defined]
        self.adam.found_inf = self.skipped  # type: ignore[attr-defined]
        if self.mixed:
            for master in self.masters:
                master.grad = torch.zeros_like(master)

    def set_rate(self, rate: float) -> None:
        """The learning rate of the updates that follow."""
        self.rate.fill_(rate)
        if not self.rate.is_cuda:
            for group in self.adam.param_groups:
                group["lr"] = rate

    @torch.no_grad()
    def initialise(self) -> None:
        """Make Adam's moments by a step that changes nothing, before a step is captured."""
        held = [master.grad for master in self.masters]
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self.skipped.fill_(1.0)
        self.adam.step()
        for master, gradient in zip(self.masters, held):
            master.grad = gradient

    @torch.no_grad()
    def gather(self, gradients: Sequence[Tensor], *, first: bool) -> None:
        """Take the gradients of one batch of an update; the first replaces what was there."""
        own = self._gradients()
        if first:
            torch._foreach_copy_(own, list(gradients))
        else:
            torch._foreach_add_(own, [gradient.float() for gradient in gradients])

    @torch.no_grad()
    def update(self) -> Tensor:
        """One step of Adam with the gathered gradients; gives back their norm, before clipping."""
        gradients = self._gradients()
        norm = _whole(gradient_norm(gradients))
        self.skipped.copy_((~torch.isfinite(norm)).float())
        if self.clip_norm:
            torch._foreach_mul_(gradients, (self.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        self.adam.step()
        self.publish()
        return norm

    def _gradients(self) -> list[Tensor]:
        """Where gradients are gathered: zero where there was none yet, as of a skipped layer."""
        for master in self.masters:
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        return [m.grad for m in self.masters if m.grad is not None]

    @torch.no_grad()
    def publish(self) -> None:
        """Give the model the masters' values."""
        if self.mixed:
            torch._foreach_copy_(self.parameters, self.masters)

    def clear(self) -> None:
        """Forget the gradients of the last update."""
        for parameter in self.parameters:
            parameter.grad = None

    # -- Resuming ---------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The float32 weights by name; shared out, they come whole to the first process only."""
        return _gathered({name: m.detach() for name, m in zip(self.names, self.masters)})

    def state(self) -> dict[str, Tensor]:
        """Everything an exact continuation needs, by name: weights and Adam's moments."""
        state = {f"weight/{name}": m.detach() for name, m in zip(self.names, self.masters)}
        for name, master in zip(self.names, self.masters):
            moments = self.adam.state.get(master, {})
            if moments:
                state[f"mean/{name}"] = moments["exp_avg"]
                state[f"square/{name}"] = moments["exp_avg_sq"]
                state[f"steps/{name}"] = moments["step"].reshape(1)
        return _gathered(state)

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` gave."""
        for name, master in zip(self.names, self.masters):
            _assign(master, state[f"weight/{name}"])
            if f"mean/{name}" not in state:
                continue
            on_gpu = master.device.type == "cuda"
            moments = {
                "step": state[f"steps/{name}"]
                .reshape(())
                .float()
                .to(master.device if on_gpu else "cpu"),
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }
            _assign(moments["exp_avg"], state[f"mean/{name}"])
            _assign(moments["exp_avg_sq"], state[f"square/{name}"])
            self.adam.state[master] = moments
        self.publish()


def _whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor, of which this process may hold only a shard."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _gathered(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, whole. Shards are gathered one tensor at a time and kept in the first process's
    own memory: together they may be more than a GPU holds.
    """
    if not any(hasattr(tensor, "full_tensor") for tensor in tensors.values()):
        return tensors
    first = torch.distributed.get_rank() == 0
    kept = {}
    for name, tensor in tensors.items():
        whole = _whole(tensor)
        if first:
            kept[name] = whole.cpu()
    return kept


def _assign(tensor: Tensor, value: Tensor) -> None:
    """Copy a whole value into a tensor or into this process's shard of it."""
    if hasattr(tensor, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        tensor.copy_(
            distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)  # type: ignore[attr-defined]
        )
    else:
        tensor.copy_(value)
