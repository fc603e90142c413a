"""What the modules of a pretrained model become when it is branched out.

A module keeps its object, its place and its class's other behaviour; it takes on one of the classes
below in front of its own. So whatever looks for modules by their class still finds them.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from multibranch.hub.attention import attend, may_skip
from multibranch.nn import MultiBranchAttention
from multibranch.nn.drop import draw_own, times


def become(module: nn.Module, kind: type) -> Any:
    """Put `kind` in front of the module's class; give back the same module."""
    host: Any = type(module)
    module.__class__ = _joined(kind, host)
    return module


@cache
def _joined(kind: type, host: type) -> type:
    space = {"__module__": kind.__module__, "__reduce_ex__": _reduced}
    return type(f"{kind.__name__}{host.__name__}", (kind, host), space)


def _reduced(module: nn.Module, protocol: Any) -> Any:
    """How an object of a joined class, which no name leads to, is pickled and copied."""
    joined = type(module)
    if "__reduce_ex__" not in vars(joined):  # a class that was made of a joined one
        return object.__reduce_ex__(module, protocol)
    return _empty, joined.__bases__, module.__getstate__()


def _empty(kind: type, host: type) -> Any:
    """An object of a joined class, before it has a state."""
    joined: Any = _joined(kind, host)
    return joined.__new__(joined)


class BridgedAttention(MultiBranchAttention):
    """Our layer, called as `attend` is.

    Called, not read: what fetches a module's weights from elsewhere does so when it is called.
    """

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        return attend(self, *args, **kwargs)


class BranchedAttention(nn.Module):
    """An attention module whose work `branched`, a layer of ours, does.

    The output projection is part of that; a family that keeps its own elsewhere has an identity
    there.
    """

    branched: BridgedAttention

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        *,
        encoder_hidden_states: Tensor | None = None,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """hidden_states (b, t, d) → (b, t, d), and the weights where the family would give them."""
        memory = encoder_hidden_states if key_value_states is None else key_value_states
        config = getattr(self, "config", None)
        eager = config is not None and config._attn_implementation == "eager"
        return self.branched(
            hidden_states,
            memory,
            mask=attention_mask,
            bias=position_bias,
            causal=bool(getattr(self, "is_causal", False)),
            cache=past_key_values,
            index=getattr(self, "layer_idx", None),
            need_weights=bool(output_attentions) or eager,
        )


class BranchedBlock(GradientCheckpointingLayer):
    """A block that LayerDrop leaves out, as a whole, with probability `layer_drop` in training."""

    layer_drop: float
    returns_tuple: bool

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.training or self.layer_drop == 0:
            return super().forward(hidden_states, *args, **kwargs)
        if may_skip():
            if torch.rand(()) >= self.layer_drop:
                return super().forward(hidden_states, *args, **kwargs)
            return (hidden_states, None) if self.returns_tuple else hidden_states
        output = super().forward(hidden_states, *args, **kwargs)
        states = output[0] if self.returns_tuple else output
        kept = torch.rand((), device=states.device) >= self.layer_drop
        states = torch.where(kept, states, hidden_states)
        return (states, *output[1:]) if self.returns_tuple else states


class DroppedFirst(nn.Linear):
    """The first product of a feed-forward layer; one that is dropped has no hidden units."""

    drop_branch: float

    def forward(self, input: Tensor) -> Tensor:
        if self.training and self.drop_branch and may_skip() and torch.rand(()) < self.drop_branch:
            return input.new_zeros(*input.shape[:-1], 0)
        return super().forward(input)


class DroppedSecond(nn.Linear):
    """The second product of a feed-forward layer: zero, or 1/(1 − ρ) times itself (Eq. 7)."""

    drop_branch: float

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not self.drop_branch:
            return super().forward(input)
        if input.shape[-1] == 0:
            return input.new_zeros(*input.shape[:-1], self.out_features)
        output = super().forward(input)
        if may_skip():
            return output / (1 - self.drop_branch)
        factor = draw_own(1, self.drop_branch, training=True, device=output.device)
        assert factor is not None
        return times(output, factor)
