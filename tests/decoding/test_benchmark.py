"""What benchmarks/decoding.py compares: the Marian twin computes what the model computes."""

import pytest
import torch

import marian
from multibranch.nn import MultiBranchTransformer

pytest.importorskip("transformers")


@torch.inference_mode()
def test_the_marian_twin_has_the_models_logits():
    torch.manual_seed(0)
    model = MultiBranchTransformer(
        source_vocabulary=40,
        target_vocabulary=40,
        width=32,
        hidden=48,
        heads=4,
        encoder_layers=2,
        decoder_layers=2,
        branches=3,
        ffn_branches=2,
    ).eval()
    for name, parameter in model.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    twin = marian.marian_twin(model)
    source = torch.tensor([[5, 6, 7, 2], [8, 2, 1, 1]])
    target = torch.tensor([[0, 9, 10], [0, 11, 12]])
    theirs = twin(
        input_ids=source, attention_mask=(source != 1).long(), decoder_input_ids=target
    ).logits
    torch.testing.assert_close(theirs, model(source, target), atol=1e-5, rtol=1e-5)
