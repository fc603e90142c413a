"""A fine-tuned encoder in use: texts in, labels and their probabilities out."""

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from multibranch import configuration
from multibranch.device import choose_device
from multibranch.directory import CONFIG, check_folder, read_json
from multibranch.errors import UserError
from multibranch.tasks.understanding_config import UnderstandingConfig
from multibranch.tasks.understanding_data import Examples
from multibranch.tasks.understanding_loop import predict, uses_bfloat16
from multibranch.tasks.understanding_tokens import check_ids, most_tokens, tokenise

SETTINGS = "config.yaml"  # how it was fine-tuned
_LOT = 1024  # lines that `classify` reads before it answers


class Classifier:
    """A trained classifier: texts in, labels and their probabilities out.

    config: how it was fine-tuned; None for one that `transformers` saved.
    """

    def __init__(
        self, model: Any, tokenizer: Any, config: UnderstandingConfig | None, device: torch.device
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.device = device
        names = model.config.id2label
        self.names: list[str] = [str(names[number]) for number in range(len(names))]

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto") -> "Classifier":
        """From a folder that `multibranch train` or, of a classifier, `save_pretrained` wrote."""
        folder = Path(folder)
        check_folder(folder)
        if (folder / SETTINGS).is_file():
            task = configuration.peek(folder / SETTINGS, "task")
            if task in ("translation", "code"):
                verb = "translate" if task == "translation" else "generate"
                raise UserError(
                    f"{folder} is a model of the task {task}, no classifier: use `multibranch "
                    f"{verb}` or `multibranch evaluate` for it"
                )
        if not (folder / CONFIG).is_file():
            raise UserError(f"{folder} is no classifier: it has no {CONFIG} of a trained one")
        named = read_json(folder / CONFIG).get("architectures")
        config = None
        if (folder / SETTINGS).is_file():
            config = configuration.load(UnderstandingConfig, folder / SETTINGS)
        elif "ForSequenceClassification" not in str(named):
            raise UserError(f"{folder} is no classifier: {CONFIG} names the architectures {named}")
        check_transformers()
        from multibranch.hub.backbone import load_classifier

        model, tokenizer = load_classifier(folder)
        kind = model.config.problem_type or "single_label_classification"
        if kind != "single_label_classification" or model.config.num_labels < 2:
            raise UserError(
                f"{folder} does not choose one of several labels: use it with `transformers`"
            )
        if getattr(model.config, "summary_type", None) == "last":  # XLNet's, where padding would be
            raise UserError(
                f"{folder} reads a text's label off its last place, where a shorter one of a batch "
                "has padding: use it with `transformers`"
            )
        return cls(model, tokenizer, config, choose_device(device))

    @cached_property
    def pieces(self) -> int | None:
        """How many pieces of text an example has: 1, or 2 for pairs; None where it is not said."""
        return None if self.config is None else len(self.config.data.corpus().columns.text)

    def probabilities(
        self, texts: Sequence[tuple[str, ...]], *, unit: str = "example", first: int = 1
    ) -> torch.Tensor:
        """(n, labels), for texts of one or two pieces each.

        An error names the text that it is about, of which the first has the number `first`.
        """
        config = self.config
        length = most_tokens(self.tokenizer, self.model)
        if config is not None:
            length = min(length, config.data.max_length)
        examples = Examples(list(texts), [0] * len(texts))
        tokens = tokenise(self.tokenizer, examples, max_length=length)
        check_ids(tokens, self.tokenizer, self.model, unit=unit, first=first)
        precision = "auto" if config is None else config.train.precision
        bfloat16 = uses_bfloat16(precision, self.device)
        found = predict(self.model, tokens, device=self.device, bfloat16=bfloat16)
        if wrong := (~found.isfinite().all(1)).nonzero().flatten().tolist():
            raise UserError(
                f"{unit} {first + wrong[0]}: what the model makes of it is no number: its weights "
                "hold infinities or NaN, or are too large for the precision they were saved in"
            )
        return found

    def classify(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Label and probabilities of each line; the pieces of a pair are separated by a tab.

        Where the model does not say whether it is for pairs, the first line does.
        """
        pieces = self.pieces
        lot: list[tuple[str, ...]] = []
        for line_number, line in enumerate(lines, 1):
            text = line.rstrip("\r\n")
            found = (text,) if pieces == 1 else tuple(text.split("\t"))
            pieces = pieces or min(len(found), 2)
            if len(found) != pieces:
                told = "this model classifies" if self.pieces else "the first line has a tab, for"
                raise UserError(
                    f"line {line_number}: {told} pairs, two texts separated by a tab; this line "
                    f"has {len(found)}"
                )
            lot.append(found)
            if len(lot) == _LOT:
                yield from self._answers(lot, line_number)
                lot = []
        if lot:
            yield from self._answers(lot, line_number)

    def _answers(self, lot: list[tuple[str, ...]], last: int) -> Iterator[dict[str, Any]]:
        """The answers to some lines; `last` is the number of the last one."""
        for row in self.probabilities(lot, unit="line", first=last - len(lot) + 1).tolist():
            best = max(range(len(row)), key=row.__getitem__)
            yield {"label": self.names[best], "probabilities": dict(zip(self.names, row))}


def check_transformers() -> None:
    """Refuse to go on without the package that encoders need."""
    if importlib.util.find_spec("transformers") is None:
        raise UserError(
            "fine-tuned encoders need the package transformers: pip install 'multibranch[hub]'"
        )
