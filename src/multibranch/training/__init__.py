"""From a configuration and prepared data to a trained model directory.

Read `loop` first; `step` is one update of it, `graphed` the same as CUDA graphs. `start` is
proximal initialisation, `checkpoint` what resuming needs.
"""

from multibranch.training.config import Config, DataConfig, DecodeConfig, ModelConfig, TrainConfig
from multibranch.training.loop import Outcome, Trainer
from multibranch.training.start import first_model, start_from

__all__ = [
    "Config",
    "DataConfig",
    "DecodeConfig",
    "ModelConfig",
    "Outcome",
    "TrainConfig",
    "Trainer",
    "first_model",
    "start_from",
]
