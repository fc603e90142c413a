"""ONNX: what onnxruntime computes from the graphs is what PyTorch computes from the model."""

import json

import numpy as np
import pytest
import torch

from multibranch.errors import UserError
from multibranch.export import (
    OnnxModel,
    export,
    export_onnx,
    export_onnx_classifier,
    onnx_graph,
)
from multibranch.nn import MultiBranchEncoder
from multibranch.text import BOS, EOS, PAD, TextPipeline

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

OPTIONS = {
    "the paper's": {},
    "pre-norm, gelu": {"norm": "pre", "activation": "gelu"},
    "swiglu, branches of both": {"activation": "swiglu", "ffn_branches": 2, "norm": "pre"},
    "learned positions, some shared": {"positions": "learned", "max_length": 4},
    "output embedding shared": {"share_embeddings": "target"},
    "no embedding shared": {"share_embeddings": "none", "branch_scale": "released"},
    "heads and branches by layer": {"heads": [2, 4, 1, 8], "branches": [3, 1, 2, 1]},
    "a head width": {"head_width": 5, "heads": 3},
}
SOURCE = torch.tensor([[5, 9, 30, 41, 7, EOS], [11, 6, EOS, PAD, PAD, PAD], [EOS] + 5 * [PAD]])
TARGET = torch.tensor([[BOS, 4, 8, 90, 15, 16, 23], [BOS, 42, 5, 5, 5, 7, 9], [BOS] + 6 * [31]])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_decoding_step_by_step_gives_the_same_logits(tmp_path, text, make_model, options):
    model = make_model(text, polite=False, **options)
    run = OnnxModel(export_onnx(model, text, tmp_path / "out"), threads=1)
    cache = run.start(SOURCE.numpy())
    assert cache["past_key.0"].shape[2] == 0
    with torch.inference_mode():
        wanted = model(SOURCE, TARGET).numpy()
    # One token at a time, and several at once in between: the cache takes both.
    for first, last in ((0, 1), (1, 2), (2, 5), (5, 6), (6, 7)):
        logits = run.step(TARGET[:, first:last].numpy(), cache)
        assert logits.shape == (3, last - first, text.target_size)
        np.testing.assert_allclose(logits, wanted[:, first:last], atol=1e-4)
        assert cache["past_key.0"].shape[2] == last
        assert cache["past_value.1"].shape[2] == last


def test_rows_can_be_reordered_as_a_beam_search_does(tmp_path, text, make_model):
    model = make_model(text, polite=False)
    run = OnnxModel(export_onnx(model, text, tmp_path / "out"), threads=1)
    cache = run.start(SOURCE[[0, 0]].numpy())
    run.step(np.array([[BOS, 7], [BOS, 9]]), cache)
    taken = {n: a[[1, 1]] if n.startswith("past") else a for n, a in cache.items()}
    logits = run.step(np.array([[12], [13]]), taken)
    with torch.inference_mode():
        wanted = model(SOURCE[[0, 0]], torch.tensor([[BOS, 9, 12], [BOS, 9, 13]]))[:, 2:]
    np.testing.assert_allclose(logits, wanted.numpy(), atol=1e-4)


