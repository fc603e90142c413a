"""The Translator: text in, text out, odd lines, ensembles, branches, options of the directory."""

import itertools
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

import reference_decoding as reference
from multibranch.decoding import Hypothesis, SearchOptions, Translator
from multibranch.decoding.options import read_options
from multibranch.directory import load_model, load_text, save_model
from multibranch.errors import UserError
from multibranch.nn import prune

LINES = ["Der Mann läuft.", "Ein Hund sieht die Frau, und das Haus?", "rot", "über grün ."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("models") / "one"
    reference.save_model_directory(place, branches=3)
    return place


@pytest.fixture(scope="module")
def translator(folder) -> Translator:
    return Translator.load(folder, device="cpu")


def test_one_text_for_every_line_in_order(translator):
    found = translator.translate(LINES)
    assert len(found) == len(LINES)
    assert all(isinstance(text, str) and text for text in found)
    assert found == [translator.translate([line])[0] for line in LINES]
    assert translator.translate(LINES[::-1]) == found[::-1]
    assert translator.translate([]) == []


def test_one_text_is_not_taken_for_lines_of_a_letter_each(translator):
    for translate in (translator.translate, lambda text: list(translator.stream(text))):
        with pytest.raises(UserError, match=r"not one text: put it into a list, as in \[text\]"):
            translate("rot")


def test_the_text_is_the_ids_decoded(translator):
    for [hypothesis] in translator.generate(LINES):
        assert translator.text.decode([hypothesis.ids], side="target") == [hypothesis.text]
    for [hypothesis] in translator.generate(LINES, tokenised_output=True):
        ids = [hypothesis.ids]
        assert translator.text.decode(ids, side="target", tokenised=True) == [hypothesis.text]


def test_tokenised_lines_are_taken_as_they_are(translator):
    tokenised = [translator.text.tokenise(line, "source") for line in LINES]
    raw = translator.generate(LINES)
    ready = translator.generate(tokenised, tokenised=True, tokenised_output=False)
    assert ready == raw


def test_n_best_is_a_list_of_different_texts_best_first(translator):
    found = translator.translate(LINES, n_best=3)
    for hypotheses in found:
        assert all(isinstance(hypothesis, Hypothesis) for hypothesis in hypotheses)
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert 1 <= len(hypotheses) <= 3
        assert len({hypothesis.text for hypothesis in hypotheses}) == len(hypotheses)
    assert [hypotheses[0].text for hypotheses in found] == translator.translate(LINES)


@pytest.mark.parametrize("blank", ["", " ", "\t  ", "\u3000", "\x01", " \x00\x7f "], ids=ascii)
def test_a_blank_line_stays_blank(translator, blank):
    assert translator.translate([LINES[0], blank, LINES[1]])[1] == ""
    assert translator.generate([blank]) == [[Hypothesis((), 0.0, 0.0)]]


@pytest.mark.parametrize("blank", ["", " ", "\u3000"], ids=ascii)
def test_a_blank_line_of_words_stays_blank(translator, blank):
    assert translator.generate([blank], tokenised=True) == [[Hypothesis((), 0.0, 0.0)]]


def test_long_and_unknown_lines_come_back(translator):
    long = " ".join(["Hund"] * 2000)
    strange = "𓀀𓁐 ﷽ \u0000 \u2028 🤖 ☃ <s> </s> <unk>"
    found = translator.translate([long, strange, LINES[0]], max_ratio=0.02, beam=2)
    assert len(translator.text.encode([long], side="source")[0]) > 2000
    assert all(found)
    assert found[2] == translator.translate([LINES[0]], max_ratio=0.02, beam=2)[0]


def test_unused_entries_are_never_written(translator):
    unused = [
        number
        for number in range(translator.text.target_size)
        if translator.text.tokenizer("target").id_to_token(number).startswith("<unused")
    ]
    assert unused
    assert set(unused) <= set(translator.options().never)
    samples = translator.generate(LINES[:1], sample=True, n_best=200, temperature=5.0)[0]
    written = {number for sample in samples for number in sample.ids}
    assert written
    assert not written & {0, 1, 2, 3, *unused}


def test_prefixes_begin_the_output(translator):
    found = translator.generate(LINES, prefixes=["Ein Mann", "", "rot", "und über"])
    for hypotheses, prefix in zip(found, ["Ein Mann", "", "rot", "und über"]):
        ids = translator.text.encode([prefix], side="target")[0][:-1]
        assert list(hypotheses[0].ids[: len(ids)]) == ids
    with pytest.raises(UserError, match="1 prefix was given for 4 lines"):
        translator.generate(LINES, prefixes=["Ein"])


def test_the_directory_says_the_defaults(translator):
    assert translator.options().beam == 3
    assert translator.options().length_penalty == 0.6
    assert translator.options(beam=7).beam == 7
    with pytest.raises(UserError, match="no option 'beams'"):
        translator.translate(LINES, beams=4)


def test_a_ratio_that_is_asked_for_goes_before_the_directorys_maximum_length(folder):
    models, text = [load_model(folder, device="cpu")], load_text(folder)
    translator = Translator(models, text, defaults={"max_length": 7, "beam": 2})
    assert translator.options().longest(100) == 7
    assert translator.options(beam=3).longest(100) == 7
    assert translator.options(max_ratio=2.0).longest(100) == 210
    assert translator.options(max_extra=5).longest(100) == 155
    assert translator.options(max_ratio=2.0, max_length=9).longest(100) == 9


def test_a_beam_that_is_asked_for_goes_before_the_directorys_sampling(folder):
    models, text = [load_model(folder)], load_text(folder)
    translator = Translator(models, text, defaults={"sample": True, "beam": 2})
    assert translator.options().sample
    assert not translator.options(beam=3).sample
    assert translator.options(beam=3).beam == 3
    assert translator.options(beam=3, sample=True).sample


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam must be at least 1, not 0"),
        ({"beam": 10**20}, "beam must be at most 1,000,000, not 1"),
        ({"max_length": 10**20}, "max_length must be at most 1,000,000"),
        ({"max_extra": 10**20}, "max_extra must be at most 1,000,000"),
        ({"no_repeat_ngram": 10**20}, "no_repeat_ngram must be at most 1,000,000"),
        ({"beam": 2, "n_best": 3}, "a beam of 2 cannot give the 3 best"),
        ({"min_length": 5, "max_length": 4}, "max_length 4 is below min_length 5"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"repetition_penalty": 0.5}, "repetition_penalty must be at least 1"),
        ({"length_penalty": float("nan")}, "length_penalty must be"),
        ({"never": (4, 99_999)}, "never names the id 99999, and the target vocabulary has"),
        ({"never": (-1,)}, "never names the id -1"),
    ],
)
def test_impossible_options_are_refused(translator, options, message):
    with pytest.raises(UserError, match=message):
        translator.translate(LINES, **options)


