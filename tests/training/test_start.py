"""Proximal initialisation: MAT begins exactly at its Transformer, and goes on from there."""

import dataclasses
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from multibranch.data import PreparedData
from multibranch.directory import load_model, save_model
from multibranch.errors import UserError
from multibranch.nn import MultiBranchTransformer, branch_out, branch_similarity
from multibranch.tasks.translation import two_stage
from multibranch.text import TextPipeline
from multibranch.training import Trainer, first_model

ONE: dict[str, Any] = {"branches": 1, "drop_branch": 0.0}


@pytest.fixture(scope="module")
def transformer(toy: Path, tmp_path_factory: pytest.TempPathFactory, tiny: SimpleNamespace) -> Path:
    """A trained model of one branch."""
    folder = tmp_path_factory.mktemp("start") / "transformer"
    tiny.run(toy, folder, max_updates=24, **ONE)
    return folder


def test_it_starts_at_the_baseline_s_loss_and_ends_below_it(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, transformer: Path
) -> None:
    baseline = min(record["loss"] for record in tiny.records(transformer, "validation"))
    outcome = tiny.run(
        toy, tmp_path / "mat", branches=3, init_from=str(transformer), max_updates=24
    )
    (start,) = tiny.records(tmp_path / "mat", "start")
    assert start["update"] == 0
    assert start["loss"] == pytest.approx(baseline, abs=1e-4)
    assert outcome.progress.best is not None and outcome.progress.best < baseline - 0.01


@pytest.mark.parametrize("kind", ["branch", "head"])
def test_layers_that_differ_in_branches_and_rates_start_at_the_baseline_s_loss(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, kind: str
) -> None:
    size = {"encoder_layers": 2, "decoder_layers": 2}
    tiny.run(toy, tmp_path / "transformer", max_updates=24, **size, **ONE)
    second = {"init_from": str(tmp_path / "transformer"), "max_updates": 1, **size}
    tiny.run(toy, tmp_path / "same", **second, **ONE)
    layers = {"branches": [1, 2, 3, 1], "ffn_branches": [1, 1, 1, 1], "drop_kind": kind}
    rates = {"drop_branch": [0.1, 0.0, 0.25, 0.4], "drop_ffn": [0.3, 0.1, 0.0, 0.2]}
    tiny.run(toy, tmp_path / "mat", **second, **layers, **rates)
    same, mat = (tiny.records(tmp_path / name, "start")[0]["loss"] for name in ("same", "mat"))
    assert mat == pytest.approx(same, rel=1e-6)
    settings = load_model(tmp_path / "mat").settings
    assert {name: settings[name] for name in (*layers, *rates)} == {**layers, **rates}


def test_the_paper_s_two_stages(toy: Path, tmp_path: Path, tiny: SimpleNamespace) -> None:
    config = tiny.config(toy, tmp_path / "both", max_updates=24, branches=2)
    (name, first), (other_name, second) = two_stage(config, quiet=True)
    assert (name, other_name) == ("Transformer", "MAT, 2 branches")
    (start,) = tiny.records(tmp_path / "both" / "mat", "start")
    assert start["loss"] == pytest.approx(first.progress.best, abs=1e-4)
    assert second.progress.best < first.progress.best
    assert load_model(first.folder).settings["branches"] == 1
    assert load_model(second.folder).settings["branches"] == 2
    # Optimiser, schedule and position in the data began anew.
    assert second.progress.update == 24
    rates = [r["learning_rate"] for r in tiny.records(second.folder, "train")]
    assert rates == [r["learning_rate"] for r in tiny.records(first.folder, "train")]


