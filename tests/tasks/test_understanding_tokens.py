"""What is asked of a model before it is given a text's ids."""

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CanineConfig,
    CanineForSequenceClassification,
    CanineTokenizer,
    PerceiverConfig,
    PerceiverForSequenceClassification,
)

from multibranch.errors import UserError
from multibranch.tasks.understanding_tokens import Tokens, check_ids

MANY = 1_000_000  # more ids than any of these models has vectors for


def tokens() -> Tokens:
    ids = torch.tensor([[1, 2, 3], [4, MANY, 0]])
    return Tokens(ids, None, torch.zeros(2, dtype=torch.int64), np.array([3, 2]))


def small(kind: type, config: type, **settings: int) -> torch.nn.Module:
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return kind(config(**{**size, "intermediate_size": 16, **settings}))


def test_an_id_without_a_vector_is_refused_with_its_text() -> None:
    model = small(BertForSequenceClassification, BertConfig, vocab_size=100)
    said = r"^line 8: .* the id 1,000,000, and the ids that the model knows end at 99: "
    with pytest.raises(UserError, match=said):
        check_ids(tokens(), CanineTokenizer(), model, unit="line", first=7)


@pytest.mark.parametrize(
    ("kind", "config", "settings"),
    [
        (CanineForSequenceClassification, CanineConfig, {"num_hash_buckets": 32}),
        (
            PerceiverForSequenceClassification,
            PerceiverConfig,
            {"d_model": 16, "d_latents": 16, "num_latents": 4, "num_self_attends_per_block": 1},
        ),
    ],
)
def test_a_model_without_a_table_of_vectors_takes_any_id(
    kind: type, config: type, settings: dict[str, int]
) -> None:
    check_ids(tokens(), CanineTokenizer(), small(kind, config, **settings))
