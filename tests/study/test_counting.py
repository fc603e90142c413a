"""The formula against the real modules: every architecture of the paper has the size it counts."""

import torch

from multibranch.nn import MultiBranchTransformer
from multibranch.study import architectures, parameters
from multibranch.study.counting import count_parameters


def test_the_formula_counts_what_the_modules_hold() -> None:
    seen = {}
    for one in architectures():
        if one.decoder_layers:
            settings = one.model_settings()
            key = tuple(settings.values())
            if key not in seen:
                with torch.device("meta"):
                    model = MultiBranchTransformer(**settings)
                seen[key] = sum(parameter.numel() for parameter in model.parameters())
            assert seen[key] == parameters(one)
    assert len(seen) == 51


def test_places_and_kinds_add_up_for_every_way_of_sharing_and_norm() -> None:
    for sharing in ("all", "target", "none"):
        for norm in ("post", "pre"):
            settings = {
                "source_vocabulary": 40, "target_vocabulary": 40, "width": 16, "hidden": 32,
                "branches": [1, 2, 3, 1], "encoder_layers": 2, "decoder_layers": 2,
                "share_embeddings": sharing, "norm": norm, "positions": "learned",
            }  # fmt: skip
            counts = count_parameters(**settings)
            model = MultiBranchTransformer(**settings)
            total = sum(parameter.numel() for parameter in model.parameters())
            assert sum(sum(kinds.values()) for kinds in counts.values()) == total
            vectors = 40 * 16 * {"all": 1, "target": 2, "none": 3}[sharing]
            positions = 2 * 1024 * 16
            assert counts["embeddings"]["embeddings"] == vectors + positions
            assert counts["encoder"]["attention"] == 3 * (4 * 16 * 16 + 4 * 16)
            assert counts["decoder"]["norms"] == 2 * 3 * 32 + (32 if norm == "pre" else 0)