def test_a_second_stage_says_when_its_first_was_trained_on(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, capsys: pytest.CaptureFixture
) -> None:
    for updates, warned in ((4, False), (4, False), (6, True), (6, True)):
        two_stage(tiny.config(toy, tmp_path / "both", max_updates=updates, branches=2))
        said = " ".join(capsys.readouterr().err.split())
        assert ("is another model than when this run started from it" in said) == warned
    shutil.rmtree(tmp_path / "both" / "transformer")
    config = tiny.config(toy, tmp_path / "both" / "mat", max_updates=8, branches=2)
    config.train.init_from = str(tmp_path / "both" / "transformer")
    assert Trainer(config, PreparedData.open(toy)).run().progress.update == 8
    assert "another model" not in capsys.readouterr().err


def test_two_stages_with_branches_by_layer(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    layers = first_model(tiny.config(toy, tmp_path / "x"), PreparedData.open(toy).text).blocks
    branches = [1 + number % 2 for number in range(len(list(layers)))]
    config = tiny.config(toy, tmp_path / "both", max_updates=3, branches=branches)
    (_, first), (_, second) = two_stage(config, quiet=True)
    assert load_model(second.folder).settings["branches"] == branches
    (start,) = tiny.records(tmp_path / "both" / "mat", "start")
    assert start["loss"] == pytest.approx(first.progress.best, abs=1e-4)


@pytest.mark.parametrize("branches", [1, [1, 1]])
def test_two_stages_need_branches(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, branches: int | list[int]
) -> None:
    config = tiny.config(toy, tmp_path / "both", branches=branches)
    with pytest.raises(UserError, match=r"--two-stage needs model.branches above 1"):
        two_stage(config, quiet=True)
    assert not (tmp_path / "both").exists()


def test_branches_are_copied_and_part_while_training(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, transformer: Path
) -> None:
    config = tiny.config(toy, tmp_path / "x", branches=3, init_from=str(transformer))
    model = first_model(config, PreparedData.open(toy).text)
    single = load_model(transformer)
    for branch in range(3):
        assert torch.equal(
            model.encoder[0].attention.qkv_weight[:, branch],
            single.encoder[0].attention.qkv_weight[:, 0],
        )
    assert torch.equal(model.target_embedding.weight, single.target_embedding.weight)
    tiny.run(toy, tmp_path / "x", branches=3, init_from=str(transformer), max_updates=16)
    similarity = [
        record["similarity"]["encoder.0.attention"]
        for record in tiny.records(tmp_path / "x", "validation")
    ]
    assert 1 > similarity[0] > similarity[1] > 0.8


def test_copies_that_could_never_part_are_warned_of(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, transformer: Path
) -> None:
    text = PreparedData.open(toy).text
    still: dict[str, Any] = {"branches": 2, "drop_branch": 0.0, "init_from": str(transformer)}
    with pytest.warns(UserWarning, match=r"stay equal for ever; set train\.init_noise"):
        first_model(tiny.config(toy, tmp_path, **still), text)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = first_model(tiny.config(toy, tmp_path, init_noise=0.1, **still), text)
        first_model(tiny.config(toy, tmp_path, attention_dropout=0.1, **still), text)
    weight = model.encoder[0].attention.qkv_weight
    assert not torch.equal(weight[:, 0], weight[:, 1])


def test_copies_that_were_made_before_part_by_noise_too(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, transformer: Path
) -> None:
    text, copies = PreparedData.open(toy).text, tmp_path / "copies"
    save_model(copies, branch_out(load_model(transformer), branches=2, noise=0), text)
    still: dict[str, Any] = {"branches": 2, "drop_branch": 0.0, "init_from": str(copies)}
    with pytest.warns(UserWarning, match=r"stay equal for ever; set train\.init_noise"):
        first_model(tiny.config(toy, tmp_path, **still), text)
    model = first_model(tiny.config(toy, tmp_path, init_noise=0.1, **still), text)
    assert max(branch_similarity(model).values()) < 0.999


def test_a_resumed_run_does_not_need_the_model_it_began_with(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, transformer: Path
) -> None:
    gone = tmp_path / "gone"
    shutil.copytree(transformer, gone)
    tiny.run(toy, tmp_path / "run", init_from=str(gone), max_updates=8)
    shutil.rmtree(gone)
    assert tiny.run(toy, tmp_path / "run", init_from=str(gone), max_updates=9).progress.update == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 64}, r"has hidden 32, this configuration 64: set model\.hidden to 32"),
        ({"encoder_layers": 2}, r"has encoder_layers 1"),
        ({"norm": "pre"}, r"has norm post"),
    ],
)
def test_another_architecture_is_refused(
    toy: Path,
    tmp_path: Path,
    tiny: SimpleNamespace,
    transformer: Path,
    changes: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(UserError, match=message):
        tiny.run(toy, tmp_path / "run", init_from=str(transformer), **changes)


def test_one_number_is_the_same_as_it_for_every_layer(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    config = tiny.config(toy, tmp_path / "x", branches=2, ffn_branches=2, drop_branch=0.0)
    text = PreparedData.open(toy).text
    model = first_model(config, text)
    save_model(tmp_path / "trained", model, text)
    config = tiny.config(toy, tmp_path / "y", branches=[2, 2], ffn_branches=[2, 2], drop_branch=0.0)
    config.train.init_from = str(tmp_path / "trained")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is copied that could not part
        again = first_model(config, text)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name


def test_fewer_branches_are_refused(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, transformer: Path
) -> None:
    tiny.run(toy, tmp_path / "three", branches=3, init_from=str(transformer), max_updates=1)
    with pytest.raises(UserError, match="N_a = 2 cannot be made by repeating 3"):
        tiny.run(toy, tmp_path / "run", branches=2, init_from=str(tmp_path / "three"))


def test_another_vocabulary_is_refused(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, transformer: Path
) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(transformer, foreign)
    tokenizer = (foreign / "tokenizer.json").read_text()
    (foreign / "tokenizer.json").write_text(tokenizer.replace('"w3"', '"x3"'))
    with pytest.raises(UserError, match="another vocabulary"):
        tiny.run(toy, tmp_path / "run", init_from=str(foreign))


def test_vocabularies_of_one_size_are_not_taken_for_one(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    text = PreparedData.open(toy).text
    tokenizer = text.tokenizer("source")
    apart = TextPipeline(text.settings, tokenizer, Tokenizer.from_str(tokenizer.to_str()))
    config = tiny.config(toy, tmp_path / "x")
    with pytest.raises(UserError, match=r"share_embeddings: all is for a joint vocabulary"):
        first_model(config, apart)
    config.model.share_embeddings = "target"
    assert first_model(config, apart).settings["share_embeddings"] == "target"


def test_learned_positions_must_be_as_many(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    config = tiny.config(toy, tmp_path / "x", positions="learned")
    text = PreparedData.open(toy).text
    model = first_model(config, text)
    save_model(tmp_path / "learned", model, text)
    config.train.init_from = str(tmp_path / "learned")
    config.model = dataclasses.replace(config.model, max_length=512)
    with pytest.raises(UserError, match=r"has max_length 1024, this configuration 512"):
        first_model(config, text)


def test_a_bfloat16_run_keeps_the_float32_weights_it_starts_from(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, transformer: Path
) -> None:
    from multibranch.training import Trainer

    config = tiny.config(
        toy, tmp_path / "run", init_from=str(transformer), precision="bfloat16", **ONE
    )
    trainer = Trainer(config, PreparedData.open(toy), quiet=True)
    trainer._set_up()
    trainer.folder.release()
    stored = load_file(transformer / "model.safetensors")
    weights = trainer.optimiser.weights()
    assert all(torch.equal(weights[name], stored[name]) for name in stored)
    assert isinstance(trainer.model, MultiBranchTransformer)
    assert trainer.model.target_embedding.weight.dtype == torch.bfloat16
    # Positions are what they will be wherever the model is used.
    places = torch.arange(300)
    assert torch.equal(
        trainer.model.target_embedding._encode(places),
        load_model(transformer).target_embedding._encode(places),
    )
