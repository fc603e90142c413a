"""Many processes: torchrun starts them, PyTorch's own engines connect them.

Every process draws the same branches to drop and its own dropout. DDP averages gradients; FSDP2
(`train.sharding: full`) also shares out weights and Adam's moments, for models that outgrow a GPU.
"""

import atexit
import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from multibranch.device import choose_device
from multibranch.errors import UserError


@dataclass(frozen=True)
class Processes:
    """This process among the others of a run."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and talks."""
        return self.rank == 0

    def total(self, *numbers: float) -> list[float]:
        """The sums of some numbers over all processes."""
        if self.world == 1:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(values)
        return values.tolist()

    def wait(self) -> None:
        """Wait for all processes."""
        if self.world > 1:
            dist.barrier()

    def first_does(self, work: Callable[[], None]) -> None:
        """Let the first process do something, and the others wait for it.

        Where that fails with a UserError, all stop, and only the first says why.
        """
        failure = None
        if self.first:
            try:
                work()
            except UserError as error:
                failure = error
        (failed,) = self.total(0.0 if failure is None else 1.0)
        if failure is not None:
            raise failure
        if failed:
            raise SystemExit(2)

    def from_first(self, content: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Any, Any]:
        """What the first process gives, in all processes: a JSON object and CPU tensors by name."""
        if self.world == 1:
            return content, tensors
        outline = [(name, list(t.shape), str(t.dtype)[6:]) for name, t in tensors.items()]
        content, outline = json.loads(self._broadcast(json.dumps([content, outline]).encode()))
        received = {}
        for name, shape, dtype in outline:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            given = tensors[name] if self.first else tensor
            received[name] = self._broadcast_tensor(given)
        return content, received

    def _broadcast(self, data: bytes) -> bytes:
        (length,) = self._broadcast_tensor(torch.tensor([len(data)])).tolist()
        given = bytearray(data) if self.first else bytearray(length)
        return self._broadcast_tensor(torch.frombuffer(given, dtype=torch.uint8)).numpy().tobytes()

    def _broadcast_tensor(self, tensor: Tensor) -> Tensor:
        moved = tensor.to(self.device)
        dist.broadcast(moved, src=0)
        return moved.cpu()


def join(device: str) -> Processes:
    """Join the processes that torchrun's environment describes, or be the only one."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = choose_device(device, option="train.device", local_rank=local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if world > 1 and not dist.is_initialized():
        store, rank, world = next(dist.rendezvous("env://"))
        # torchrun's store outlives its workers: those started again must not find the addresses
        # of those that died.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        dist.init_process_group(
            "nccl" if chosen.type == "cuda" else "gloo",
            store=dist.PrefixStore(f"attempt-{attempt}", store),
            rank=rank,
            world_size=world,
        )
        # Once for all runs of this process: a process that has left cannot join the others again.
        atexit.register(dist.destroy_process_group)
    return Processes(rank, world, chosen)


def wrap(objective: nn.Module, processes: Processes, *, unused: bool) -> tuple[nn.Module, Any]:
    """The objective with gradients averaged by DDP, and the context that leaves that out.

    unused: whether some parameters may get no gradient, as when dropped work is skipped.
    """
    if processes.world == 1:
        return objective, nullcontext
    wrapped = nn.parallel.DistributedDataParallel(
        objective, find_unused_parameters=unused, gradient_as_bucket_view=True
    )
    return wrapped, wrapped.no_sync


def shard(objective: nn.Module, processes: Processes, *, dtype: torch.dtype) -> nn.Module:
    """The objective with its blocks' weights shared out between the processes by FSDP2.

    FSDP2 moves the weights to the device itself, those of one block at a time, and keeps its shard.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Shard

    def placement(weight: nn.Parameter) -> Shard | None:
        even = even_dimension(weight.shape, processes.world)
        return None if even is None else Shard(even)

    mesh = init_device_mesh(processes.device.type, (processes.world,))
    policy = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # the factors of drop-branch stay float32
    )
    for block in objective.model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, mp_policy=policy, shard_placement_fn=placement)
    return fully_shard(  # type: ignore[return-value]
        objective, mesh=mesh, mp_policy=policy, shard_placement_fn=placement
    )


def even_dimension(shape: Sequence[int], parts: int) -> int | None:
    """The first dimension that can be cut into equal parts, or None.

    FSDP2 would cut the first, which of our weights is the branches: too few to go round.
    """
    return next((number for number, size in enumerate(shape) if size % parts == 0), None)
