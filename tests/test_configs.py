"""The files of configs/: each loads, builds its model, and has the size and the score of the paper.

The paper's numbers are taken from multibranch.study, where they are checked against its tables.
"""

import dataclasses
import re
import typing
from pathlib import Path

import pytest
import torch
import yaml

from multibranch import configuration
from multibranch.nn import MultiBranchTransformer
from multibranch.study.architectures import Architecture, architectures, met, parameters
from multibranch.study.paper import Cell, cells
from multibranch.training import Config
from multibranch.training.start import FREE

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
REFERENCE = CONFIGS / "reference.yaml"
# Other tasks than translation and code have a configuration class, and tests, of their own.
FILES = sorted(path for path in CONFIGS.glob("*.yaml") if not path.stem.startswith("glue-"))
EXPERIMENTS = [path for path in FILES if path != REFERENCE]
IWSLT = [f"iwslt14-{pair}" for pair in ("de-en", "en-de", "es-en", "en-es")]
IWSLT += [f"iwslt17-{pair}" for pair in ("fr-en", "en-fr")]
WMT = ["wmt14-en-de", "wmt19-de-fr", "wmt19-en-de"]
CODE = ["code-java", "code-python"]
UNPUBLISHED = "iwslt14-en-de"  # a direction for which the paper has no score
PAPER = [
    path
    for path in EXPERIMENTS
    if path.stem.rpartition("-")[0] in {*IWSLT, *WMT, *CODE} - {UNPUBLISHED}
]
MAT = [path for path in EXPERIMENTS if path.stem.endswith("-mat")]


def name(path: Path) -> str:
    return path.stem


def load(path: Path) -> Config:
    return configuration.load(Config, path)


def count(config: Config, source: int, target: int) -> int:
    """The parameters of a configuration's model, built without memory."""
    with torch.device("meta"):
        model = MultiBranchTransformer(**config.model.settings(source, target))
    return sum(parameter.numel() for parameter in model.parameters())


def comments(path: Path) -> str:
    """The comment lines of a file as one text."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return " ".join(line.strip().removeprefix("#").strip() for line in lines if "#" in line)


def leaves(content: dict, prefix: str = "") -> dict[str, object]:
    """Nested keys as dotted names."""
    found: dict[str, object] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            found.update(leaves(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


# -- The reference -----------------------------------------------------------------------------


def explanations() -> dict[str, str]:
    """The comment above every key of the reference, by the key's dotted name."""
    found: dict[str, str] = {}
    section, lines = "", []
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if line.strip().startswith("#"):
            lines.append(line.strip().removeprefix("#").strip())
        elif match := re.match(r"( *)(\w+):( \S.*)?$", line):
            indent, key, value = match.groups()
            if value is None:
                section = f"{key}."
            else:
                found[f"{section if indent else ''}{key}"] = " ".join(lines)
            lines = []
        elif not line.strip():
            lines = []
    return found


def test_the_reference_has_every_key_with_its_default() -> None:
    written = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))
    assert list(leaves(written)) == list(leaves(dataclasses.asdict(Config())))
    assert load(REFERENCE) == Config()


def test_the_reference_explains_every_key_and_every_choice() -> None:
    explained = explanations()
    assert list(explained) == list(leaves(dataclasses.asdict(Config())))
    for key, text in explained.items():
        assert len(text) > 15, f"{key} has no explanation"
    for key, hint in _hints(Config):
        for choice in _choices(hint):
            assert re.search(rf"\b{choice}\b", explained[key]), f"{key}: {choice} is not explained"


