"""What the hub's tests share: no network, and small random models of every supported family."""

import os
import socket
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers
from huggingface_hub import constants

constants.HF_HUB_OFFLINE = True

VOCABULARY = 99
ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
DISTILBERT = {
    "vocab_size": VOCABULARY,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 64,
    "max_position_embeddings": 64,
}
MADE = {
    "bert": ("BertForSequenceClassification", "BertConfig", ENCODER),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", ENCODER),
    "xlm-roberta": ("XLMRobertaForSequenceClassification", "XLMRobertaConfig", ENCODER),
    "electra": ("ElectraForSequenceClassification", "ElectraConfig", ENCODER),
    "distilbert": ("DistilBertForSequenceClassification", "DistilBertConfig", DISTILBERT),
    "mpnet": ("MPNetForSequenceClassification", "MPNetConfig", ENCODER),
    "marian": ("MarianMTModel", "MarianConfig", SEQ2SEQ),
    "bart": ("BartForConditionalGeneration", "BartConfig", SEQ2SEQ),
}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a test asked the network for something")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def make_model() -> Callable[..., transformers.PreTrainedModel]:
    """A small random model of a family, in evaluation mode, with biases that are not zero."""

    def make(family: str, **settings: Any) -> transformers.PreTrainedModel:
        model_name, config_name, defaults = MADE[family]
        config = getattr(transformers, config_name)(**{**defaults, **settings})
        torch.manual_seed(11)
        model = getattr(transformers, model_name)(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "embed_positions" not in name:  # Marian's are computed, and not saved
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        return model.eval()

    return make


@pytest.fixture
def inputs() -> Callable[[str], dict[str, torch.Tensor]]:
    """A padded batch for a family: (3, 9) tokens, and (3, 5) of the target for seq2seq models."""

    def make(family: str) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(5)
        mask = torch.ones(3, 9, dtype=torch.long)
        mask[1, 6:] = 0
        mask[2, 4:] = 0
        ids = torch.randint(3, VOCABULARY, (3, 9), generator=generator).masked_fill(mask == 0, 1)
        given = {"input_ids": ids, "attention_mask": mask}
        if family in ("marian", "bart"):
            given["decoder_input_ids"] = torch.randint(3, VOCABULARY, (3, 5), generator=generator)
        return given

    return make


@pytest.fixture
def labels() -> Callable[[str], torch.Tensor]:
    """Labels that go with `inputs`."""

    def make(family: str) -> torch.Tensor:
        if family in ("marian", "bart"):
            return torch.arange(15).reshape(3, 5) + 3
        return torch.tensor([0, 1, 0])

    return make
