"""The model directory: complete or absent, and data only, whatever someone puts into it."""

import io
import json
import os
import pickle
import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from multibranch.directory import (
    load_model,
    load_text,
    load_weights,
    read_config,
    save_model,
)
from multibranch.errors import UserError
from multibranch.nn import MultiBranchTransformer
from multibranch.text import TextPipeline, TextSettings, WordCounter, learn_words


def pipeline(words: int = 20) -> TextPipeline:
    counter = WordCounter()
    counter.update({f"w{number}": 1 for number in range(words)})
    settings = TextSettings(kind="classification", source="en", target="en")
    return TextPipeline(settings, learn_words(counter, size=words + 4))


def model(text: TextPipeline, **changes: Any) -> MultiBranchTransformer:
    torch.manual_seed(0)
    settings = {"width": 16, "hidden": 32, "heads": 2, "branches": 2, **changes}
    return MultiBranchTransformer(
        source_vocabulary=text.source_size,
        target_vocabulary=text.target_size,
        encoder_layers=1,
        decoder_layers=1,
        **settings,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = pipeline()
    return save_model(tmp_path / "model", model(text), text, extra={"task": "translation"})


def load_all(folder: Path) -> None:
    load_model(folder)
    load_text(folder)


def logits(network: MultiBranchTransformer) -> torch.Tensor:
    with torch.no_grad():
        return network.eval()(torch.tensor([[5, 6, 2]]), torch.tensor([[0, 6]]))


@pytest.mark.parametrize("share", ["all", "target", "none"])
def test_what_was_saved_comes_back(tmp_path: Path, share: str) -> None:
    text = pipeline()
    network = model(text, share_embeddings=share, positions="learned", norm="pre")
    save_model(tmp_path / "m", network, text, extra={"task": "code"})
    loaded = load_model(tmp_path / "m")
    assert loaded.settings == network.settings
    assert not loaded.training
    assert torch.equal(logits(loaded), logits(network))
    assert load_text(tmp_path / "m").encode(["w3 w4"], side="source") == text.encode(
        ["w3 w4"], side="source"
    )
    assert read_config(tmp_path / "m")["task"] == "code"


def test_shared_weights_stand_once(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    assert len(weights) == len(dict(load_model(folder).named_parameters()))


def test_other_weights_can_be_given(tmp_path: Path) -> None:
    text = pipeline()
    network = model(text)
    doubled = {name: 2 * tensor for name, tensor in network.state_dict().items()}
    save_model(tmp_path / "m", network, text, weights=doubled)
    for name, tensor in load_model(tmp_path / "m").state_dict().items():
        assert torch.equal(tensor, doubled[name])


def test_loading_leaves_the_random_numbers_of_others_alone(folder: Path) -> None:
    before = torch.get_rng_state()
    load_model(folder)
    assert torch.equal(torch.get_rng_state(), before)


# -- Hostile and damaged directories -----------------------------------------------------------


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.mark),)


def pickled(trap: Trap) -> bytes:
    return pickle.dumps(trap)


def zipped(trap: Trap) -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": trap}, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("make", [pickled, zipped])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "text.json", "tokenizer.json"]
)
def test_a_pickle_is_refused_and_does_nothing(
    folder: Path, tmp_path: Path, make: Any, name: str
) -> None:
    mark = tmp_path / "executed"
    (folder / name).write_bytes(make(Trap(mark)))
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        load_all(folder)
    assert not mark.exists()


@pytest.mark.parametrize("make", [pickled, zipped])
def test_the_traps_are_real(tmp_path: Path, make: Any) -> None:
    mark = tmp_path / "executed"
    data = io.BytesIO(make(Trap(mark)))
    if make is pickled:
        pickle.load(data)
    else:
        torch.load(data, weights_only=False)
    assert mark.is_dir()


def test_pickles_beside_it_are_not_looked_at(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin", "optimizer.pt"):
        (folder / name).write_bytes(pickled(Trap(mark)))
    load_model(folder)
    load_text(folder)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "other"])
def test_a_link_that_leads_out_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    if (folder / name).exists():
        (folder / name).rename(outside)
    else:
        outside.write_text("secret")
    (folder / name).symlink_to(outside)
    for load in (load_model, load_text, read_config):
        with pytest.raises(UserError, match=f"{name} is a link that leads out"):
            load(folder)


def test_a_link_that_climbs_out_by_dots_is_refused(folder: Path) -> None:
    (folder / "config.json").rename(folder.parent / "config.json")
    (folder / "config.json").symlink_to("../config.json")
    with pytest.raises(UserError, match="leads out"):
        load_model(folder)


def test_a_link_within_is_fine(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights")
    (folder / "model.safetensors").symlink_to("weights")
    assert load_model(folder).settings["branches"] == 2


@pytest.mark.parametrize("key", ["tokenizer", "tokenizer_file", "vocab"])
def test_a_path_in_the_settings_of_the_text_is_refused(folder: Path, key: str) -> None:
    settings = json.loads((folder / "text.json").read_text())
    (folder / "text.json").write_text(json.dumps({**settings, key: "../../../etc/passwd"}))
    with pytest.raises(UserError, match=r"text\.json is damaged"):
        load_text(folder)


@pytest.mark.parametrize("name", ["text.json", "tokenizer.json"])
def test_the_advice_for_a_damaged_text_file_is_that_for_a_model(folder: Path, name: str) -> None:
    advice = "; copy the model's folder again, or train the model again.$"
    (folder / name).write_text("{")
    with pytest.raises(UserError, match=f"{name} is damaged: .*{advice}"):
        load_text(folder)
    (folder / "config.json").rename(folder / "elsewhere")
    with pytest.raises(UserError, match=f"{name} is damaged: .*; prepare the corpus again.$"):
        TextPipeline.load(folder)


def test_a_path_in_the_configuration_is_not_followed(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"_name_or_path": "../../x", "weights_file": str(tmp_path / "absent")}
    config |= {"auto_map": {"AutoModel": "evil.Model"}, "weights": "../../../etc/passwd"}
    (folder / "config.json").write_text(json.dumps(config))
    assert load_model(folder).settings["branches"] == 2


def test_a_truncated_weight_file_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"model\.safetensors is damaged or no safetensors"):
            load_model(folder)


