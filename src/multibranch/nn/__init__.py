"""The paper's Sections 3 and 7 as PyTorch modules: keyword arguments in, tensors out.

Read in this order: drop (Eq. 5), attention (Eqs. 4 to 6), feed_forward (Eqs. 3, 7 and 8), blocks
(Figure 1), transformer (Section 3.1), branching (Section 3.3); embedding and masks are parts of
these, weights what they begin with, cache what decoding remembers.

All else is there for speed, beside plain PyTorch that it is held against. Products: linear. Packed
batches and the loss: kernels, with operators and triton_kernels on a GPU, training_kernels (also
dropout) and chunked_loss on a CPU. Decoding: stepper, with products; in eight bits int8_*. compiled
loads what is written in C. plainly switches fast paths off.

The letters in shapes:

    b   sentences in a padded batch     N_a  branches of an attention layer
    t   target length                   N_f  branches of a feed-forward layer
    s   source length                   m    heads of one branch (the paper's M)
    n   tokens of a packed batch        h    heads of all branches, N_a·m
    d   width of the states             w    width of a head, d/m
    d_h hidden width of a branch        V    vocabulary
"""

from multibranch.nn.attention import MultiBranchAttention
from multibranch.nn.blocks import DecoderBlock, EncoderBlock, Layout
from multibranch.nn.branching import (
    branch_out,
    branch_similarity,
    can_part,
    fold,
    from_torch,
    prune,
)
from multibranch.nn.cache import DecoderCache
from multibranch.nn.drop import draw_keep
from multibranch.nn.feed_forward import MultiBranchFeedForward
from multibranch.nn.transformer import Memory, MultiBranchEncoder, MultiBranchTransformer

__all__ = [
    "DecoderBlock",
    "DecoderCache",
    "EncoderBlock",
    "Layout",
    "Memory",
    "MultiBranchAttention",
    "MultiBranchEncoder",
    "MultiBranchFeedForward",
    "MultiBranchTransformer",
    "branch_out",
    "branch_similarity",
    "can_part",
    "draw_keep",
    "fold",
    "from_torch",
    "prune",
]
