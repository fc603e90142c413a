"""The engine ctranslate2: search options mean what they mean in our decoder, or are refused."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from multibranch.decoding import Hypothesis, Translator
from multibranch.errors import UserError
from multibranch.export import CTranslate2Engine, export_ctranslate2, export_onnx
from multibranch.text import (
    BOS,
    EOS,
    PAD,
    UNK,
    TextPipeline,
    TextSettings,
    WordCounter,
    learn_words,
)

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, text, trained) -> Path:
    place = tmp_path_factory.mktemp("exported") / "out"
    return export_ctranslate2(trained, text, place, decoding={"beam": 3, "length_penalty": 0.6})


@pytest.fixture(scope="module")
def engine(folder) -> CTranslate2Engine:
    return CTranslate2Engine.load(folder, device="cpu", threads=1)


@pytest.fixture(scope="module")
def ours(directory) -> Translator:
    return Translator.load(directory, device="cpu")


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"beam": 1},
        {"beam": 5, "n_best": 5, "length_penalty": 1.4},
        {"beam": 4, "n_best": 4, "length_penalty": 0.0},
        {"beam": 4, "n_best": 2, "length_penalty": -0.5},
        {"beam": 4, "batch_tokens": 20},
        {"beam": 4, "no_repeat_ngram": 2},
        {"beam": 3, "allow_unknown": True},
        {"beam": 2, "max_length": 40},
        {"beam": 12, "n_best": 3, "max_length": 30},
    ],
    ids=str,
)
def test_options_mean_the_same(engine, ours, sentences, same, how):
    same(
        engine.generate(sentences, tokenised=True, **how),
        ours.generate(sentences, tokenised=True, **how),
    )


def test_no_output_is_shorter_than_asked(engine, ours, sentences):
    how = {"beam": 4, "min_length": 7, "tokenised": True}
    found, wanted = engine.generate(sentences, **how), ours.generate(sentences, **how)
    assert min(len(one.ids) for [one] in found) == 7
    # What would have ended there goes on by other rules (see the head of export/engine.py).
    assert sum(a.ids == b.ids for [a], [b] in zip(found, wanted)) >= 0.9 * len(found)


def test_what_is_cut_at_the_maximum_length_ends_there(engine, ours, sentences):
    how = {"beam": 4, "max_length": 3, "tokenised": True}
    found, wanted = engine.generate(sentences, **how), ours.generate(sentences, **how)
    assert all(len(one.ids) <= 3 for [one] in found)
    assert sum(len(one.ids) == 3 for [one] in found) > len(found) / 2
    assert [one.ids for [one] in found] == [one.ids for [one] in wanted]
    for [one], [other] in zip(found, wanted):
        assert one.score == pytest.approx(other.score, abs=1e-4)
    for max_length in (0, 1):
        for how in ({"beam": 1}, {"beam": 3}):
            how = {**how, "max_length": max_length, "tokenised": True}
            got = [one.ids for [one] in engine.generate(sentences, **how)]
            assert got == [one.ids for [one] in ours.generate(sentences, **how)]


def test_a_sentence_has_its_own_maximum_length_in_a_batch(engine, ours, same):
    """With one maximum for the batch the short sentence would go on as long as the long one."""
    lines = ["rot", "der Mann sieht die Frau und das Haus ."]
    how = {"beam": 4, "max_ratio": 0.5, "max_extra": 0, "tokenised": True}
    same(engine.generate(lines, **how), ours.generate(lines, **how))
    same(engine.generate(lines[:1], **how), ours.generate(lines[:1], **how))


def test_what_is_searched_again_keeps_to_the_batches(engine, ours, sentences, monkeypatch):
    sizes: list[int] = []
    steps: list[int] = []

    class Watched:
        def __getattr__(self, name: str):
            return getattr(real, name)

        def translate_batch(self, sources, *given, **settings):
            sizes.append(len(sources) * (max(map(len, sources)) + 1))
            steps.append(settings["max_decoding_length"])
            return real.translate_batch(sources, *given, **settings)

    real = engine.engine
    monkeypatch.setattr(engine, "engine", Watched())
    how = {"beam": 4, "max_length": 3, "tokenised": True, "batch_tokens": 30}
    done: list[int] = []
    found = engine.generate(sentences, progress=done.append, **how)
    assert steps.count(3) > 1  # the second search, which stops where the first would end
    assert max(sizes) <= 30
    assert sum(done) == len(sentences)
    assert [one.ids for [one] in found] == [one.ids for [one] in ours.generate(sentences, **how)]


def test_a_batch_has_no_more_rows_than_ours(engine, sentences, monkeypatch):
    wanted = engine.generate(sentences, beam=2)
    monkeypatch.setattr("multibranch.export.engine.MOST_ROWS", 4)
    translate, sizes = engine.engine.translate_batch, []

    class Watched:
        def __getattr__(self, name: str):
            return getattr(real, name)

        def translate_batch(self, sources, *given, **settings):
            sizes.append(len(sources))
            return translate(sources, *given, **settings)

    real = engine.engine
    monkeypatch.setattr(engine, "engine", Watched())
    assert [one.ids for [one] in engine.generate(sentences, beam=2)] == [
        one.ids for [one] in wanted
    ]
    assert max(sizes) == 2


def test_prefixes_are_kept_and_scored(engine, ours, sentences, same):
    prefixes = ["", "der Hund", "kalt", *[""] * (len(sentences) - 3)]
    how = {"beam": 4, "prefixes": prefixes, "tokenised": True}
    found = engine.generate(sentences, **how)
    assert found[1][0].text.startswith("der Hund")
    same(found, ours.generate(sentences, **how))


def test_scores_are_the_models_own(engine, trained, text, sentences):
    """Also where something was forbidden on the way: the model's log-probability, over length^α."""
    how = {"beam": 3, "n_best": 2, "length_penalty": 0.8, "tokenised": True, "min_length": 6}
    for line, hypotheses in zip(sentences, engine.generate(sentences, **how)):
        source = torch.tensor(text.encode([line], side="source", tokenised=True))
        for one in hypotheses:
            ids = torch.tensor([*one.ids, EOS])
            log_p = trained(source, torch.tensor([[BOS, *one.ids]])).log_softmax(-1)[0]
            total = float(log_p.gather(1, ids[:, None]).sum())
            assert one.log_probability == pytest.approx(total, abs=1e-3)
            assert one.score == pytest.approx(total / len(ids) ** 0.8, abs=1e-4)


