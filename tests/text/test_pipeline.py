"""The pipeline: text to ids and back, saved and loaded, on real corpora and by Hugging Face."""

import json
import lzma
from collections import Counter
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from multibranch.errors import UserError
from multibranch.text import BOS, EOS, PAD, UNK, TextPipeline, TextSettings, WordCounter
from multibranch.text.pipeline import tokeniser
from multibranch.text.vocabulary import learn_bpe, learn_words

SENTENCES = [
    "Der Mann geht nach Hause.",
    "Sie sagt: „Das kostet 5 %.“",
    "Ein Hund & eine Katze (klein).",
] * 5


def moses(**options: bool) -> TextPipeline:
    settings = TextSettings(kind="moses-bpe", source="de", target="de", **options)
    return TextPipeline(settings, learn_bpe(counted(settings, SENTENCES), merges=80))


def counted(settings: TextSettings, lines: list[str], side: str = "source") -> WordCounter:
    split, counter = tokeniser(settings, side), WordCounter()
    counter.update(Counter(word for line in lines for word in split(line).split()))
    return counter


def test_text_goes_to_ids_and_back() -> None:
    text = moses()
    ids = text.encode(SENTENCES, side="source")
    assert all(sequence[-1] == EOS and BOS not in sequence for sequence in ids)
    assert text.decode(ids, side="target") == SENTENCES
    assert text.tokenise(SENTENCES[2], "source") == "Ein Hund &amp; eine Katze ( klein ) ."
    assert text.decode(ids[2:3], side="source", tokenised=True) == [
        "Ein Hund &amp; eine Katze ( klein ) ."
    ]


def test_tokenised_lines_are_taken_as_they_are() -> None:
    text = moses()
    words = "Ein Hund &amp; eine Katze ( klein ) ."
    assert text.encode([words], side="source", tokenised=True) == text.encode(
        SENTENCES[2:3], side="source"
    )


def test_decoding_stops_at_eos_and_passes_over_bos_and_pad() -> None:
    text = moses()
    (ids,) = text.encode(["Der Mann"], side="source")
    padded = [BOS, *ids, PAD, PAD, ids[0]]
    assert text.decode([padded, [], [EOS], [PAD]], side="target") == ["Der Mann", "", "", ""]


def test_lower_casing_is_moses_own() -> None:
    text = moses(lowercase=True)
    assert text.tokenise("ÄPFEL ΣΑΣ", "source") == "äpfel σασ"


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    text = moses(lowercase=True)
    text.save(tmp_path)
    again = TextPipeline.load(tmp_path)
    assert again.settings == text.settings and again.shared
    assert (again.source_size, again.target_size) == (text.source_size, text.source_size)
    assert again.encode(SENTENCES, side="source") == text.encode(SENTENCES, side="source")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "text.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_sides_may_have_vocabularies_of_their_own(tmp_path: Path) -> None:
    settings = TextSettings(kind="words", source="nl", target="java")
    source = learn_words(counted(settings, ["Gets the x."]), size=20)
    target = learn_words(counted(settings, ["int f() { return 1; }"], "target"), size=30)
    TextPipeline(settings, source, target).save(tmp_path)
    text = TextPipeline.load(tmp_path)
    assert not text.shared and (text.source_size, text.target_size) == (8, 16)
    assert text.decode(
        text.encode(["Gets the x.y"], side="source"), side="source", tokenised=True
    ) == ["gets the x . <unk>"]
    code = text.encode(["int f() { return 22; }"], side="target")
    assert text.decode(code, side="target") == ["int f() {\n    return _NUM;\n}"]


