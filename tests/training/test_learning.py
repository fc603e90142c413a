"""A tiny model on the built-in corpus learns to translate: a set BLEU after set updates."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from multibranch.data import PreparedData
from multibranch.data.builtin import builtin
from multibranch.decoding import Translator
from multibranch.metrics import bleu
from multibranch.tasks.translation import train
from multibranch.training import Config, DataConfig, DecodeConfig, ModelConfig, TrainConfig

UPDATES = 300
SCORE = 15.0  # well below what is reached: other processors round differently


def test_a_tiny_model_reaches_its_score(tmp_path: Path, tiny: SimpleNamespace) -> None:
    corpus = builtin("translation", tmp_path / "data", pairs=2000, valid=100, test=20, jobs=1)
    folder = tmp_path / "run"
    config = Config(
        data=DataConfig(folder=str(corpus)),
        model=ModelConfig(
            width=48,
            hidden=96,
            heads=4,
            encoder_layers=1,
            decoder_layers=1,
            branches=2,
            drop_branch=0.1,
            dropout=0.0,
        ),
        train=TrainConfig(
            output=str(folder),
            seed=1,
            tokens=600,
            learning_rate=1e-2,
            warmup=100,
            max_updates=UPDATES,
            validate_every=UPDATES,
            validate_score=True,
            device="cpu",
            threads=1,
            tensorboard=False,
        ),
        decode=DecodeConfig(beam=1),
    )
    outcome = train(config, quiet=True)
    assert outcome.progress.update == UPDATES
    (record,) = tiny.records(folder, "validation")
    assert record["score"] > SCORE
    assert record["plain"] < math.log(15)
    # Whoever takes the directory gets that model: raw text in, text out.
    data = PreparedData.open(corpus)
    found = Translator.load(folder).translate(data.lines("valid", "source"), beam=1)
    assert bleu(found, data.lines("valid", "target")).value == pytest.approx(record["score"], abs=5)
