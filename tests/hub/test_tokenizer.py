"""The tokenizer of a model directory: the ids of the text pipeline, from raw text."""

from collections import Counter

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq

from multibranch.decoding import Translator
from multibranch.directory import save_model
from multibranch.hub import MultiBranchTokenizer
from multibranch.nn import MultiBranchTransformer
from multibranch.text import TextPipeline, TextSettings, WordCounter, learn_bpe, learn_words

SOURCE_WORDS = "hello , world : it 's 5 o ' clock . the cat sat what is"
TARGET_WORDS = "def cat ( sat ) : return sat"
LINES = ["Hello, world: it's 5 o'clock.", "What is <s> here?", "the cat sat"]


def make_text(shared: bool) -> TextPipeline:
    counter = WordCounter()
    counter.update(Counter(SOURCE_WORDS.split()))
    if shared:
        settings = TextSettings(kind="moses-bpe", source="en", target="en", lowercase=True)
        return TextPipeline(settings, learn_bpe(counter, merges=20, rare=1))
    settings = TextSettings(kind="words", source="nl", target="python")
    target = WordCounter()
    target.update(Counter(TARGET_WORDS.split()))
    return TextPipeline(settings, learn_words(counter, size=24), learn_words(target, size=16))


@pytest.fixture(params=[True, False], ids=["one vocabulary", "two vocabularies"])
def folder(request, tmp_path):
    text = make_text(request.param)
    torch.manual_seed(0)
    model = MultiBranchTransformer(
        source_vocabulary=text.source_size,
        target_vocabulary=text.target_size,
        width=32,
        hidden=32,
        encoder_layers=1,
        decoder_layers=1,
        branches=2,
        share_embeddings="all" if request.param else "target",
    )
    save_model(tmp_path / "model", model, text)
    return tmp_path / "model"


def test_ids_are_those_of_the_text_pipeline(folder):
    text = TextPipeline.load(folder)
    tokenizer = MultiBranchTokenizer.from_pretrained(folder)
    assert tokenizer(LINES)["input_ids"] == text.encode(LINES, side="source")
    target = tokenizer(text_target=LINES)["input_ids"]
    assert target == text.encode(LINES, side="target")
    assert tokenizer(LINES)["input_ids"] == text.encode(LINES, side="source")
    assert tokenizer(LINES[0])["input_ids"] == text.encode(LINES[:1], side="source")[0]


def test_decoding_is_that_of_the_text_pipeline(folder):
    text = TextPipeline.load(folder)
    tokenizer = MultiBranchTokenizer.from_pretrained(folder)
    ids = text.encode(LINES, side="target")
    generated = [[0, *row, 1, 1] for row in ids]
    assert tokenizer.batch_decode(generated, skip_special_tokens=True) == text.decode(
        ids, side="target"
    )


def test_padded_batches_carry_their_mask(folder):
    tokenizer = MultiBranchTokenizer.from_pretrained(folder)
    batch = tokenizer(LINES, padding=True, return_tensors="pt")
    assert torch.equal(batch["attention_mask"].bool(), batch["input_ids"] != 1)
    assert (batch["input_ids"] == 2).sum(1).eq(1).all()


def test_saved_and_loaded_again(folder, tmp_path):
    tokenizer = MultiBranchTokenizer.from_pretrained(folder)
    tokenizer(text_target=LINES, padding=True, truncation=True, max_length=3)
    tokenizer(LINES, padding=True)
    tokenizer.save_pretrained(tmp_path / "saved")
    ours = TextPipeline.load(folder).encode(LINES, side="source")
    assert TextPipeline.load(tmp_path / "saved").encode(LINES, side="source") == ours
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert isinstance(again, MultiBranchTokenizer)
    assert again(LINES)["input_ids"] == tokenizer(LINES)["input_ids"]
    assert again(text_target=LINES)["input_ids"] == tokenizer(text_target=LINES)["input_ids"]


def test_autotokenizer_loads_the_vocabulary(folder):
    text = TextPipeline.load(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    line = "the cat sat"
    assert tokenizer(line)["input_ids"] == text.encode([line], side="source")[0]
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id) == (0, 1)
    assert (tokenizer.eos_token_id, tokenizer.unk_token_id) == (2, 3)


def test_text_in_text_out(folder):
    tokenizer = MultiBranchTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    given = tokenizer(LINES, padding=True, return_tensors="pt")
    # Random models run to the greatest length: unused entries of the vocabulary would show there.
    output = model.generate(**given, num_beams=5)
    ours = Translator.load(folder, device="cpu").translate(LINES, beam=5)
    assert tokenizer.batch_decode(output, skip_special_tokens=True) == ours


def test_generate_suppresses_what_our_decoder_never_writes(folder, tmp_path):
    forbidden = Translator.load(folder, device="cpu").options().forbidden
    vocabulary = TextPipeline.load(folder).tokenizer("target").get_vocab()
    unused = {number for token, number in vocabulary.items() if token.startswith("<unused")}
    assert unused and forbidden == {0, 1, 3} | unused
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.generation_config.suppress_tokens == sorted(forbidden)
    model.save_pretrained(tmp_path / "saved")  # without text files, but with what was known
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved")
    assert again.generation_config.suppress_tokens == sorted(forbidden)


def test_the_seq2seq_collator_makes_decoder_inputs(folder):
    tokenizer = MultiBranchTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    rows = [
        {**tokenizer(line), "labels": tokenizer(text_target=line)["input_ids"]} for line in LINES
    ]
    batch = DataCollatorForSeq2Seq(tokenizer, model=model)(rows)
    assert batch["decoder_input_ids"][:, 0].eq(0).all()
    for row, labels in zip(batch["decoder_input_ids"], batch["labels"]):
        length = int((labels != -100).sum())
        assert row[1:length].tolist() == labels[: length - 1].tolist()
    assert model(**batch).loss > 0


def test_the_vocabulary_takes_no_further_tokens(folder):
    tokenizer = MultiBranchTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<s>", "</s>"])
    before = tokenizer(LINES)["input_ids"]
    for add in (
        lambda: tokenizer.add_tokens("zebra"),
        lambda: tokenizer.add_tokens(["the"]),  # a token, but not one that is cut out of texts
        lambda: tokenizer.add_special_tokens({"additional_special_tokens": ["<zebra>"]}),
    ):
        with pytest.raises(ValueError, match="text pipeline and takes no further token such as"):
            add()
    assert tokenizer(LINES)["input_ids"] == before


def test_a_folder_without_text_files_is_said_so(folder):
    (folder / "text.json").unlink()
    with pytest.raises(ValueError, match=r"a model directory that has its text\.json"):
        AutoTokenizer.from_pretrained(folder)