def test_what_may_not_be_written_is_not(tmp_path, text, make_model, sentences):
    """A model that would love to write special tokens."""
    model = make_model(text, polite=False, share_embeddings="none")
    model.output_weight[[BOS, PAD, UNK]] *= 6
    model.output_weight[-2:] *= 6  # unused
    engine = CTranslate2Engine.load(export_ctranslate2(model, text, tmp_path / "out"), threads=1)
    never = {BOS, PAD, UNK, EOS, *engine.options().never}
    found = [one.ids for [one] in engine.generate(sentences, beam=3)]
    assert len(engine.options().never) == 2
    assert all(never.isdisjoint(ids) for ids in found)
    asked = engine.generate(sentences, beam=3, allow_unknown=True, max_length=8)
    assert any(UNK in one.ids for [one] in asked)


def test_a_vocabulary_of_words_never_writes_unknown(tmp_path, make_model):
    counter = WordCounter()
    counter.update(dict.fromkeys(["get", "the", "list", "all", "names", "return", "x", "y"], 9))
    tokenizer = learn_words(counter, size=100)
    settings = TextSettings(kind="words", source="nl", target="python")
    text = TextPipeline(settings, tokenizer)
    model = make_model(text, polite=False, share_embeddings="none")
    model.output_weight[UNK] *= 4
    engine = CTranslate2Engine.load(export_ctranslate2(model, text, tmp_path / "out"), threads=1)
    lines = ["get the list", "all names x", "return y"]
    found = engine.generate(lines, tokenised=True, beam=3, n_best=3, max_length=6)
    assert all(UNK not in one.ids for hypotheses in found for one in hypotheses)
    assert all(hypotheses for hypotheses in found)


