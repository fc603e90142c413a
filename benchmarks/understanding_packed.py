"""Pack a pretrained encoder and tokenised GLUE tasks into one folder, for understanding.py."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from multibranch.tasks.understanding_glue import glue_corpus
from multibranch.tasks.understanding_tokens import Tokens, tokenise

MAX_LENGTH = 128


def pack(backbone: str, glue: Path, output: Path, tasks: list[str]) -> None:
    """Write the encoder (float16) and the tasks' tokens; nothing else is needed to train."""
    from transformers import AutoTokenizer

    from multibranch.hub.backbone import load_backbone, locate

    folder = Path(locate(backbone))
    encoder = output / "encoder"
    encoder.mkdir(parents=True, exist_ok=True)
    weights = load_file(next(folder.glob("*.safetensors")))
    half = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
    }
    save_file(half, encoder / "model.safetensors", metadata={"format": "pt"})
    (encoder / "config.json").write_text((folder / "config.json").read_text())
    tokenizer = load_backbone(backbone, AutoTokenizer)
    for task in tasks:
        corpus = glue_corpus(task, glue)
        labels = corpus.named_labels()
        packed: dict[str, Tensor] = {}
        for split in ("train", "valid"):
            tokens = tokenise(tokenizer, corpus.examples(split, labels), max_length=MAX_LENGTH)
            for name, tensor in _flat(tokens).items():
                packed[f"{split}.{name}"] = tensor
            print(f"{task} {split}: {len(tokens):,} examples, {tokens.lengths.sum():,} tokens")
        save_file(packed, output / f"{task}.safetensors")
    size = sum(path.stat().st_size for path in output.glob("**/*") if path.is_file())
    print(f"{output}: {size / 2**20:.1f} MiB")


def _flat(tokens: Tokens) -> dict[str, Tensor]:
    """The tokens one after the other, without padding, in the smallest types that hold them."""
    lengths = torch.from_numpy(tokens.lengths)
    inside = torch.arange(tokens.ids.shape[1]) < lengths[:, None]
    assert tokens.types is not None
    return {
        "ids": tokens.ids[inside].to(torch.int16),
        "types": tokens.types[inside].to(torch.uint8),
        "lengths": lengths.to(torch.int16),
        "labels": tokens.labels.to(torch.uint8),
    }


def unpack(folder: Path, task: str, split: str, *, examples: int | None = None) -> Tokens:
    """The tokens of a task's split, or of its first examples."""
    packed = load_file(folder / f"{task}.safetensors")
    lengths = packed[f"{split}.lengths"].long()
    width = -(-int(lengths.max()) // 16) * 16
    inside = torch.arange(width) < lengths[:, None]
    tables = []
    for name in ("ids", "types"):
        table = torch.zeros(inside.shape, dtype=torch.int64)
        table[inside] = packed[f"{split}.{name}"].long()
        tables.append(table[:examples])
    labels = packed[f"{split}.labels"].long()[:examples]
    return Tokens(tables[0], tables[1], labels, lengths[:examples].numpy())
