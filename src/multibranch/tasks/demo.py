"""The whole path on a built-in corpus: the paper's procedure, and the control that it lacks.

A standard Transformer is trained. It is branched out and trained further as a MAT with drop-branch,
and, for the fair comparison, continued unchanged for as many updates. All three are scored on
sentences that none of them has seen.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from multibranch.data import PreparedData
from multibranch.data.builtin import builtin
from multibranch.decoding.attention import inspect
from multibranch.decoding.page import write_page
from multibranch.decoding.picture import draw
from multibranch.decoding.translator import saved_options
from multibranch.directory import load_model
from multibranch.disk import check_place, write_json
from multibranch.errors import Interrupted, UserError
from multibranch.metrics import bleu, paired_bootstrap
from multibranch.nn import branch_similarity
from multibranch.tasks import demo_report
from multibranch.tasks.evaluation import Output, decode_split
from multibranch.training import Config, DataConfig, DecodeConfig, ModelConfig, TrainConfig, Trainer
from multibranch.training.display import read_records

Tell = Callable[[str], None]


@dataclass(frozen=True)
class DemoSettings:
    """Sizes that show the procedure in a few minutes on two processor cores."""

    pairs: int = 1500
    width: int = 64
    hidden: int = 256
    layers: int = 2
    branches: int = 2
    drop_branch: float = 0.2
    dropout: float = 0.0
    tokens: int = 1024
    learning_rate: float = 3e-3
    warmup: int = 150
    first_updates: int = 480
    second_updates: int = 450
    validate_every: int = 75
    average: int = 3
    validation_sentences: int = 1000
    test_sentences: int = 1000


@dataclass
class Stage:
    """One trained model of the demo."""

    name: str
    title: str
    folder: Path
    parameters: int
    seconds: float
    curve: list[tuple[int, float]]  # (update, validation loss)
    similarity: float | None  # mean cosine between the branches' weights
    output: Output | None = None
    bleu: float = 0.0
    signature: str = ""


def run(
    folder: str | Path,
    *,
    seed: int = 1,
    settings: DemoSettings | None = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """Run the demo in `folder`; give back what results.json holds."""
    began = time.monotonic()
    folder, settings = Path(folder), settings or DemoSettings()
    check_place(folder, "--output", filled=True)
    tell("Generating the corpus: Valdish, a German-like language, to English")
    corpus = builtin(
        "translation",
        folder / "corpus",
        pairs=settings.pairs,
        valid=settings.validation_sentences,
        test=settings.test_sentences,
    )
    data = PreparedData.open(corpus)
    trained = _train_all(folder, data, settings, seed, tell)
    tell("Translating the test sentences with each model")
    for stage in trained:
        stage.output = decode_split(stage.folder, data)
        score = bleu(stage.output.lines, stage.output.references)
        stage.bleu, stage.signature = score.value, score.signature
    results = _results(trained, settings, seed)
    examples = _examples(trained, data)
    picture = _draw_attention(trained[-1], data, folder, tell)
    results["seconds"] = round(time.monotonic() - began, 1)
    write_json(folder / "results.json", results)
    demo_report.write(folder / "report.html", trained, results, examples, picture)
    shown = {"examples": examples, "stages": trained, "picture": picture, "folder": folder}
    return {**results, **shown}


def _train_all(
    folder: Path, data: PreparedData, settings: DemoSettings, seed: int, tell: Tell
) -> list[Stage]:
    base = folder / "baseline"
    tell("1 of 3: training a standard Transformer")
    stages = [_train("baseline", "Transformer", base, data, settings, seed)]
    tell("2 of 3: continuing it, for as many updates as the MAT will have")
    stages.append(
        _train(
            "continued",
            "Transformer, continued",
            folder / "continued",
            data,
            settings,
            seed,
            init_from=str(base),
        )
    )
    tell(f"3 of 3: branching it out to {settings.branches} branches, training with drop-branch")
    stages.append(
        _train(
            "mat",
            f"MAT, {settings.branches} branches, ρ = {settings.drop_branch:g}",
            folder / "mat",
            data,
            settings,
            seed,
            init_from=str(base),
            branches=settings.branches,
            drop_branch=settings.drop_branch,
        )
    )
    return stages


def _train(
    name: str,
    title: str,
    folder: Path,
    data: PreparedData,
    settings: DemoSettings,
    seed: int,
    *,
    init_from: str | None = None,
    branches: int = 1,
    drop_branch: float = 0.0,
) -> Stage:
    config = Config(
        data=DataConfig(folder=str(data.folder)),
        model=ModelConfig(
            width=settings.width,
            hidden=settings.hidden,
            encoder_layers=settings.layers,
            decoder_layers=settings.layers,
            branches=branches,
            drop_branch=drop_branch,
            dropout=settings.dropout,
        ),
        train=TrainConfig(
            output=str(folder),
            seed=seed,
            init_from=init_from,
            device="cpu",
            tokens=settings.tokens,
            learning_rate=settings.learning_rate,
            warmup=settings.warmup,
            max_updates=settings.second_updates if init_from else settings.first_updates,
            validate_every=settings.validate_every,
            average=settings.average,
            log_every=20,
            tensorboard=False,
        ),
        decode=DecodeConfig(beam=4, length_penalty=1.0),
    )
    outcome = Trainer(config, data).run()
    if outcome.signal is not None:
        raise Interrupted(outcome.signal)
    outcome.before_more()
    model = load_model(folder)
    cosines = list(branch_similarity(model).values())
    return Stage(
        name=name,
        title=title,
        folder=folder,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        seconds=outcome.progress.seconds,
        curve=[(r["update"], r["loss"]) for r in read_records(folder, "validation")],
        similarity=sum(cosines) / len(cosines) if cosines else None,
    )


def _results(stages: list[Stage], settings: DemoSettings, seed: int) -> dict[str, Any]:
    """What the demo measured, for programs."""
    results: dict[str, Any] = {
        stage.name: {
            "bleu": round(stage.bleu, 2),
            "parameters": stage.parameters,
            "seconds": round(stage.seconds, 1),
        }
        for stage in stages
    }
    results["signature"] = stages[0].signature
    continued, mat = stages[1].output, stages[2].output
    assert continued is not None and mat is not None
    found = paired_bootstrap(continued.lines, mat.lines, mat.references, metric="bleu")
    results["mat_against_continued"] = {
        "difference": round(found["difference"], 2),
        "p_value": found["p_value"],
        "significant": found["significant"],
    }
    results["seed"] = seed
    results["settings"] = asdict(settings)
    return results


def _examples(stages: list[Stage], data: PreparedData) -> list[dict[str, str]]:
    """A few test sentences with what each model made of them."""
    sources = data.lines("test", "source")
    chosen = [place for place in range(len(sources)) if 6 <= len(sources[place].split()) <= 14][:4]
    return [
        {
            "source": sources[place],
            "reference": stages[0].output.references[place] if stages[0].output else "",
            **{s.name: s.output.lines[place] for s in stages if s.output is not None},
        }
        for place in chosen
    ]


def _draw_attention(stage: Stage, data: PreparedData, folder: Path, tell: Tell) -> Path | None:
    """What the branches of the MAT look at, for one short test sentence: a page, and a picture.

    None where the package that draws is not installed.
    """
    sentence = next(line for line in data.lines("test", "source") if 5 <= len(line.split()) <= 9)
    options = saved_options(stage.folder)  # as the examples were translated
    inspection = inspect(load_model(stage.folder), data.text, sentence, **options)
    write_page(inspection, folder / "attention.html")
    try:
        return draw(inspection, folder / "attention.png")
    except UserError as error:
        tell(f"There will be no attention.png. {error}")
        return None