def test_a_weight_file_that_claims_too_much_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    with pytest.raises(UserError, match="is damaged"):
        load_model(folder)
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with pytest.raises(UserError, match="is damaged"):
        load_model(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "text.json", "tokenizer.json"]
)
def test_missing_files_are_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        load_all(folder)


def test_what_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        load_model(tmp_path / "absent")
    with pytest.raises(UserError, match=r"has no config\.json"):
        load_model(tmp_path)


def test_a_pipe_in_place_of_a_file_does_not_hang(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    failures: list[BaseException] = []

    def load() -> None:
        try:
            load_model(folder)
        except UserError as error:
            failures.append(error)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert "has no file model.safetensors" in str(failures[0])


@pytest.mark.parametrize(
    "change",
    [
        {"width": "many"},
        {"width": -16},
        {"width": 0},
        {"width": 2},
        {"padding": 999},
        {"heads": 0},
        {"heads": 3},
        {"branches": []},
        {"branches": None},
        {"hidden": 10**12},
        {"encoder_layers": 10**9},
        {"encoder_layers": [1]},
        {"padding": True},
        {"target_vocabulary": 10**12},
        {"norm": "sideways"},
        {"dropout": 7},
        {"activation": {"__reduce__": "os.system"}},
    ],
)
def test_an_architecture_that_is_none_is_refused(folder: Path, change: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UserError, match=r"describes no model that can be built|are not those"):
        load_model(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1]", "holds no JSON object"),
        ("{", "is no JSON file"),
        ('{"model_type": "bert"}', "a model of type 'bert', not 'multibranch'"),
        (
            '{"model_type": "bert", "architectures": ["BertForSequenceClassification"]}',
            "not 'multibranch': it is a classifier, for `multibranch classify`",
        ),
        ("{}", "a model of type None"),
        ("[" * 100_000, "is no JSON file"),
        ("\udcff", "is no JSON file"),
    ],
)
def test_a_configuration_that_is_none_is_refused(folder: Path, content: str, words: str) -> None:
    (folder / "config.json").write_text(content, errors="surrogateescape")
    with pytest.raises(UserError, match=words):
        load_model(folder)


def test_weights_of_another_model_are_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    path = folder / "model.safetensors"
    save_file({**weights, "extra": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="extra differs, and 0 more"):
        load_model(folder)
    name = "encoder.0.attention.out_weight"
    save_file({**weights, name: torch.zeros(3, 3)}, path)
    with pytest.raises(UserError, match=f"{name} differs"):
        load_model(folder)
    save_file({**weights, name: weights[name].int()}, path)
    with pytest.raises(UserError, match=f"{name} differs"):
        load_model(folder)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1e300])
def test_weights_that_are_no_numbers_are_refused(folder: Path, number: float) -> None:
    """They would give empty outputs; what float32 cannot hold becomes an infinity."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("out_weight"))
    weights[name] = weights[name].double()
    weights[name].view(-1)[3] = number
    save_file(weights, path)
    with pytest.raises(UserError, match=rf"the weights {name} in {path} hold infinities or NaN"):
        load_model(folder)


def test_a_tokenizer_of_another_kind_is_refused(folder: Path) -> None:
    from tokenizers import Tokenizer, models

    bert = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "word": 4}
    Tokenizer(models.WordPiece(bert, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    with pytest.raises(UserError, match="this vocabulary begins with"):
        load_text(folder)
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged"):
        load_text(folder)


def test_another_model_s_tokenizer_is_refused(folder: Path) -> None:
    pipeline(words=60).save(folder)
    with pytest.raises(UserError, match="has 64 source tokens, the model 24: it is another"):
        load_text(folder)


def test_a_copy_elsewhere_works(folder: Path, tmp_path: Path) -> None:
    before = logits(load_model(folder))
    shutil.move(folder, tmp_path / "elsewhere")
    assert torch.equal(logits(load_model(tmp_path / "elsewhere")), before)


def test_a_run_that_was_stopped_is_said_to_be_one(folder: Path) -> None:
    run = folder.parent / "run"
    run.mkdir()
    (run / "config.yaml").write_text("task: translation\n")
    with pytest.raises(UserError, match="is no model directory"):  # a file of one's own
        load_model(run)
    folder.rename(run / "best")
    with pytest.raises(UserError) as raised:
        load_model(run)
    assert str(raised.value) == (
        f"{run} holds a training that has not ended: `multibranch train {run}/config.yaml "
        f"--train.output={run}` goes on with it; its best weights so far are in {run}/best"
    )
    load_model(run / "best")
    stages = folder.parent / "two stages"
    (stages / "transformer").mkdir(parents=True)
    run.rename(stages / "transformer" / "run")
    (stages / "transformer" / "config.yaml").write_text("task: translation\n")
    with pytest.raises(UserError, match=r"in two stages: name one of them, as .*/transformer"):
        load_model(stages)
    with pytest.raises(UserError, match=r"`multibranch train '.*/two stages/.*/run/config.yaml' "):
        load_model(stages / "transformer" / "run")


def test_weights_without_permission_are_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")

    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError) as raised:
        load_weights(tmp_path / "model.safetensors")
    assert str(raised.value) == f"{tmp_path}/model.safetensors cannot be read: Permission denied"
