"""The bridge to Hugging Face's `transformers`, in both directions.

`branch_out` takes a pretrained model and gives it branches. The MultiBranch… classes are our own
models, their configuration and their tokenizer. Importing this package registers all of them with
the Auto classes, so that what was saved is loaded by `from_pretrained`.

Read for branching out: families (where models keep what changes), branching, surgery (the
operation), layers and attention (what modules become), registry (classes of the result). For our
own models: configuration, pretrained (what they share), model and encoder, generation, tokenizer.
For both: backbone (where pretrained models come from) and card (the model's README).
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from multibranch.hub.branching import branch_out
from multibranch.hub.card import model_card, write_model_card
from multibranch.hub.configuration import MultiBranchConfig
from multibranch.hub.encoder import (
    MultiBranchEncoderModel,
    MultiBranchForSequenceClassification,
)
from multibranch.hub.families import FAMILIES
from multibranch.hub.model import MultiBranchForConditionalGeneration, MultiBranchModel
from multibranch.hub.registry import register_configurations
from multibranch.hub.tokenizer import MultiBranchTokenizer

AutoConfig.register(MultiBranchConfig.model_type, MultiBranchConfig, exist_ok=True)
for _auto, _model in (
    (AutoModel, MultiBranchModel),
    (AutoModelForSeq2SeqLM, MultiBranchForConditionalGeneration),
    (AutoModelForSequenceClassification, MultiBranchForSequenceClassification),
):
    _auto.register(MultiBranchConfig, _model, exist_ok=True)
AutoTokenizer.register(MultiBranchConfig, fast_tokenizer_class=MultiBranchTokenizer, exist_ok=True)
register_configurations()

__all__ = [
    "FAMILIES",
    "MultiBranchConfig",
    "MultiBranchEncoderModel",
    "MultiBranchForConditionalGeneration",
    "MultiBranchForSequenceClassification",
    "MultiBranchTokenizer",
    "branch_out",
    "model_card",
    "write_model_card",
]