def test_text_goes_in_and_out_as_in_the_translator(engine, ours):
    lines = ["Der Hund , und die Frau .", "", "   ", "kalt ?"]
    assert engine.translate(lines) == ours.translate(lines)
    assert engine.translate(lines)[1:3] == ["", ""]
    assert engine.generate([""]) == [[Hypothesis((), 0.0, 0.0)]]
    assert engine.translate([]) == []
    assert (
        engine.translate(lines, n_best=2)[0][1].text == ours.translate(lines, n_best=2)[0][1].text
    )
    streamed = list(engine.stream(iter(lines), chunk=2))
    assert [line for line, _ in streamed] == lines
    assert [found[0].text for _, found in streamed] == engine.translate(lines)


def test_the_folder_remembers_how_to_search(engine):
    assert engine.options().beam == 3
    assert engine.options().length_penalty == 0.6
    assert engine.options(beam=7).beam == 7


def test_progress_counts_every_line(engine, sentences):
    told: list[int] = []
    engine.generate([*sentences, ""], batch_tokens=30, progress=told.append, max_length=2)
    assert sum(told) == len(sentences) + 1
    assert len(told) > 2


def test_lines_longer_than_the_positions_are_refused(tmp_path, text, trained):
    folder = export_ctranslate2(trained, text, tmp_path / "out", positions=16)
    engine = CTranslate2Engine.load(folder, threads=1)
    assert engine.translate([" ".join(["rot"] * 15)], max_length=100, beam=2)[0]
    with pytest.raises(
        UserError, match=r"17 tokens, and this exported model takes 16.*--positions"
    ):
        engine.translate([" ".join(["rot"] * 16)])


@pytest.mark.parametrize("how", [{}, {"prefixes": ["rot " * 20], "tokenised": True}])
def test_fewer_positions_than_the_description_says_is_one_clear_error(tmp_path, text, trained, how):
    folder = export_ctranslate2(trained, text, tmp_path / "out", positions=16)
    description = folder / "multibranch.json"
    said = json.loads(description.read_text())
    description.write_text(json.dumps({**said, "positions": 64}))
    engine = CTranslate2Engine.load(folder, threads=1)
    lines = ["rot " * (5 if how else 20)]
    with pytest.raises(UserError, match=r"fewer positions than its multibranch\.json says"):
        engine.translate(lines, max_length=30, beam=2, **how)


def test_every_position_is_right_up_to_the_last(tmp_path, text, make_model, same):
    model = make_model(text, positions="learned", max_length=6)
    folder = export_ctranslate2(model, text, tmp_path / "out", positions=30)
    engine = CTranslate2Engine.load(folder, threads=1)
    lines = [" ".join(["rot", "Hund", "kalt"] * 9)]
    assert len(text.encode(lines, side="source")[0]) == 28
    how = {"beam": 2, "max_length": 29}
    same(engine.generate(lines, **how), Translator([model], text).generate(lines, **how))


# -- What is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"sample": True}, "--engine torch for --sample"),
        ({"repetition_penalty": 1.2}, "repetition penalty"),
        ({"beam": 0}, "beam must be at least 1"),
        ({"beam": 1_000_000}, "takes a beam of at most 16,384, not 1,000,000"),
        ({"n_best": 9}, "cannot give the 9 best"),
        ({"bean": 3}, "no option 'bean'"),
    ],
)
def test_options_that_mean_something_else_are_refused(engine, how, match):
    with pytest.raises(UserError, match=match):
        engine.options(**how)


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"branches": [0]}, "folded into heads.*--engine torch"),
        ({"precision": "bfloat16"}, "--quantization"),
        ({"cuda_graphs": True}, "CUDA graphs"),
        ({"device": "tpu"}, "no device 'tpu'"),
    ],
)
def test_what_only_the_other_engine_does_is_refused(folder, how, match):
    with pytest.raises(UserError, match=match):
        CTranslate2Engine.load(folder, **how)


def test_ensembles_are_refused(folder):
    with pytest.raises(UserError, match="decodes with one model"):
        CTranslate2Engine.load([folder, folder])
    with pytest.raises(UserError, match="no exported model"):
        CTranslate2Engine.load([])


