"""Updates that skip dropped work: each sublayer compiled by itself, once a pattern of branches.

In a large model arithmetic dominates, and a dropped branch or feed-forward layer is best not
computed at all. Which ones are dropped changes from update to update, so that no graph can hold the
whole update; instead every sublayer is compiled for each pattern of kept branches, and the host
picks. The result is the function that masking computes.
"""

from types import MethodType

import torch

from multibranch.nn import MultiBranchTransformer

PATTERNS = 64  # compiled versions of one sublayer, over all kinds of layers and patterns
SUBLAYERS = ("self_attention_sublayer", "cross_attention_sublayer", "feed_forward_sublayer")


def compile_sublayers(model: MultiBranchTransformer, *, backend: str = "inductor") -> None:
    """Compile the sublayers of every block, in place; layers of one shape share their versions."""
    torch._dynamo.config.recompile_limit = PATTERNS
    for block in model.blocks:
        for name in SUBLAYERS:
            method = getattr(type(block), name, None)
            if method is not None:
                # Rates and factors are constants of a version: a changed one is another pattern.
                compiled = torch.compile(method, dynamic=False, backend=backend)
                # As a method, which a copy of the block binds to the copy.
                setattr(block, name, MethodType(compiled, block))
