"""Studies of the other tasks: code generation, and pretrained encoders."""

import json
import random
from pathlib import Path

import pytest
import torch

from multibranch.cli import main
from multibranch.data.builtin import builtin

ROOT = Path(__file__).resolve().parents[2]

CODE = """
title: Code
config: {root}/configs/code-python-baseline.yaml
corpora: [{{name: code, folder: {data}, stands_for: [code-python]}}]
seeds: 1
updates: 4
second_updates: 3
metric: sentence_bleu
settings: {{train.tokens: 512, train.validate_every: 2, train.validate_sentences: 2, decode.beam: 1,
  train.threads: 1}}
grids:
  - {{paper: 8, width_factor: 0.03125, hidden_factor: 0.015625, encoder_layers: 1,
     decoder_layers: 1}}
"""


@pytest.mark.slow
def test_code_is_scored_as_code(tmp_path: Path) -> None:
    data = builtin("code", tmp_path / "data", pairs=60, valid=4, test=6, jobs=1)
    file, out = tmp_path / "code.yaml", tmp_path / "out"
    file.write_text(CODE.format(root=ROOT, data=data), encoding="utf-8")
    words = [str(file), "--output", str(out)]
    assert main(["study", "run", *words, "--device", "cpu", "--only", "r0.1"]) == 0
    (mat,) = [p for p in out.glob("trials/*/trial.json") if "proximal" in str(p)]
    record = json.loads(mat.read_text(encoding="utf-8"))
    assert record["task"] == "code"
    assert record["experiment"]["width"] == 8 and record["experiment"]["branches"] == 4
    assert main(["study", "report", *words, "--record", str(out / "r.json")]) == 0
    trials = json.loads((out / "r.json").read_text(encoding="utf-8"))["trials"]
    assert len(trials) == 2
    for trial in trials:
        assert {"sentence_bleu", "pov", "exact_match"} <= set(trial["scores"])
    assert "Table 8 of the paper, on code" in (out / "code.md").read_text(encoding="utf-8")


ENCODER = """
task: understanding
data: {{folder: {folder}, train: train.tsv, valid: valid.tsv, text: sentence, label: verdict}}
model: {{backbone: {folder}/encoder}}
train: {{epochs: 1, batch: 8, learning_rate: 1e-3}}
"""
UNDERSTANDING = """
title: Understanding
config: {folder}/config.yaml
corpora: [{{name: glue-mrpc}}]
seeds: 1
metric: accuracy
continued: false
grids:
  - {{paper: 10}}
  - {{starts: [pretrained], branches: [1], shapes: [1024/4096], heads: [16], encoder_layers: 24,
     decoder_layers: 0}}
"""


@pytest.mark.slow
def test_an_encoder_is_branched_out_and_fine_tuned(tmp_path: Path) -> None:
    make_encoder(tmp_path / "encoder")
    chance = random.Random(1)
    for split, count in (("train", 32), ("valid", 16)):
        rows = [
            f"{' '.join(chance.choices(['the', 'film'], k=3))} {('bad', 'good')[n % 2]}\t{n % 2}"
            for n in range(count)
        ]
        (tmp_path / f"{split}.tsv").write_text(
            "\n".join(["sentence\tverdict", *rows, ""]), encoding="utf-8"
        )
    (tmp_path / "config.yaml").write_text(ENCODER.format(folder=tmp_path), encoding="utf-8")
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(UNDERSTANDING.format(folder=tmp_path), encoding="utf-8")
    words = [str(file), "--output", str(out)]
    only = ["--only", "r0.3", "glue-mrpc.pretrained.1-1024-4096.m16.l24+0.r0"]
    assert main(["study", "run", *words, "--device", "cpu", *only]) == 0
    assert main(["study", "report", *words, "--record", str(out / "r.json")]) == 0
    content = json.loads((out / "r.json").read_text(encoding="utf-8"))
    assert [t["experiment"]["branches"] for t in content["trials"]] == [2, 1]
    assert all(0 <= t["scores"]["accuracy"]["value"] <= 100 for t in content["trials"])
    text = (out / "mine.md").read_text(encoding="utf-8")
    assert "Table 10 of the paper, on glue-mrpc" in text
    assert "| 90.9 | 90.0 | 91.9 | 91.2 | 91.7 |" in text.replace("**", "")


def make_encoder(folder: Path) -> None:
    """A small random BERT with a vocabulary of whole words."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "film", "good", "bad"]
    tokenizer = Tokenizer(models.WordLevel(dict(zip(words, range(8))), unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=16,
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    transformers.BertModel(config).save_pretrained(folder)
