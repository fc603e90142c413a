"""What fine-tuning a classifier is told: one dataclass a section, one field a key.

The defaults are RoBERTa's settings for fine-tuning, with the paper's two branches.
"""

from dataclasses import dataclass, field
from typing import Literal

from multibranch.errors import UserError
from multibranch.tasks.understanding_data import Columns
from multibranch.tasks.understanding_glue import glue_task


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
    scores: list[str] | None = None
    max_length: int = 256

    def columns(self) -> Columns:
        """The columns to read."""
        if self.glue is not None:
            task = glue_task(self.glue)
            return Columns(task.text, task.label, task.header)
        text = (self.text,) if isinstance(self.text, str) else tuple(self.text)
        return Columns(text, self.label, None if self.header is None else tuple(self.header))

    def files(self) -> dict[str, str]:
        """The file of each split, by its name in `folder`."""
        if self.glue is not None:
            task = glue_task(self.glue)
            return {split: f"{task.folder}/{file}" for split, file in task.splits.items()}
        given = {"train": self.train, "valid": self.valid, "test": self.test}
        return {split: file for split, file in given.items() if file is not None}


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
        files = self.data.files()
        for split in ("train", "valid"):
            if split not in files:
                raise UserError(f"data.{split} is not set: give a .tsv, .csv or .jsonl file")
        self.data.columns()
        for name in ("epochs", "batch", "log_every"):
            if getattr(self.train, name) < 1:
                raise UserError(f"train.{name} must be at least 1")
        if self.train.learning_rate <= 0:
            raise UserError("train.learning_rate must be above 0")
        if not 0 <= self.train.warmup < 1:
            raise UserError("train.warmup is a share of all updates: at least 0, less than 1")
        if len(self.train.betas) != 2:
            raise UserError("train.betas must be two numbers")
        return self
