"""What fine-tuning a classifier is told: one dataclass a section, one field a key.

The defaults are RoBERTa's settings for fine-tuning, with the paper's two branches.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from multibranch.configuration import ABOVE_0, check_ranges
from multibranch.errors import UserError
from multibranch.metrics.classification import accuracy, f1, matthews
from multibranch.tasks.understanding_data import Columns, Corpus
from multibranch.tasks.understanding_glue import glue_corpus

SCORES = {"accuracy": accuracy, "f1": f1, "matthews": matthews}


@dataclass
class ClassifierData:
    """Which labelled text: a task of GLUE in its own folders, or files of one's own."""

    glue: str | None = None
    folder: str = "."
    train: str | None = None
    valid: str | None = None
    test: str | None = None
    text: str | list[str] = "text"
    label: str = "label"
    header: list[str] | None = None
    labels: list[str] | None = None
    scores: list[str] = field(default_factory=lambda: ["accuracy"])
    max_length: int = 256

    def corpus(self) -> Corpus:
        """The examples that these settings mean."""
        if self.glue is not None:
            return glue_corpus(self.glue, self.folder)
        given = {"train": self.train, "valid": self.valid, "test": self.test}
        return Corpus(
            files={split: Path(self.folder) / file for split, file in given.items() if file},
            columns=Columns(
                (self.text,) if isinstance(self.text, str) else tuple(self.text),
                self.label,
                None if self.header is None else tuple(self.header),
            ),
            labels=None if self.labels is None else {label: label for label in self.labels},
            scores=tuple(self.scores),
        )


@dataclass
class ClassifierModel:
    """Which encoder, and how it is branched out. One branch and no dropping leave it plain."""

    backbone: str | None = None
    branches: int = 2
    drop_branch: float = 0.3
    drop_ffn: float | None = None
    layer_drop: float = 0.0
    noise: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether the encoder stays as it is."""
        return self.branches == 1 and not (self.drop_branch or self.drop_ffn or self.layer_drop)


@dataclass
class ClassifierTraining:
    """How it is fine-tuned."""

    output: str = "runs/classifier"
    seed: int = 1
    epochs: int = 10
    max_updates: int | None = None
    batch: int = 16
    learning_rate: float = 1e-5
    warmup: float = 0.06
    betas: list[float] = field(default_factory=lambda: [0.9, 0.98])
    epsilon: float = 1e-6
    weight_decay: float = 0.1
    clip_norm: float = 0.0
    keep: Literal["best", "last"] = "best"
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    graphs: bool | None = None
    log_every: int = 50


@dataclass
class UnderstandingConfig:
    """A whole experiment on language understanding."""

    task: Literal["understanding"] = "understanding"
    data: ClassifierData = field(default_factory=ClassifierData)
    model: ClassifierModel = field(default_factory=ClassifierModel)
    train: ClassifierTraining = field(default_factory=ClassifierTraining)

    def check(self) -> "UnderstandingConfig":
        """Refuse what cannot work, with the key to change; give back the configuration."""
        if self.model.backbone is None:
            raise UserError(
                "model.backbone is not set: give the folder of a pretrained encoder, the name of "
                "an installed package that contains one, or the hub's name of one"
            )
        corpus = self.data.corpus()
        for split in ("train", "valid"):
            if split not in corpus.files:
                raise UserError(f"data.{split} is not set: give a .tsv, .csv or .jsonl file")
        for name in corpus.scores:
            if name not in SCORES:
                raise UserError(f"data.scores: {name!r} is unknown; known are {', '.join(SCORES)}")
        if not corpus.scores:
            raise UserError(f"data.scores is empty: name at least one of {', '.join(SCORES)}")
        check_ranges(self, RANGES)
        if len(self.train.betas) != 2:
            raise UserError("train.betas must be two numbers")
        return self


RANGES: dict[str, tuple[float, float]] = {
    "data.max_length": (6, math.inf),  # a pair of texts has four marks, and a token each
    "model.branches": (1, math.inf),
    "model.drop_branch": (0, 1),
    "model.drop_ffn": (0, 1),
    "model.layer_drop": (0, 1),
    "model.noise": (0, math.inf),
    "train.seed": (0, 2**63),
    "train.epochs": (1, math.inf),
    "train.max_updates": (1, math.inf),
    "train.batch": (1, math.inf),
    "train.learning_rate": (ABOVE_0, math.inf),
    "train.warmup": (0, 1),  # a share of all updates
    "train.betas": (0, 1),
    "train.epsilon": (ABOVE_0, math.inf),
    "train.weight_decay": (0, math.inf),
    "train.clip_norm": (0, math.inf),
    "train.log_every": (1, math.inf),
}
