"""Our encoder as models of `transformers`: by itself, and with a classifier."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from multibranch.hub.configuration import MultiBranchConfig
from multibranch.hub.pretrained import MultiBranchPreTrainedModel
from multibranch.nn import MultiBranchEncoder


class MultiBranchEncoderModel(MultiBranchPreTrainedModel):
    """Our encoder by itself: what a classifier of ours is without its classifier."""

    model: MultiBranchEncoder

    def __init__(self, config: MultiBranchConfig) -> None:
        super().__init__(config)
        self._hold(MultiBranchEncoder(**config.encoder_settings()))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> BaseModelOutput | tuple:
        """The states (b, s, d) of the sequences of input_ids (b, s)."""
        self.refuse(others)
        states = self.model(self.mask_source(input_ids, attention_mask))
        output = BaseModelOutput(last_hidden_state=states)
        return output.to_tuple() if return_dict is False else output


class MultiBranchForSequenceClassification(MultiBranchPreTrainedModel):
    """Our encoder with a classifier on the mean of its states."""

    model: MultiBranchEncoder

    def __init__(self, config: MultiBranchConfig) -> None:
        super().__init__(config)
        self._hold(MultiBranchEncoder(**config.encoder_settings()))
        self.classifier = nn.Linear(config.width, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> SequenceClassifierOutput | tuple:
        """Logits (b, labels) for the sequences of input_ids (b, s).

        The loss for labels (b,) is that of `transformers`: one label is a number to be met, and
        floats (b, labels) are labels of which several may hold.
        """
        self.refuse(others)
        input_ids = self.mask_source(input_ids, attention_mask)
        there = (input_ids != self.model.padding).unsqueeze(-1)
        states = self.model(input_ids)
        mean = (states * there).sum(1) / there.sum(1).clamp(min=1)
        logits = self.classifier(F.dropout(mean, self.config.dropout, self.training))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        output = SequenceClassifierOutput(loss=loss, logits=logits)
        return output.to_tuple() if return_dict is False else output
