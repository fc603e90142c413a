"""Examples as token ids on the device, and the batches that fine-tuning takes from them."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multibranch.directory import MODEL_TYPE
from multibranch.errors import UserError, counted
from multibranch.tasks.understanding_data import Examples

_WIDTH_STEP = 16  # batches are as wide as the next multiple of this: few shapes, little padding
_ENCODERS = ("bert", "roberta", "xlm-roberta", "electra", "distilbert", "mpnet")
_ANY_LENGTH = 1 << 20  # tokens of a text for a model that does not say how many it can read
_SORTED_BATCHES = 32  # so many batches' examples are sorted by length together


@dataclass
class Tokens:
    """n tokenised examples of at most `longest` tokens.

    ids and types are (n, longest): behind each example's end ids have padding, and types zeros.
    types is None for tokenizers that have none. labels is (n,). lengths is (n,) too, on the CPU.
    """

    ids: Tensor
    types: Tensor | None
    labels: Tensor
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device) -> "Tokens":
        types = None if self.types is None else self.types.to(device)
        return Tokens(self.ids.to(device), types, self.labels.to(device), self.lengths)


@dataclass
class Batch:
    """b examples: ids, mask and types (b, t), labels and weights (b,).

    The weight is 0 for those that only fill the batch up to its size.
    """

    ids: Tensor
    mask: Tensor
    types: Tensor | None
    labels: Tensor
    weights: Tensor

    def inputs(self, model: nn.Module) -> dict[str, Tensor]:
        """What a model of `transformers` takes."""
        mask = self.mask
        if _masks_only_padding(model.config):
            # As attention takes it: made from the other form, it would be asked for its values,
            # and the host would wait for the device.
            mask = mask.bool()[:, None, None, :]
        inputs = {"input_ids": self.ids, "attention_mask": mask}
        if self.types is not None:
            inputs["token_type_ids"] = self.types
        return inputs


def _masks_only_padding(config: Any) -> bool:
    """Whether attention is given the mask of padding as it is, and no token is hidden from others.

    Our own encoder marks padding by ids.
    """
    family = config.model_type.removeprefix("multibranch-")
    both_ways = family in _ENCODERS and not getattr(config, "is_decoder", False)
    return both_ways and config._attn_implementation == "sdpa"


def tokenise(tokenizer: Any, examples: Examples, *, max_length: int) -> Tokens:
    """Examples as token ids; longer ones are cut to max_length tokens, the longer piece first."""
    if tokenizer.pad_token_id is None:
        raise UserError(
            "the tokenizer has no padding token, with which texts of several lengths make a batch: "
            'name one of its tokens as "pad_token" in its tokenizer_config.json'
        )
    pieces = [list(piece) for piece in zip(*examples.texts)]
    added = tokenizer.num_special_tokens_to_add(pair=len(pieces) == 2)
    if max_length <= added:
        raise UserError(
            f"texts are to be cut to {counted(max_length, 'token')}, of which the tokenizer adds "
            f'{added} by itself: put "model_max_length" in its tokenizer_config.json right'
        )
    encoded = tokenizer(*pieces, truncation=True, max_length=max_length, padding=False)
    types = encoded.get("token_type_ids")
    lengths = np.array([len(ids) for ids in encoded["input_ids"]], dtype=np.int64)
    labels = torch.tensor(examples.labels, dtype=torch.int64)
    width = min(_stepped(int(lengths.max())), max_length)  # the encoder may read no more
    ids = _padded(encoded["input_ids"], width, fill=tokenizer.pad_token_id)
    return Tokens(ids, None if types is None else _padded(types, width), labels, lengths)


def most_tokens(tokenizer: Any, model: Any) -> int:
    """How many tokens an example may have: not every tokenizer knows what its encoder can read."""
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    config = model.config
    most = tokenizer.model_max_length
    if not isinstance(most, int | float):
        raise UserError(
            f'"model_max_length" in tokenizer_config.json must be a number of tokens, not {most!r}'
        )
    if table is not None:  # RoBERTa's begin behind the number of its padding
        first = 0 if table.padding_idx is None else table.padding_idx + 1
        positions = table.num_embeddings - first
    elif config.model_type == MODEL_TYPE:
        positions = config.max_length
    else:
        positions = getattr(config, "max_position_embeddings", None) or 0
        if positions < 1:  # any number, as XLNet and T5 say in their ways
            positions = most
    return int(min(most, positions, _ANY_LENGTH))


def check_ids(
    tokens: Tokens, tokenizer: Any, model: Any, *, unit: str = "example", first: int = 1
) -> None:
    """Refuse ids that the model has no vectors for or takes for padding.

    The error counts examples from `first` on.

    It looks at the texts: a tokenizer may have more ids than the model and never give them.
    """
    if found := _beyond(tokens.ids, rows := _rows(model)):
        row, number = found
        token = tokenizer.convert_ids_to_tokens(number)
        raise UserError(
            f"{unit} {first + row}: the tokenizer gives {token!r} the id {number:,}, and "
            f"the ids that the model knows end at {rows - 1:,}: a token was added without "
            "resize_token_embeddings, or this is another model's tokenizer"
        )
    if found := _beyond(tokens.types, kinds := _kinds(model)):
        row, number = found
        raise UserError(
            f"{unit} {first + row}: the tokenizer gives a token the kind {number} "
            f"(token_type_ids), and the kinds that the model knows end at {kinds - 1}: it does not "
            "tell the texts of a pair apart, or this is another model's tokenizer"
        )
    padding = model.config.padding if model.config.model_type == MODEL_TYPE else None
    if padding is not None and padding != tokenizer.pad_token_id:
        inside = np.arange(tokens.ids.shape[1]) < tokens.lengths[:, None]
        if found := _first((tokens.ids == padding).cpu() & torch.from_numpy(inside)):
            token = tokenizer.convert_ids_to_tokens(padding)
            raise UserError(
                f"{unit} {first + found[0]}: the tokenizer gives {token!r} the id {padding}, which "
                f"the model takes for padding, the tokenizer's own being {tokenizer.pad_token_id}: "
                'put "padding" in config.json right, or this is another model\'s tokenizer'
            )


def _beyond(ids: Tensor | None, size: int) -> tuple[int, int] | None:
    """The first example with a number of `size` or above, and that number."""
    if ids is None:
        return None
    found = _first(ids >= size)
    return None if found is None else (found[0], int(ids[found]))


def _first(true: Tensor) -> tuple[int, int] | None:
    """Row and column of the first that is true."""
    if not bool(true.any()):
        return None
    row, column = true.nonzero()[0].tolist()
    return row, column


def _rows(model: Any) -> int:
    """How many ids a model has vectors for; where it has no table of them, any number.

    CANINE, which hashes characters, does not implement the question, and Perceiver answers with
    something else.
    """
    try:
        table = model.get_input_embeddings()
    except NotImplementedError:
        return sys.maxsize
    vectors = getattr(table, "weight", None)
    return sys.maxsize if vectors is None else len(vectors)


def _kinds(model: Any) -> int:
    """How many kinds of tokens a model tells apart; where it does not say, any number."""
    embeddings = getattr(model.base_model, "embeddings", None)
    table = getattr(embeddings, "token_type_embeddings", None)
    return table.num_embeddings if isinstance(table, nn.Embedding) else sys.maxsize


def _stepped(length: int) -> int:
    """The width for a length; an empty text may have no token at all, but takes a place."""
    return -(-max(length, 1) // _WIDTH_STEP) * _WIDTH_STEP


def _padded(rows: Sequence[Sequence[int]], longest: int, fill: int = 0) -> Tensor:
    table = torch.full((len(rows), longest), fill, dtype=torch.int64)
    for number, row in enumerate(rows):
        table[number, : len(row)] = torch.tensor(row)
    return table


def training_order(lengths: np.ndarray, size: int, *, seed: int, epoch: int) -> list[np.ndarray]:
    """The batches of an epoch, as positions; a function of seed and epoch.

    Examples are shuffled, then sorted by length within stretches of some batches, so that a batch
    has little padding; the batches are shuffled again.
    """
    chance = np.random.default_rng([seed, epoch])
    order = chance.permutation(len(lengths))
    stretch = size * _SORTED_BATCHES
    batches = []
    for start in range(0, len(order), stretch):
        part = order[start : start + stretch]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[first : first + size] for first in range(0, len(part), size)]
    return [batches[number] for number in chance.permutation(len(batches))]


def take(tokens: Tokens, positions: np.ndarray, size: int) -> Batch:
    """The batch of these positions, filled up to `size` examples."""
    filled = np.resize(positions, size)
    width = min(_stepped(int(tokens.lengths[positions].max())), tokens.ids.shape[1])
    device = tokens.ids.device
    index, lengths = torch.from_numpy(np.stack([filled, tokens.lengths[filled]])).to(device)
    return Batch(
        ids=tokens.ids[index, :width],
        mask=(torch.arange(width, device=device) < lengths.unsqueeze(1)).long(),
        types=None if tokens.types is None else tokens.types[index, :width],
        labels=tokens.labels[index],
        weights=(torch.arange(size, device=device) < len(positions)).float(),
    )


def evaluation_batches(tokens: Tokens, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """All examples, the longest first: their positions and their batch."""
    order = np.argsort(-tokens.lengths, kind="stable")
    for start in range(0, len(order), size):
        positions = order[start : start + size]
        yield positions, take(tokens, positions, len(positions))