@pytest.mark.skipif(
    ctranslate2.get_cuda_device_count() > 0, reason="there is a GPU that CTranslate2 can use"
)
def test_a_gpu_that_is_not_there_is_refused(folder):
    with pytest.raises(UserError, match="no GPU that CTranslate2 can use"):
        CTranslate2Engine.load(folder, device="cuda")


def test_a_missing_package_is_named(folder, tmp_path, text, trained, monkeypatch):
    for package, call in (
        ("ctranslate2", lambda: CTranslate2Engine.load(folder)),
        ("ctranslate2", lambda: export_ctranslate2(trained, text, tmp_path / "out")),
        ("onnx", lambda: export_onnx(trained, text, tmp_path / "out")),
    ):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
        with pytest.raises(UserError, match=rf"{package}.*pip install 'multibranch\[export\]'"):
            call()
    assert not list(tmp_path.iterdir())


def test_workers_and_threads_give_the_same(folder, engine, sentences, same):
    how = {"beam": 2, "batch_tokens": 15}
    two = CTranslate2Engine.load(folder, threads=2, workers=2)
    one = CTranslate2Engine.load(folder, threads=2, workers=1)
    wanted = engine.generate(sentences, **how)
    same(two.generate(sentences, **how), wanted)
    same(one.generate(sentences[:5], **how), wanted[:5])  # two threads that wait for each other


@pytest.mark.parametrize("how", ["threads", "workers"])
def test_threads_and_workers_are_at_least_one(folder, how):
    for number in (0, -1):
        with pytest.raises(UserError, match=f"{how} must be at least 1, not {number}"):
            CTranslate2Engine.load(folder, **{how: number})


def test_a_model_directory_is_told_to_export(directory):
    with pytest.raises(UserError, match=r"multibranch export .* --format ctranslate2"):
        CTranslate2Engine.load(directory)


def test_a_folder_of_another_format_is_refused(tmp_path, text, trained):
    pytest.importorskip("onnx", reason="onnx is not installed")
    with pytest.raises(UserError, match="format 'onnx', not ctranslate2"):
        CTranslate2Engine.load(export_onnx(trained, text, tmp_path / "out"))


@pytest.mark.parametrize(
    ("name", "damage", "match"),
    [
        ("model.bin", "remove", "CTranslate2 cannot load"),
        ("model.bin", "truncate", "CTranslate2 cannot load"),
        ("model.bin", "empty", "CTranslate2 cannot load"),
        ("shared_vocabulary.json", "remove", "incomplete: it has no shared_vocabulary.json"),
        ("shared_vocabulary.json", "truncate", "is damaged"),
        ("shared_vocabulary.json", "other", "other tokens than the tokenizer"),
        ("tokenizer.json", "remove", "is missing"),
        ("tokenizer.json", "truncate", "is damaged"),
        ("text.json", "remove", "no text pipeline"),
        ("multibranch.json", "remove", "no exported model"),
        ("multibranch.json", "truncate", "no JSON file"),
        ("multibranch.json", {"positions": "many"}, "says no number of positions"),
        ("multibranch.json", {"positions": True}, "says no number of positions"),
        ("multibranch.json", {"positions": 64, "decoding": {"beam": 0}}, "beam must be at least 1"),
        ("multibranch.json", {"positions": 64, "decoding": {"beam": "five"}}, "no set of search"),
        ("config.json", "truncate", "CTranslate2 cannot load"),
        ("model.bin", "link", "leads out of the model directory"),
    ],
)
def test_a_damaged_folder_is_one_clear_error(tmp_path, folder, name, damage, match):
    place = tmp_path / "copy"
    shutil.copytree(folder, place)
    path = place / name
    content = path.read_bytes()
    path.unlink()
    if damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "other":
        path.write_bytes(content.replace(b'"', b'"x', 1))
    elif isinstance(damage, dict):
        path.write_text(json.dumps({"format": "ctranslate2", **damage}))
    elif damage == "link":
        path.symlink_to(folder / name)
    with pytest.raises(UserError, match=match):
        CTranslate2Engine.load(place, threads=1)
