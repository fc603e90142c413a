"""From a configuration and prepared data to a trained model directory.

Read `loop` first; `step` is one update of it, `graphed` the same as CUDA graphs. `start` is
proximal initialisation, `checkpoint` and `progress` what resuming needs, `outputs` the model
directories, `processes` what changes when there are many.
"""

from multibranch.training.config import Config, DataConfig, DecodeConfig, ModelConfig, TrainConfig
from multibranch.training.loop import Trainer
from multibranch.training.progress import Outcome, Progress
from multibranch.training.start import first_model, start_from

__all__ = [
    "Config",
    "DataConfig",
    "DecodeConfig",
    "ModelConfig",
    "Outcome",
    "Progress",
    "TrainConfig",
    "Trainer",
    "first_model",
    "start_from",
]