@pytest.mark.parametrize("said", [{"beam": "five"}, [1], {"beam": 0}])
def test_a_directory_whose_options_are_none_is_refused(folder, tmp_path, said):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "decoding": said}))
    with pytest.raises(UserError, match="is no set of search options"):
        Translator.load(other, device="cpu")


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ([1], "it must be an object of options, not [1]"),
        ({"beam": 2.5}, "beam must be a whole number, not 2.5"),
        ({"beam": True}, "beam must be a whole number, not True"),
        ({"beam": "five"}, "beam must be a whole number, not 'five'"),
        ({"never": 3}, "never must be a list of whole numbers, not 3"),
        ({"never": ["a"]}, "never must be a list of whole numbers, not ['a']"),
        ({"max_length": 7.5}, "max_length must be a whole number or null, not 7.5"),
        ({"no_repeat_ngram": 1.5}, "no_repeat_ngram must be a whole number, not 1.5"),
        ({"length_penalty": None}, "length_penalty must be a number, not None"),
        ({"sample": 1}, "sample must be true or false, not 1"),
    ],
    ids=str,
)
def test_options_of_another_type_name_the_file_and_the_key(said, wanted):
    with pytest.raises(UserError) as refused:
        read_options(said, Path("runs/mat/config.json"))
    message = f'"decoding" in runs/mat/config.json is no set of search options: {wanted}'
    assert str(refused.value) == message