@pytest.mark.parametrize("name", ["text.json", "tokenizer.json"])
def test_a_full_disk_is_the_systems_error_whichever_file_meets_it(
    tmp_path: Path, name: str
) -> None:
    text = moses()
    text.save(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        text.save(tmp_path)


def test_words_spelt_like_special_tokens_are_unknown() -> None:
    settings = TextSettings(kind="words", source="nl", target="python")
    vocabulary = learn_words(counted(settings, ["a b"]), size=20)
    text = TextPipeline(settings, vocabulary, vocabulary)
    (ids,) = text.encode(["a </s> <s> b"], side="target", tokenised=True)
    assert ids == [4, UNK, UNK, 5, EOS]


def test_hugging_face_loads_it(tmp_path: Path) -> None:
    """The vocabulary alone, by `transformers` alone; with multibranch.hub, see tests/hub."""
    text = moses()
    text.save(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    words = [text.tokenise(line, "source") for line in SENTENCES]
    assert tokenizer(words)["input_ids"] == text.encode(SENTENCES, side="source")
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id) == (BOS, PAD)
    assert (tokenizer.eos_token_id, tokenizer.unk_token_id) == (EOS, UNK)
    ids = text.encode(SENTENCES[:1], side="source")[0]
    assert tokenizer.decode(ids, skip_special_tokens=True) == words[0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "text.json").unlink(), "holds no text pipeline"),
        (lambda folder: (folder / "text.json").write_text("{"), "text.json is damaged"),
        (lambda folder: (folder / "text.json").write_text('{"shared": true}'), "not of format 1"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda folder: (folder / "tokenizer.json").write_text("[]"), "tokenizer.json is damaged"),
        (lambda folder: rename(folder / "tokenizer.json"), "was not made by `multibranch prepare`"),
        (lambda folder: change(folder / "text.json", kind="magic"), "unknown kind of text 'magic'"),
        (lambda folder: change(folder / "text.json", source=5), "damaged: source must be a text"),
        (
            lambda folder: change(folder / "text.json", lowercase="x"),
            "lowercase must be true or fa",
        ),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, damage: object, message: str) -> None:
    moses().save(tmp_path)
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(UserError, match=message):
        TextPipeline.load(tmp_path)


def rename(path: Path) -> None:
    """Another vocabulary: one whose first entry is not <s>."""
    content = json.loads(path.read_text())
    content["model"]["vocab"]["<S>"] = content["model"]["vocab"].pop("<s>")
    content["added_tokens"] = content["added_tokens"][1:]
    path.write_text(json.dumps(content))


def change(path: Path, **settings: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


CORPORA = [
    ("ted-de-en", ("de", "en"), ("valid", "test")),
    ("multi30k-de-en", ("de", "en"), ("valid", "test")),
    ("europarl-de-en", ("de", "en"), ("valid", "test")),
    ("newstest-en-de", ("de", "en"), ("newstest2013", "newstest2014")),
    ("code-java", ("nl", "code"), ("valid", "test")),
    ("code-python", ("nl", "code"), ("valid", "test")),
]
ALL = [(name, sides, ("train",)) for name, sides, _ in CORPORA if name != "newstest-en-de"]


def read(folder: Path, name: str, limit: int | None = None) -> list[str]:
    text = lzma.decompress((folder / f"{name}.xz").read_bytes()).decode()
    return text.removesuffix("\n").split("\n")[:limit]


@pytest.mark.parametrize(
    ("corpus", "sides", "files"),
    [*CORPORA, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL)],
)
def test_ids_are_inverse_on_every_line_of_the_corpora(
    shared_data: Path, corpus: str, sides: tuple[str, str], files: tuple[str, ...]
) -> None:
    """BPE learned elsewhere still gives every line back: nothing is ever unknown to it."""
    folder = shared_data / corpus
    learned = read(shared_data / "multi30k-de-en", "valid.de")
    settings = TextSettings(kind="tokenised-bpe", source="de", target="en")
    text = TextPipeline(settings, learn_bpe(counted(settings, learned), merges=2000))
    for side in sides:
        for file in files:
            lines = [text.tokenise(line, "source") for line in read(folder, f"{file}.{side}")]
            ids = text.encode(lines, side="source", tokenised=True)
            assert text.decode(ids, side="source", tokenised=True) == lines


@pytest.mark.parametrize("corpus", ["code-java", "code-python"])
def test_word_ids_are_inverse_but_for_unknown_words(shared_data: Path, corpus: str) -> None:
    for side in ("nl", "code"):
        lines = read(shared_data / corpus, f"valid.{side}")
        counter = WordCounter()
        counter.update(Counter(word for line in lines[:3000] for word in line.split(" ")))
        vocabulary = learn_words(counter, size=10_000)
        settings = TextSettings(kind="words", source="nl", target=corpus.removeprefix("code-"))
        text = TextPipeline(settings, vocabulary, vocabulary)
        known = set(vocabulary.get_vocab()) - {"<s>", "<pad>", "</s>", "<unk>"}
        expected = [
            " ".join(word if word in known else "<unk>" for word in line.split(" "))
            for line in lines
        ]
        ids = text.encode(lines, side="source", tokenised=True)
        assert text.decode(ids, side="source", tokenised=True) == expected