def _hints(kind: type, prefix: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for key, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            found += _hints(typing.cast(type, hint), f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", hint))
    return found


def _choices(hint: object) -> list[str]:
    """The words that a key takes: those of a Literal, and null where the key may be empty."""
    if typing.get_origin(hint) is typing.Literal:
        return [str(choice) for choice in typing.get_args(hint)]
    return ["null"] if type(None) in typing.get_args(hint) and not _is_limit(hint) else []


def _is_limit(hint: object) -> bool:
    """Whether an empty key only means that there is no such limit: nothing to explain."""
    return hint in (int | None, float | None)


# -- The experiments ---------------------------------------------------------------------------


def test_there_is_a_file_for_every_experiment_of_the_paper() -> None:
    wanted = {f"{task}-{kind}" for task in IWSLT + WMT for kind in ("baseline", "stage1", "mat")}
    others = CODE + ["multi30k-de-en", "ted-de-en"]
    wanted |= {f"{task}-{kind}" for task in others for kind in ("baseline", "mat")}
    assert {path.stem for path in FILES} == wanted | {"reference", "builtin"}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=name)
def test_a_file_loads_can_run_and_comments_every_key(path: Path) -> None:
    config = load(path).check()
    assert config.train.output == f"runs/{path.stem}"
    if path.stem != "builtin":
        assert config.data.folder == f"prepared/{path.stem.rpartition('-')[0]}"
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.match(r"\s*\w+: \S", line):
            assert "  # " in line, f"{path.name} does not say what this is: {line}"


def experiment(config: Config, task: str, *, proximal: bool) -> list[Cell]:
    """The paper's scores of a configuration, in the order of its tables."""
    model = config.model
    settings = {
        "branches": model.branches,
        "width": model.width,
        "hidden": model.hidden,
        "ffn_branches": model.ffn_branches,
        "heads": model.heads,
        "encoder_layers": model.encoder_layers,
        "decoder_layers": model.decoder_layers,
        "drop_branch": model.drop_branch,
        "drop_kind": model.drop_kind,
    }
    return [
        cell
        for cell in cells()
        if cell.task == task
        and all(getattr(cell, key) == value for key, value in settings.items())
        and (cell.proximal is None or cell.proximal == proximal)
    ]


@pytest.mark.parametrize("path", PAPER, ids=name)
def test_a_file_names_the_papers_table_and_score(path: Path) -> None:
    task, _, kind = path.stem.rpartition("-")
    found = experiment(load(path), task, proximal=kind == "mat")
    assert found, "the paper has no such experiment"
    text = comments(path)
    said = text[text.index("The paper") :]
    table = min(cell.table for cell in found)
    assert f"Table {table}" in said
    assert all(cell.printed in said for cell in found if cell.table == table)


def architecture(config: Config, task: str) -> Architecture:
    """The paper's architecture of a configuration, of the first table with its size."""
    model = config.model
    shape = (model.branches, model.width, model.hidden, model.heads)
    return next(
        one
        for one in architectures()
        if task in one.tasks and (one.branches, one.width, one.hidden, one.heads) == shape
    )


@pytest.mark.parametrize("path", PAPER, ids=name)
def test_a_model_has_the_size_of_the_papers_tables(path: Path) -> None:
    config = load(path)
    one = architecture(config, path.stem.rpartition("-")[0])
    size = count(config, one.source_vocabulary or one.vocabulary, one.vocabulary)
    assert size == parameters(one)
    text = comments(path)
    assert one.paper_millions is not None
    assert f"{one.paper_millions:g}M" in text.replace(".0M", "M")
    if met(one):
        digits = len(str(one.paper_millions).partition(".")[2])
        assert round(size / 1e6, digits) == one.paper_millions
    else:  # what the paper prints does not follow from its description: the file says both
        assert f"{size / 1e6:.1f}M" in text
    entries = [one.vocabulary] + ([one.source_vocabulary] if one.source_vocabulary else [])
    assert all(f"{size:,}" in text for size in entries)


@pytest.mark.parametrize(
    ("stem", "vocabulary", "size"),
    [
        ("iwslt14-en-de-baseline", 10_152, 36_741_120),
        ("iwslt14-en-de-stage1", 10_152, 19_961_856),
        ("iwslt14-en-de-mat", 10_152, 29_435_904),
        ("ted-de-en-baseline", 10_152, 19_961_856),
        ("ted-de-en-mat", 10_152, 29_435_904),
        # 4+4 layers: 12 attentions of 263,168 a branch, 8 FFNs of 525,568, 20 norms of 512
        ("multi30k-de-en-baseline", 8_000, 8_000 * 256 + 12 * 263_168 + 8 * 525_568 + 20 * 512),
        ("multi30k-de-en-mat", 8_000, 8_000 * 256 + 36 * 263_168 + 8 * 525_568 + 20 * 512),
        # 2+2 layers: 6 attentions of 3 × 66,048, 4 FFNs of 65,920, 10 norms of 256
        ("builtin", 3_000, 3_000 * 128 + 18 * 66_048 + 4 * 65_920 + 10 * 256),
    ],
)
def test_a_model_beside_the_papers_has_the_size_counted_by_hand(
    stem: str, vocabulary: int, size: int
) -> None:
    assert count(load(CONFIGS / f"{stem}.yaml"), vocabulary, vocabulary) == size


def test_the_common_recipe_is_the_papers() -> None:
    for path in PAPER:
        config = load(path)
        train, model = config.train, config.model
        assert train.learning_rate == 5e-4 and train.betas == [0.9, 0.98]
        assert (train.warmup, train.warmup_from, train.label_smoothing) == (4000, 1e-7, 0.1)
        assert (train.weight_decay, train.clip_norm) == (0.0, 0.0)
        assert (model.dropout, model.norm, model.activation) == (0.3, "post", "relu")


@pytest.mark.parametrize(
    ("tasks", "batch", "stop", "decode", "dropouts"),
    [
        (IWSLT, (4096, 1), (200, None), (5, 1.2), (0.0, 0.0)),
        (["wmt14-en-de", "wmt19-de-fr"], (4096, 16), (200, None), (4, 0.6), (0.0, 0.0)),
        (["wmt19-en-de"], (2048, 32), (70, 800_000), (4, 0.6), (0.1, 0.1)),
    ],
)
def test_batches_stopping_and_decoding_are_those_of_the_task(
    tasks: list[str], batch: tuple, stop: tuple, decode: tuple, dropouts: tuple
) -> None:
    for task in tasks:
        for kind in ("baseline", "stage1", "mat"):
            config = load(CONFIGS / f"{task}-{kind}.yaml")
            train, model = config.train, config.model
            assert (train.tokens, train.accumulate) == batch
            assert (train.max_epochs, train.max_updates) == stop
            assert (config.decode.beam, config.decode.length_penalty) == decode
            assert (model.attention_dropout, model.activation_dropout) == dropouts
            assert model.share_embeddings == "all"


# -- Two stages --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MAT, ids=name)
def test_a_mat_documents_both_ways_to_start_from_a_transformer(path: Path) -> None:
    config = load(path)
    # --two-stage trains its own first stage, and refuses a configuration that names another.
    assert config.train.init_from is None
    text = comments(path)
    assert f"multibranch train configs/{path.name} --two-stage" in text
    start = re.search(r"--train\.init_from (\S+)", text)
    assert start is not None
    given = start[1].removeprefix("runs/")
    if given.endswith("/transformer"):
        assert given == f"{path.stem}/transformer"
        return
    first = load(CONFIGS / f"{given}.yaml")
    assert first.train.output == start[1]
    assert first.model.branches == 1 and first.model.drop_branch == 0
    # Both ways train the same first stage, and the second can start from it.
    alone = dataclasses.replace(first.train, output=config.train.output)
    assert alone == config.train
    assert (first.data, first.decode, first.task) == (config.data, config.decode, config.task)
    ours, theirs = dataclasses.asdict(config.model), dataclasses.asdict(first.model)
    differing = {key for key in ours if ours[key] != theirs[key]}
    assert differing == {"branches", "drop_branch"} and differing <= set(FREE)
