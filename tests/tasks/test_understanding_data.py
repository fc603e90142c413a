"""Reading labelled text: GLUE's official files and their traps, and tables of one's own."""

import gzip
import lzma

import pytest

from multibranch.data.glue import prepare_glue
from multibranch.errors import UserError
from multibranch.tasks.understanding_data import Columns, find_file, read_examples, read_labels
from multibranch.tasks.understanding_glue import glue_corpus

TEXT = Columns(("text",), "label")
NUMBERS = {"no": 0, "yes": 1}

# How many examples the official files have.
COUNTS = {
    "mrpc": {"train": 3668, "valid": 408},
    "sst2": {"train": 67349, "valid": 872},
    "rte": {"train": 2490, "valid": 277},
    "cola": {"train": 8551, "valid": 1043},
    "qnli": {"valid": 5463},
}


def read_glue(folder, task, split):
    corpus = glue_corpus(task, folder)
    return corpus.examples(split, corpus.named_labels())


@pytest.mark.parametrize(
    ("task", "split"),
    [(t, s) for t in ("mrpc", "sst2", "rte", "cola") for s in ("train", "valid")]
    + [("qnli", "valid")],
)
def test_glue_has_its_official_counts(shared_data, task, split):
    examples = read_glue(shared_data / "glue", task, split)
    assert len(examples) == COUNTS[task][split]
    pieces = 1 if task in ("sst2", "cola") else 2
    assert {len(text) for text in examples.texts} == {pieces}
    assert set(examples.labels) == {0, 1}


def test_a_prepared_folder_has_the_same_examples(shared_data, tmp_path):
    prepare_glue(tmp_path / "glue", places=[shared_data / "glue"], tasks=["rte", "cola"])
    for task in ("rte", "cola"):
        prepared = read_glue(tmp_path / "glue", task, "valid")
        official = read_glue(shared_data / "glue", task, "valid")
        assert prepared.labels == official.labels
        assert prepared.texts == [tuple(piece.strip() for piece in text) for text in official.texts]
        one, other = glue_corpus(task, tmp_path / "glue"), glue_corpus(task, shared_data / "glue")
        assert list(one.named_labels().values()) == list(other.named_labels().values())


def test_mrpc_keeps_quotation_marks_as_characters(shared_data):
    examples = read_glue(shared_data / "glue", "mrpc", "train")
    quoted = [piece for text in examples.texts for piece in text if '"' in piece]
    assert len(quoted) > 500
    # A reader that took them for quoting would join lines and lose examples.
    assert any(piece.count('"') % 2 for piece in quoted)
    assert sum(examples.labels) == 2474  # equivalent pairs


def test_cola_has_no_header_to_lose(shared_data):
    examples = read_glue(shared_data / "glue", "cola", "valid")
    assert examples.texts[0][0].startswith("The sailors")
    assert sum(examples.labels) == 721  # acceptable sentences


def test_mnli_has_two_validation_sets(tmp_path):
    header = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
    header += "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
    folder = tmp_path / "MNLI"
    folder.mkdir()
    for name, label in (("dev_matched", "neutral"), ("dev_mismatched", "contradiction")):
        row = "\t".join(["0", "1", "1n", "fiction", "(", ")", "(", ")", "A man.", "One.", label])
        (folder / f"{name}.tsv").write_text(f"{header}{row}\t{label}\n")
    matched = read_glue(tmp_path, "mnli", "valid")
    mismatched = read_glue(tmp_path, "mnli", "valid_mismatched")
    assert matched.texts == [("A man.", "One.")]
    assert (matched.labels, mismatched.labels) == ([1], [2])


def test_csv_is_quoted_and_jsonl_is_typed(tmp_path):
    (tmp_path / "a.csv").write_text('id,text,label\n1,"He said ""no"",\nthen left",yes\n')
    (tmp_path / "a.jsonl").write_text('{"label": true, "text": "tab\\there"}\n\n')
    csv = read_examples(tmp_path / "a.csv", TEXT, NUMBERS)
    assert csv.texts == [('He said "no",\nthen left',)] and csv.labels == [1]
    jsonl = read_examples(tmp_path / "a.jsonl", TEXT, {"False": 0, "True": 1})
    assert jsonl.texts == [("tab\there",)] and jsonl.labels == [1]