def test_options_are_read_as_they_were_written():
    said = {
        "beam": 4,
        "length_penalty": 1,
        "max_ratio": 1.5,
        "max_length": None,
        "never": [5, 7],
        "sample": False,
    }
    assert read_options({**said, "batch_tokens": None}, Path("config.json")) == said
    assert read_options(asdict(SearchOptions()), Path("config.json")) == asdict(SearchOptions())
    assert read_options(None, Path("config.json")) == {}


def test_an_ensemble_of_one_directory_twice_is_the_directory(folder, translator):
    twice = Translator.load([folder, folder], device="cpu")
    assert twice.translate(LINES) == translator.translate(LINES)


def test_an_ensemble_needs_one_vocabulary(folder, tmp_path):
    reference.save_model_directory(tmp_path / "other", words=["ganz", "andere", "Wörter"])
    with pytest.raises(UserError, match="has another vocabulary than"):
        Translator.load([folder, tmp_path / "other"], device="cpu")


def test_branches_decode_as_the_pruned_model_does(folder, translator):
    model, text = load_model(folder), load_text(folder)
    pruned = Translator([prune(model, keep=[0, 2])], text, defaults={"beam": 3})
    chosen = Translator.load(folder, device="cpu", branches=[0, 2])
    options = {"length_penalty": 1.0, "n_best": 3}
    assert chosen.translate(LINES, **options) == pruned.translate(LINES, **options)
    assert chosen.translate(LINES, **options) != translator.translate(LINES, **options)
    for wrong in ([3], [0, 0], []):
        with pytest.raises(UserError, match="have branches 1 to 3"):
            Translator.load(folder, device="cpu", branches=wrong)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_translator_leaves_its_models_as_they_are(folder, precision):
    model, text = load_model(folder), load_text(folder)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()
    Translator([model], text, precision=precision).translate(LINES[:1])
    assert model.training
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == before[name].dtype
        assert tensor.equal(before[name])


def test_streaming_keeps_the_order_and_reads_no_further_than_a_chunk(translator):
    read = []

    def endless():
        for number in range(10_000):
            read.append(number)
            yield LINES[number % 4] if number % 5 else ""

    stream = translator.stream(
        endless(), chunk=8, prefixes=itertools.chain(["Ein"], itertools.repeat(""))
    )
    first = [next(stream) for _ in range(8)]
    assert len(read) == 8
    assert [line for line, _ in first] == [LINES[n % 4] if n % 5 else "" for n in range(8)]
    rest = translator.translate([line for line, _ in first[1:]])
    assert [hypotheses[0].text for _, hypotheses in first[1:]] == rest
    next(stream)
    assert len(read) == 16


def test_progress_counts_every_line(translator):
    counted = []
    translator.translate([*LINES, "", " "], progress=counted.append, batch_tokens=8)
    assert sum(counted) == 6
    assert len(counted) > 2


def test_folders_that_are_no_models_are_refused(tmp_path):
    with pytest.raises(UserError, match="is no model directory"):
        Translator.load(tmp_path / "nothing")
    for device in ("quantum", "mps", "meta"):
        with pytest.raises(UserError, match=f"--device: '{device}' is no device"):
            Translator.load(tmp_path, device=device)


@pytest.mark.parametrize("how", [{}, {"beam": 1}, {"sample": True}], ids=str)
def test_a_model_whose_numbers_are_too_large_for_the_precision_is_refused(tmp_path, how):
    model = reference.save_model_directory(tmp_path / "small")
    for block in model.decoder:
        block.feed_forward.in_weight.mul_(1e5)
        block.feed_forward.out_weight.mul_(1e5)
    save_model(tmp_path / "large", model, load_text(tmp_path / "small"))
    large = Translator.load(tmp_path / "large", device="cpu", precision="float16")
    with pytest.raises(UserError, match="computes NaN for this text: its numbers are too large"):
        large.translate(LINES, **how)
    assert all(Translator.load(tmp_path / "large", device="cpu").translate(LINES, **how))
    trained = Translator([model], load_text(tmp_path / "small"), precision="float16")
    assert trained.generate(LINES, **how) == [[]] * len(LINES)  # a training goes on
