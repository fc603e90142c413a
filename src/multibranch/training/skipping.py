"""Updates that skip dropped work: each sublayer compiled by itself, once a pattern of branches.

In a large model arithmetic dominates, and a dropped branch or feed-forward layer is best not
computed at all. Which ones are dropped changes from update to update, so that no graph can hold the
whole update; instead every sublayer is compiled for each pattern of kept branches, and the host
picks. The result is the function that masking computes.
"""

import torch

from multibranch.nn import MultiBranchTransformer

PATTERNS = 64  # compiled versions of one sublayer, over all kinds of layers and patterns


def compile_sublayers(model: MultiBranchTransformer) -> None:
    """Compile the sublayers of every block, in place; layers of one shape share their versions."""
    torch._dynamo.config.recompile_limit = PATTERNS
    for block in model.blocks:
        for name in (
            "self_attention_sublayer",
            "cross_attention_sublayer",
            "feed_forward_sublayer",
        ):
            method = getattr(block, name, None)
            if method is not None:
                # Rates and factors are constants of a version: a changed one is another pattern.
                setattr(block, name, torch.compile(method, dynamic=False))