def test_the_encoders_states_are_the_same(tmp_path, text, make_model):
    model = make_model(text, norm="pre", polite=False)
    run = OnnxModel(export_onnx(model, text, tmp_path / "out"), threads=1)
    there = (SOURCE != PAD).unsqueeze(-1).numpy()
    with torch.inference_mode():
        wanted = model.encode(SOURCE).states.numpy()
    np.testing.assert_allclose(run.states(SOURCE.numpy()) * there, wanted * there, atol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_an_encoder_by_itself(tmp_path, norm):
    torch.manual_seed(3)
    model = MultiBranchEncoder(
        vocabulary=50, width=16, hidden=24, heads=2, encoder_layers=2, branches=[2, 3], norm=norm
    ).eval()
    folder = export_onnx(model, None, tmp_path / "out")
    assert {path.name for path in folder.iterdir()} == {"encoder.onnx", "multibranch.json"}
    run = OnnxModel(folder, threads=1)
    there = (SOURCE != PAD).unsqueeze(-1).numpy()
    with torch.inference_mode():
        wanted = model(SOURCE).numpy()
    np.testing.assert_allclose(run.states(SOURCE.numpy()) * there, wanted * there, atol=1e-5)
    with pytest.raises(UserError, match=r"no decoder\.onnx"):
        run.step(SOURCE.numpy(), {})


def test_the_folder_is_complete_and_its_dimensions_have_names(tmp_path, text, make_model):
    folder = export_onnx(make_model(text), text, tmp_path / "out", decoding={"beam": 4})
    assert {path.name for path in folder.iterdir()} == {
        "encoder.onnx",
        "decoder.onnx",
        "multibranch.json",
        "text.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert TextPipeline.load(folder).target_size == text.target_size
    said = json.loads((folder / "multibranch.json").read_text())
    assert said["decoding"] == {"beam": 4}
    assert said["largest_difference"] < 1e-5
    graph = onnx.load(folder / "decoder.onnx").graph
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in [*graph.input, *graph.output]
    }
    assert shapes["ids"] == ["batch", "target"]
    assert shapes["past_key.1"] == ["batch", 6, "past", 8]
    assert shapes["memory_value.0"] == ["batch", 6, "source", 8]
    assert shapes["present_key.0"] == ["batch", 6, "past + target", 8]
    assert shapes["logits"] == ["batch", "target", text.target_size]


def test_a_shared_embedding_is_written_once(tmp_path, text, make_model):
    sizes = {}
    for share in ("target", "none"):
        model = make_model(text, share_embeddings=share, polite=False)
        folder = export_onnx(model, text, tmp_path / share)
        sizes[share] = (folder / "decoder.onnx").stat().st_size
    assert sizes["none"] - sizes["target"] == pytest.approx(text.target_size * 16 * 4, abs=200)


def test_weights_beyond_a_files_limit_go_beside_it(tmp_path, text, make_model, monkeypatch):
    monkeypatch.setattr(onnx_graph, "FILE_LIMIT", 10_000)
    model = make_model(text, polite=False)
    folder = export_onnx(model, text, tmp_path / "out")
    assert (folder / "decoder.onnx.data").stat().st_size > 10_000
    run = OnnxModel(folder, threads=1)  # also where the folder has been moved to
    logits = run.step(TARGET.numpy(), run.start(SOURCE.numpy()))
    with torch.inference_mode():
        np.testing.assert_allclose(logits, model(SOURCE, TARGET).numpy(), atol=1e-4)


# -- Classifiers -----------------------------------------------------------------------------------


def small_classifier(kind: str):
    from transformers import BertConfig, BertForSequenceClassification

    from multibranch.hub import MultiBranchConfig, MultiBranchForSequenceClassification, branch_out

    torch.manual_seed(2)
    labels = {"num_labels": 3, "id2label": {0: "yes", 1: "no", 2: "perhaps"}}
    if kind == "ours":  # an encoder reads the source's vocabulary, whatever the target's is
        said = {"source_vocabulary": 12, "target_vocabulary": 400, "branches": 2, **labels}
        config = MultiBranchConfig(width=16, hidden=24, heads=2, encoder_layers=1, **said)
        return MultiBranchForSequenceClassification(config)
    config = BertConfig(
        vocab_size=280,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        **labels,
    )
    return branch_out(BertForSequenceClassification(config), branches=2)


@pytest.mark.parametrize(("kind", "types"), [("ours", False), ("branched out", True)])
def test_a_classifier_of_transformers(tmp_path, text, kind, types):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    model = small_classifier(kind).eval()
    model.save_pretrained(tmp_path / "model")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=text.tokenizer("source"),
        pad_token="<pad>",
        model_input_names=["input_ids", "attention_mask", *["token_type_ids"] * types],
    )
    tokenizer.save_pretrained(tmp_path / "model")
    steps: list[str] = []
    told = export(tmp_path / "model", tmp_path / "out", format="onnx", tell=steps.append)
    assert told["largest_difference"] < 1e-5
    assert steps == [
        "tracing the model and writing classifier.onnx",
        "checking it: running it with onnxruntime and with PyTorch",
    ]
    said = json.loads((tmp_path / "out" / "multibranch.json").read_text())
    assert said["labels"] == ["yes", "no", "perhaps"]
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    run = OnnxModel(tmp_path / "out", threads=1)
    for b, s in ((1, 3), (4, 11)):
        ids = torch.randint(4, len(model.get_input_embeddings().weight), (b, s))
        mask = torch.ones_like(ids)
        mask[0, -1] = 0
        given = {"input_ids": ids, "attention_mask": mask}
        if types:
            given["token_type_ids"] = torch.randint(0, 2, (b, s))
        with torch.inference_mode():
            wanted = model(**given).logits.numpy()
        ours = run.logits(*(tensor.numpy() for tensor in given.values()))
        np.testing.assert_allclose(ours, wanted, atol=1e-5)


def test_a_classifier_in_half_precision_is_written_in_float32_and_stays(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    model = small_classifier("branched").bfloat16().train()
    export_onnx_classifier(model, None, tmp_path / "out")
    assert (model.dtype, model.training) == (torch.bfloat16, True)
    ids = np.array([[5, 6, 7]], dtype=np.int32)
    found = OnnxModel(tmp_path / "out", threads=1).logits(ids, np.ones_like(ids))
    assert found.dtype == np.float32
    with torch.inference_mode():
        wanted = model.float().eval()(torch.from_numpy(ids).long()).logits
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)


# -- What is refused, before anything is written ---------------------------------------------------


def test_what_is_no_model_of_ours_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a Linear"):
        export_onnx(torch.nn.Linear(2, 2), None, tmp_path / "out")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    with pytest.raises(UserError, match="Linear is no classifier"):
        export_onnx_classifier(torch.nn.Linear(2, 2), None, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_model_without_decoder_layers_is_refused(tmp_path, text, make_model):
    model = make_model(text, decoder_layers=0, polite=False)
    with pytest.raises(UserError, match="without decoder layers"):
        export_onnx(model, text, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_weights_that_are_no_numbers_are_refused(tmp_path, text, make_model):
    model = make_model(text)
    model.encoder[0].attention.qkv_bias[0, 0, 0] = float("inf")
    with pytest.raises(UserError, match=r"encoder\.0\.attention\.qkv_bias"):
        export_onnx(model, text, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_written_over(tmp_path, text, make_model):
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="exists already"):
        export_onnx(make_model(text), text, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_a_wrong_graph_is_not_put_in_place(tmp_path, text, make_model, monkeypatch):
    monkeypatch.setattr(onnx_graph, "_MASKED", 0.0)  # nothing is hidden any more
    with pytest.raises(UserError, match="differs from PyTorch"):
        export_onnx(make_model(text), text, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_damaged_graph_is_one_clear_error(tmp_path, text, make_model):
    folder = export_onnx(make_model(text), text, tmp_path / "out")
    content = (folder / "encoder.onnx").read_bytes()
    (folder / "encoder.onnx").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"onnxruntime cannot load .*encoder\.onnx"):
        OnnxModel(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"it has no \.onnx file"):
        OnnxModel(tmp_path / "empty")
