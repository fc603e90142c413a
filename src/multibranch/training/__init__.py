"""From a configuration and prepared data to a trained model directory.

Read `config` and `loop` first. `setup` makes the parts of a run, `start` its first model (proximal
initialisation), `validation` measures it, `display` and `clock` tell of it.

- An update is `step`. `steps` chooses its way: plainly, `graphed` as CUDA graphs (`graphs`), or
  `skipping` dropped work; runs that meet at the table of `together` have theirs `stacked`. Parts of
  it are `optimiser`, `loss` (R-Drop's), `schedule`, `seeds` (what is drawn) and `determinism`.
- What is kept goes through `keeping` and `background` into a `run_folder`: `outputs` (the model
  directories), `averaging` (snapshots) and `checkpoint`, whose `progress` `resuming` goes on from.
- What comes from outside: `processes` and `signals`. What a run says when it meets its end:
  `memory`, `disk` and, where gradients are not finite, `bad_batches`.
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