def test_tsv_with_byte_order_mark_carriage_returns_and_odd_separators(tmp_path):
    (tmp_path / "a.tsv").write_bytes(
        '\ufefftext\tlabel\r\none\u2028line\tyes\r\na "b\tno\r\n'.encode()
    )
    examples = read_examples(tmp_path / "a.tsv", TEXT, NUMBERS)
    assert examples.texts == [("one\u2028line",), ('a "b',)]
    assert examples.labels == [1, 0]


@pytest.mark.parametrize("opener", [gzip.open, lzma.open])
def test_compressed_files_are_found_and_read(opener, tmp_path):
    end = {gzip.open: ".gz", lzma.open: ".xz"}[opener]
    with opener(tmp_path / f"a.tsv{end}", "wt") as stream:
        stream.write("text\tlabel\nhello\tyes\n")
    assert find_file(tmp_path / "a.tsv").name == f"a.tsv{end}"
    assert read_examples(tmp_path / "a.tsv", TEXT, NUMBERS).texts == [("hello",)]


def test_labels_are_sorted_as_numbers_or_words(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\na\t10\nb\t9\nc\t-1\n")
    (tmp_path / "b.tsv").write_text("text\tlabel\na\tyes\nb\tno\n")
    assert read_labels(tmp_path / "a.tsv", TEXT) == ["-1", "9", "10"]
    assert read_labels(tmp_path / "b.tsv", TEXT) == ["no", "yes"]
    (tmp_path / "c.tsv").write_text("text\tlabel\na\t²\nb\t--1\n")  # digits, and no numbers
    assert read_labels(tmp_path / "c.tsv", TEXT) == ["--1", "²"]


# -- Bad input ----------------------------------------------------------------------------------


def refuses(path, columns=TEXT, numbers=NUMBERS):
    with pytest.raises(UserError) as raised:
        read_examples(path, columns, numbers)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_an_unknown_label_is_named_with_its_line_and_those_known(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\nx\tyes\ny\tmaybe\n")
    message = refuses(tmp_path / "a.tsv")
    assert "line 3" in message and "'maybe'" in message and "'no', 'yes'" in message


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "sentence\tlabel\nx\tyes\n"),
        ("a.csv", "sentence,label\nx,yes\n"),
        ("a.jsonl", '{"sentence": "x", "label": "yes"}\n'),
    ],
)
def test_a_missing_column_is_named_with_those_present(name, content, tmp_path):
    (tmp_path / name).write_text(content)
    message = refuses(tmp_path / name)
    assert "no column 'text'" in message and "'sentence', 'label'" in message


def test_a_line_with_fewer_fields_is_named(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\nx\tyes\nonly text\n")
    assert "line 3: 1 field under 2 columns" in refuses(tmp_path / "a.tsv")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.tsv", b"text\tlabel\n", "has no examples"),
        ("a.tsv", b"", "no column 'text'"),
        ("a.tsv", b"text\tlabel\n\xff\xfe\tyes\n", "cannot be read"),
        ("a.tsv.xz", b"not compressed", "cannot be read"),
        ("a.jsonl", b"{broken\n", "line 1: no JSON"),
        ("a.jsonl", b"[1, 2]\n", "a JSON object is needed"),
        (
            "a.jsonl",
            b'{"text": null, "label": "yes"}\n',
            "line 1: 'text' is null, which",
        ),
        ("a.jsonl", b'{"text": "a", "label": ["yes"]}\n', "line 1: 'label' is [\"yes\"], which"),
        ("a.csv", b'text,label\n"open,yes\n', "cannot be read"),
        ("a.parquet", b"", "is no table"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert said in refuses(tmp_path / name)


def test_a_missing_file_is_named(tmp_path):
    said = refuses(tmp_path / "absent.tsv")
    assert "there is no file" in said and "say where it is with data.folder" in said


def test_one_label_is_no_classification(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\nx\tyes\n")
    with pytest.raises(UserError, match="at least two"):
        read_labels(tmp_path / "a.tsv", TEXT)
