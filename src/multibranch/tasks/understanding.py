"""Language understanding (the paper's Section 6): fine-tune a pretrained encoder, with branches.

runs/x/config.json, model.safetensors, tokenizer.json, …   a model for `transformers`
runs/x/config.yaml     the whole configuration
runs/x/metrics.jsonl   loss and scores, epoch by epoch
runs/x/README.md       the model card
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from multibranch import configuration
from multibranch.device import choose_device
from multibranch.disk import check_place, replaced_folder, system_errors
from multibranch.errors import UserError, counted
from multibranch.metrics import Score
from multibranch.tasks.understanding_classifier import SETTINGS, Classifier, check_transformers
from multibranch.tasks.understanding_config import SCORES, UnderstandingConfig
from multibranch.tasks.understanding_data import Examples, number, read_examples
from multibranch.tasks.understanding_loop import Epoch, fine_tune, predict, uses_bfloat16
from multibranch.tasks.understanding_tokens import check_ids, most_tokens, tokenise
from multibranch.training.display import clock


@dataclass
class Outcome:
    """What fine-tuning came to: the folder, its epochs, and the scores of the one that was kept."""

    folder: Path
    epochs: list[Epoch]
    kept: int
    scores: dict[str, Score]
    seconds: float


def train_classifier(
    config: UnderstandingConfig | dict,
    *,
    quiet: bool = False,
    watch: Callable[[Epoch], None] | None = None,
) -> Outcome:
    """Fine-tune as the configuration says; the result is a model directory at train.output.

    watch: called with every epoch that is scored.
    """
    if isinstance(config, dict):
        config = configuration.from_dict(UnderstandingConfig, config, where="the configuration")
    config.check()
    started = time.perf_counter()
    folder = Path(config.train.output)
    _check_output(folder)
    device = choose_device(config.train.device, option="train.device")
    if config.train.graphs and device.type != "cuda":
        raise UserError("train.graphs: true needs a GPU, and this is a CPU: leave it out")
    corpus = config.data.corpus()
    labels = corpus.named_labels()
    if config.data.glue is None:
        config.data.labels = list(labels)
    if "f1" in corpus.scores and len(labels) != 2:
        raise UserError(
            f"data.scores: f1 is of the second of two labels, and there are {len(labels)}: score "
            "by accuracy or matthews"
        )
    train, valid = (corpus.examples(split, labels) for split in ("train", "valid"))
    tokenizer, model = _model(config, list(labels.values()))
    length = min(config.data.max_length, most_tokens(tokenizer, model))
    tokens = {
        name: tokenise(tokenizer, part, max_length=length)
        for name, part in (("train", train), ("valid", valid))
    }
    for name, part in tokens.items():
        check_ids(part, tokenizer, model, unit=f"{name}: example")
    run = _Run(config, model, valid, tokens["valid"], device, quiet=quiet)
    run.begin(len(train))

    def after_epoch(epoch: Epoch) -> None:
        run.after_epoch(epoch)
        if watch is not None and epoch.scores:
            watch(epoch)

    fine_tune(
        model,
        tokens["train"],
        config.train,
        device=device,
        after_epoch=after_epoch,
        progress=run.progress,
    )
    run.restore()
    scores = run.scores_of_kept
    _write(folder, config, model.cpu(), tokenizer, run.epochs, scores, len(train))
    return Outcome(folder, run.epochs, run.kept, scores, time.perf_counter() - started)


def evaluate_classifier(
    folder: str | Path,
    *,
    split: str = "valid",
    file: str | Path | None = None,
    data_folder: str | None = None,
    device: str = "auto",
) -> dict[str, Score]:
    """Score a trained classifier on a split of its data, or on another file with its columns."""
    classifier = Classifier.load(folder, device=device)
    config = classifier.config
    if config is None:
        raise UserError(
            f"{folder} has no {SETTINGS}, which says what data it is for: only what `multibranch "
            "train` wrote can be evaluated"
        )
    if data_folder is not None:
        config.data.folder = data_folder
    corpus = config.data.corpus()
    labels = corpus.named_labels()
    if file is None:
        examples = corpus.examples(split, labels)
    else:
        examples = read_examples(file, corpus.columns, number(labels))
    predictions = classifier.probabilities(examples.texts).argmax(-1).tolist()
    return _scores(config, predictions, examples.labels)


class _Run:
    """One training run: it scores every epoch and keeps the best weights."""

    def __init__(
        self,
        config: UnderstandingConfig,
        model: Any,
        valid: Examples,
        tokens: Any,
        device: torch.device,
        *,
        quiet: bool,
    ) -> None:
        self.config = config
        self.model = model
        self.valid = valid
        self.tokens = tokens
        self.device = device
        self.quiet = quiet
        self.epochs: list[Epoch] = []
        self.kept = 0
        self.scores_of_kept: dict[str, Score] = {}
        self._weights: dict[str, torch.Tensor] | None = None
        self._began = time.perf_counter()

    def begin(self, examples: int) -> None:
        self._began = time.perf_counter()
        if not self.quiet:
            parameters = sum(each.numel() for each in self.model.parameters())
            told = f"{examples:,} examples to train on, {len(self.valid):,} to validate on"
            print(f"{parameters:,} parameters, {told}, on {self.device}", file=sys.stderr)

    def progress(self, done: int, total: int) -> None:
        if not self.quiet and done % self.config.train.log_every == 0:
            left = (time.perf_counter() - self._began) / done * (total - done)
            print(f"update {done:,} of {total:,}  {clock(left)} left", file=sys.stderr)

    def after_epoch(self, epoch: Epoch) -> None:
        bfloat16 = uses_bfloat16(self.config.train.precision, self.device)
        found = predict(self.model, self.tokens, device=self.device, bfloat16=bfloat16)
        if not found.isfinite().all():  # the first label would be the most probable one of all
            self._fell_apart(epoch)
            return
        scores = _scores(self.config, found.argmax(-1).tolist(), self.valid.labels)
        epoch.scores = {name: score.value for name, score in scores.items()}
        self.epochs.append(epoch)
        first = next(iter(scores))
        best = self.scores_of_kept.get(first)
        if self.config.train.keep == "last" or best is None or scores[first].value > best.value:
            self.kept, self.scores_of_kept = epoch.number, scores
            if self.config.train.keep == "best":
                state = self.model.state_dict()
                self._weights = {name: value.clone() for name, value in state.items()}
        if not self.quiet:
            shown = ", ".join(f"{name} {score.value:.2f}" for name, score in scores.items())
            print(f"epoch {epoch.number}: loss {epoch.loss:.4f}, {shown}", file=sys.stderr)

    def _fell_apart(self, epoch: Epoch) -> None:
        """Leave out an epoch after which no answer is a number; an earlier one may be kept."""
        said = f"epoch {epoch.number}: the model's answers are no numbers any more"
        if self.config.train.keep == "last" or not self.kept:
            raise UserError(f"{said}: lower train.learning_rate")
        if not self.quiet:
            print(f"{said}: epoch {self.kept} is kept", file=sys.stderr)

    def restore(self) -> None:
        """Give the model the weights of the epoch that is kept."""
        if self._weights is not None:
            self.model.load_state_dict(self._weights)


def _check_output(folder: Path) -> None:
    """Refuse, before any training, a folder that the result could not be written to."""
    check_place(folder, "train.output")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file: choose another train.output")
    run = folder / SETTINGS
    ours = run.is_file() and configuration.peek(run, "task") == "understanding"
    if any(folder.iterdir()) and not ours:
        raise UserError(
            f"{folder} holds something other than a fine-tuned encoder: choose another train.output"
        )


def _scores(
    config: UnderstandingConfig, predictions: Sequence[int], labels: Sequence[int]
) -> dict[str, Score]:
    return {name: SCORES[name](predictions, labels) for name in config.data.corpus().scores}


def _model(config: UnderstandingConfig, names: Sequence[str]) -> tuple[Any, Any]:
    """The tokenizer, and the encoder with a new classifier, branched out where that is asked."""
    check_transformers()
    from transformers import AutoModelForSequenceClassification

    from multibranch.hub import branch_out
    from multibranch.hub.backbone import (
        ask_hub,
        know_padding,
        load_backbone,
        load_tokenizer,
        quietly,
    )

    settings = config.model
    assert settings.backbone is not None
    torch.manual_seed(config.train.seed)
    with quietly():
        asked = ask_hub(settings.backbone)
        tokenizer = load_tokenizer(settings.backbone, **asked)
        model = load_backbone(
            settings.backbone,
            AutoModelForSequenceClassification,
            num_labels=len(names),
            id2label=dict(enumerate(names)),
            label2id={name: number for number, name in enumerate(names)},
            ignore_mismatched_sizes=True,  # a classifier for other labels gives way to a new one
            dtype=torch.float32,
            **asked,
        )
    know_padding(model, tokenizer)
    if not settings.plain:
        options = {key: value for key, value in asdict(settings).items() if key != "backbone"}
        model = branch_out(model, **options)
    return tokenizer, model


def _write(
    folder: Path,
    config: UnderstandingConfig,
    model: Any,
    tokenizer: Any,
    epochs: list[Epoch],
    scores: dict[str, Score],
    examples: int,
) -> None:
    from multibranch.hub import write_model_card
    from multibranch.hub.backbone import quietly

    with replaced_folder(folder) as new, quietly():
        with system_errors(folder):
            model.save_pretrained(new)
            tokenizer.save_pretrained(new)
        (new / SETTINGS).write_text(configuration.to_yaml(config), encoding="utf-8")
        lines = [json.dumps(asdict(epoch)) for epoch in epochs]
        (new / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        name = config.data.glue or Path(config.data.train or "").name
        what = f"{counted(examples, 'example')} of {name}"
        write_model_card(
            new,
            title=folder.name,
            data=f"Fine-tuned from {config.model.backbone} on {what}.",
            scores={f"{name} valid {key}": score for key, score in scores.items()},
        )
