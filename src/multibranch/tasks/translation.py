"""Translation and code generation: which data, model, training, decoding and score go together."""

import dataclasses
from pathlib import Path

import torch

from multibranch.data import PreparedData
from multibranch.data.builtin import builtin
from multibranch.decoding import Translator
from multibranch.decoding.options import best_texts
from multibranch.directory import STAGES
from multibranch.disk import check_place
from multibranch.errors import UserError
from multibranch.metrics import multi_bleu
from multibranch.nn import MultiBranchTransformer
from multibranch.tasks import code
from multibranch.training import Config, Outcome, Trainer, first_model
from multibranch.training.display import Display
from multibranch.training.processes import join
from multibranch.training.validation import Score


def open_data(config: Config) -> PreparedData:
    """The prepared folder that a configuration names, or the built-in corpus."""
    data = config.data
    if data.folder is not None:
        return PreparedData.open(data.folder)
    place = Path(config.train.output).parent / f"builtin-{data.builtin}-{data.builtin_pairs}"

    def prepare() -> None:
        check_place(Path(config.train.output), "train.output", filled=True)
        builtin(data.builtin, place, pairs=data.builtin_pairs)

    join(config.train.device).first_does(prepare)
    return PreparedData.open(place)


def train(config: Config, *, quiet: bool = False) -> Outcome:
    """Train as the configuration says."""
    data = open_data(config)
    config.data = dataclasses.replace(config.data, folder=str(data.folder))
    return Trainer(config, data, score=validation_score(config, data), quiet=quiet).run()


def validation_score(config: Config, data: PreparedData) -> Score:
    """The score of a model on the first validation sentences, for the trainer to call."""
    if config.task == "code":
        return code.validation_score(config, data)

    def score(model: MultiBranchTransformer) -> tuple[float, str]:
        count = config.train.validate_sentences
        sources = data.lines("valid", "source")[:count]
        references = data.lines("valid", "target")[:count]
        text = data.text
        found = Translator([model], text).generate(
            sources,
            beam=config.decode.beam,
            length_penalty=config.decode.length_penalty,
            max_length=config.decode.max_length,
            batch_tokens=config.decode.batch_tokens,
            tokenised_output=True,
        )
        references = [text.tokenise(line, "target") for line in references]
        return multi_bleu(best_texts(found), references).value, "BLEU"

    return score


def two_stage(config: Config, *, quiet: bool = False) -> list[tuple[str, Outcome]]:
    """The paper's procedure: the standard Transformer, then the MAT from it (Section 3.3)."""
    if not _several(config.model.branches):
        raise UserError("--two-stage needs model.branches above 1: that is what the MAT adds")
    if config.train.init_from is not None:
        raise UserError("--two-stage trains its own first stage: remove train.init_from")
    folder = Path(config.train.output)
    transformer, mat = (str(folder / name) for name in STAGES)
    join(config.train.device).first_does(lambda: check_place(folder, "train.output", filled=True))
    first = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, branches=1, drop_branch=0.0, drop_ffn=None),
        train=dataclasses.replace(config.train, output=transformer),
    )
    # Both stages read one corpus: a built-in one would else be made for each.
    data = open_data(config)
    first.data = config.data = dataclasses.replace(config.data, folder=str(data.folder))
    with torch.device("meta"):  # what the second stage could not build is refused before the first
        first_model(config, data.text)
    names = [model_name(stage.model.branches) for stage in (first, config)]

    def announce(stage: int) -> None:
        told = f"Stage {stage} of 2: {names[stage - 1]}"
        join(config.train.device).first_does(lambda: Display(None, quiet=quiet).tell(told))

    announce(1)
    outcomes = [(names[0], train(first, quiet=quiet))]
    if outcomes[0][1].interrupted:
        return outcomes
    outcomes[0][1].before_more()
    second = dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, output=mat, init_from=transformer),
    )
    announce(2)
    outcomes.append((names[1], train(second, quiet=quiet)))
    return outcomes


def model_name(branches: int | list[int]) -> str:
    """What a table calls a model with so many branches."""
    return f"MAT, {branches} branches" if _several(branches) else "Transformer"


def _several(branches: int | list[int]) -> bool:
    """Whether any layer has more than one branch."""
    return set(branches if isinstance(branches, list) else [branches]) != {1}
