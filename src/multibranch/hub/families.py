"""Where each family of pretrained models keeps what branching out changes.

A *block* is one layer of an encoder or a decoder. Within a block, dotted paths say where the
attention layers, their four projections and the two products of the feed-forward layer are. That
is all the bridge knows of a family; a further one is a further row.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from multibranch.errors import UserError


@dataclass(frozen=True)
class Attention:
    """One attention layer of a block.

    `core` is the module that attends and is called by the block; `query`, `key` and `value` lie in
    it, `output` is a path from the block, since some families keep that projection elsewhere.
    """

    core: str
    query: str
    key: str
    value: str
    output: str
    heads: str  # the core's attribute that holds the number of heads


@dataclass(frozen=True)
class Family:
    """The paths of one family's blocks. An attention layer that a block lacks is passed over."""

    attention: tuple[Attention, ...]
    feed_forward: tuple[str, str]
    block_returns_tuple: bool = False


def _bert_like() -> Family:
    return Family(
        attention=tuple(
            Attention(
                core=f"{name}.self",
                query="query",
                key="key",
                value="value",
                output=f"{name}.output.dense",
                heads="num_attention_heads",
            )
            for name in ("attention", "crossattention")
        ),
        feed_forward=("intermediate.dense", "output.dense"),
    )


def _bart_like() -> Family:
    return Family(
        attention=tuple(
            Attention(
                core=name,
                query="q_proj",
                key="k_proj",
                value="v_proj",
                output=f"{name}.out_proj",
                heads="num_heads",
            )
            for name in ("self_attn", "encoder_attn")
        ),
        feed_forward=("fc1", "fc2"),
    )


FAMILIES = {
    "bert": _bert_like(),
    "roberta": _bert_like(),
    "xlm-roberta": _bert_like(),
    "electra": _bert_like(),
    "distilbert": Family(
        attention=(
            Attention("attention", "q_lin", "k_lin", "v_lin", "attention.out_lin", "n_heads"),
        ),
        feed_forward=("ffn.lin1", "ffn.lin2"),
    ),
    "mpnet": Family(
        attention=(
            Attention("attention.attn", "q", "k", "v", "attention.attn.o", "num_attention_heads"),
        ),
        feed_forward=("intermediate.dense", "output.dense"),
        block_returns_tuple=True,
    ),
    "marian": _bart_like(),
    "bart": _bart_like(),
}


def family_of(model_type: str) -> Family:
    """The row of a model type; a type without one is an error that names those that have one."""
    if model_type not in FAMILIES:
        raise UserError(
            f"models of the family {model_type!r} cannot be branched out; "
            f"the families that can are {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


def blocks(model: nn.Module, family: Family) -> Iterator[nn.Module]:
    """The blocks of a model that have not been branched out yet, in their order."""
    first = family.attention[0]
    for module in list(model.modules()):
        if find(module, f"{first.core}.{first.query}") and find(module, family.feed_forward[0]):
            yield module


def find(module: nn.Module, path: str) -> nn.Module | None:
    """The submodule at a dotted path, or None."""
    for name in path.split("."):
        inner = module._modules.get(name)
        if inner is None:
            return None
        module = inner
    return module


def replace(module: nn.Module, path: str, new: nn.Module) -> None:
    """Put a module at a dotted path."""
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, new)
