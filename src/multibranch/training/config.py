"""What a training run is told: one dataclass a section, one field a key.

`configs/reference.yaml` explains every key once; these are the same keys with their types and
defaults.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from multibranch.configuration import ABOVE_0, check_ranges
from multibranch.errors import UserError
from multibranch.training.schedule import Schedule

CODE_LENGTH = 256  # tokens that generated code has at most: its description does not say how long


@dataclass
class DataConfig:
    """Where the sentences come from."""

    folder: str | None = None
    builtin: Literal["translation", "code"] = "translation"
    builtin_pairs: int = 20000
    max_length: int = 256
    layout: Literal["packed", "padded"] = "packed"


@dataclass
class ModelConfig:
    """The architecture: arguments of MultiBranchTransformer, less the vocabularies."""

    width: int = 256
    hidden: int = 2048
    heads: int = 4
    encoder_layers: int = 6
    decoder_layers: int = 6
    branches: int | list[int] = 3
    ffn_branches: int | list[int] = 1
    drop_branch: float | list[float] = 0.3
    drop_ffn: float | list[float] | None = None
    drop_kind: Literal["branch", "head"] = "branch"
    dropout: float = 0.3
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    norm: Literal["post", "pre"] = "post"
    share_embeddings: Literal["all", "target", "none"] = "all"
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_length: int = 1024
    branch_scale: Literal["paper", "released"] = "paper"

    def settings(self, source_vocabulary: int, target_vocabulary: int) -> dict[str, Any]:
        """The arguments of MultiBranchTransformer for these vocabularies."""
        vocabularies = {
            "source_vocabulary": source_vocabulary,
            "target_vocabulary": target_vocabulary,
        }
        return {**vocabularies, **asdict(self)}


@dataclass
class TrainConfig:
    """How it is trained."""

    output: str = "runs/model"
    seed: int = 1
    init_from: str | None = None
    init_noise: float = 0.0
    tokens: int = 4096
    accumulate: int = 1
    learning_rate: float = 5e-4
    warmup: int = 4000
    warmup_from: float = 1e-7
    schedule: Schedule = "inverse_sqrt"
    cool_down: float = 0.0
    betas: list[float] = field(default_factory=lambda: [0.9, 0.98])
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    label_smoothing: float = 0.1
    r_drop: float = 0.0
    max_epochs: int | None = None
    max_updates: int | None = None
    max_minutes: float | None = None
    patience: int | None = None
    judge_from: int | None = None
    validate_every: int | None = None
    validate_score: bool = False
    validate_sentences: int = 1000
    stop_on: Literal["loss", "score"] = "loss"
    average: int = 0
    average_best: bool = False
    checkpoint_minutes: float = 5.0
    keep_checkpoints: int = 2
    max_skipped: int = 20
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: bool | None = None
    deterministic: bool = False
    skip_dropped: bool = False
    sharding: Literal["none", "full"] = "none"
    threads: int | None = None
    log_every: int = 50
    tensorboard: bool = True


@dataclass
class DecodeConfig:
    """How validation and evaluation decode."""

    beam: int = 5
    length_penalty: float = 1.0
    max_length: int | None = None
    batch_tokens: int | None = None


@dataclass
class Config:
    """A whole experiment."""

    task: Literal["translation", "code"] = "translation"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)

    @property
    def longest_output(self) -> int | None:
        """Tokens that an output has at most; None: what its source's length allows."""
        return self.decode.max_length or (CODE_LENGTH if self.task == "code" else None)

    def check(self) -> "Config":
        """Refuse what cannot work, with the key to change; give back the configuration."""
        train = self.train
        check_ranges(self, RANGES)
        if not any((train.max_epochs, train.max_updates, train.max_minutes, train.patience)):
            raise UserError(
                "the run would never end: set train.max_epochs, train.max_updates, "
                "train.max_minutes or train.patience"
            )
        if train.cool_down and not train.max_updates:
            raise UserError("train.cool_down is a share of train.max_updates, which is not set")
        if len(train.betas) != 2:
            raise UserError("train.betas must be two numbers")
        if train.stop_on == "score" and not train.validate_score:
            raise UserError("train.stop_on: score needs train.validate_score: true")
        if train.average_best and not train.average:
            raise UserError("train.average_best chooses among averages: set train.average too")
        if self.data.layout == "padded" and train.compile:
            raise UserError("train.compile needs data.layout: packed, whose shapes never change")
        if train.sharding == "full" and train.compile:
            raise UserError("train.compile is not for train.sharding: full; remove one of them")
        if train.skip_dropped and self.model.drop_kind == "head":
            raise UserError(
                "train.skip_dropped is for whole branches, not for model.drop_kind: head; remove "
                "one of them"
            )
        return self


MOST_SEARCHED = math.nextafter(1_000_000, math.inf)  # as `SearchOptions` have it

RANGES: dict[str, tuple[float, float]] = {
    "data.builtin_pairs": (1, math.inf),
    "data.max_length": (1, math.inf),
    "model.width": (2, math.inf),
    "model.hidden": (1, math.inf),
    "model.heads": (1, math.inf),
    "model.encoder_layers": (1, math.inf),
    "model.decoder_layers": (1, math.inf),
    "model.branches": (1, math.inf),
    "model.ffn_branches": (1, math.inf),
    "model.drop_branch": (0, 1),
    "model.drop_ffn": (0, 1),
    "model.dropout": (0, 1),
    "model.attention_dropout": (0, 1),
    "model.activation_dropout": (0, 1),
    "model.max_length": (1, math.inf),
    "train.seed": (-(2**63), 2**63),
    "train.init_noise": (0, math.inf),
    "train.tokens": (1, math.inf),
    "train.accumulate": (1, math.inf),
    "train.learning_rate": (ABOVE_0, math.inf),
    "train.warmup": (1, math.inf),
    "train.warmup_from": (0, math.inf),
    "train.cool_down": (0, math.nextafter(1, 2)),
    "train.betas": (0, 1),
    "train.epsilon": (ABOVE_0, math.inf),
    "train.weight_decay": (0, math.inf),
    "train.clip_norm": (0, math.inf),
    "train.label_smoothing": (0, 1),
    "train.r_drop": (0, math.inf),
    "train.max_epochs": (1, math.inf),
    "train.max_updates": (1, math.inf),
    "train.max_minutes": (ABOVE_0, math.inf),
    "train.patience": (1, math.inf),
    "train.judge_from": (0, math.inf),
    "train.validate_every": (1, math.inf),
    "train.validate_sentences": (1, math.inf),
    "train.average": (0, math.inf),
    "train.checkpoint_minutes": (0, math.inf),
    "train.keep_checkpoints": (1, math.inf),
    "train.max_skipped": (1, math.inf),
    "train.threads": (1, math.nextafter(1024, math.inf)),
    "train.log_every": (1, math.inf),
    "decode.beam": (1, MOST_SEARCHED),
    "decode.length_penalty": (-10, math.nextafter(10, math.inf)),
    "decode.max_length": (1, MOST_SEARCHED),
    "decode.batch_tokens": (1, math.inf),
}
