"""Preparing: whole or not at all, not done twice, and every bad input named in one line."""

import bz2
import contextlib
import errno
import gzip
import json
import lzma
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from multibranch import disk
from multibranch.cli import main
from multibranch.data.output import MANIFEST, Workshop
from multibranch.data.own_files import requested
from multibranch.data.prepare import prepare
from multibranch.data.recipes import parallel
from multibranch.data.store import PreparedData
from multibranch.data.workers import map_lots
from multibranch.errors import UserError

AB = ["a.de", "a.en"]


def write(folder: Path, name: str, lines: list[str] | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(text)
    return path


def pairs(count: int, start: int = 0) -> tuple[list[str], list[str]]:
    numbers = range(start, start + count)
    return [f"Ein Satz Nr. {n}." for n in numbers], [f"A sentence no. {n}." for n in numbers]


def corpus(folder: Path, train: int = 300) -> list[str]:
    """Six files; the arguments of the command that prepares them."""
    words = ["parallel", "--merges", "60"]
    for split, count, start in (("train", train, 0), ("valid", 20, 1000), ("test", 10, 2000)):
        source, target = pairs(count, start)
        words += [
            f"--{split}",
            str(write(folder, f"{split}.de", source)),
            str(write(folder, f"{split}.en", target)),
        ]
    return words


def call(
    words: list[str], output: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Run the verb: its exit status and what it wrote to both streams."""
    status = main(["prepare", *words, "--output", str(output)])
    out, error = capsys.readouterr()
    return status, out, error


def left(folder: Path) -> list[str]:
    """Everything in a folder that is no file of the corpus, hidden things included."""
    return sorted(path.name for path in folder.iterdir() if path.suffix not in (".de", ".en"))


def test_a_corpus_becomes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = corpus(tmp_path)
    status, out, error = call(words, tmp_path / "out", capsys)
    assert status == 0
    assert "300" in out and "prepared" in out
    assert "tokenising train" in error and "encoding test" in error
    data = PreparedData.open(tmp_path / "out")
    assert data.splits == ["train", "valid", "test"]
    assert [len(data.split(split)) for split in data.splits] == [300, 20, 10]
    assert data.lines("test", "target") == pairs(10, 2000)[1]
    ids = [data.split("test").source(index) for index in range(10)]
    assert data.text.decode([i.tolist() for i in ids], side="source") == pairs(10, 2000)[0]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        ["manifest.json", "text.json", "tokenizer.json", "tokenizer_config.json"]
        + [
            f"{s}.{side}.{kind}"
            for s in data.splits
            for side in ("source", "target")
            for kind in ("bin", "len")
        ]
        + [f"{s}.{side}.txt" for s in ("valid", "test") for side in ("source", "target")]
    )


def test_files_of_one_name_in_several_folders_are_kept_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["parallel", "--merges", "60"]
    for folder, option, count, start in (("a", "--train", 300, 0), ("a/b", "--valid", 20, 1000)):
        for language, lines in zip(("de", "en"), pairs(count, start)):
            write(tmp_path / folder, f"c.{language}", lines)
        words += [option, f"{folder}/c.de", f"{folder}/c.en"]
    for language, lines in zip(("de", "en"), pairs(10, 2000)):
        write(tmp_path, f"c.{language}", lines)
    status, _, _ = call([*words, "--test", "c.de", "c.en"], tmp_path / "out", capsys)
    assert status == 0
    data = PreparedData.open(tmp_path / "out")
    assert [len(data.split(split)) for split in data.splits] == [300, 20, 10]
    assert data.lines("test", "target") == pairs(10, 2000)[1]


def test_overwriting_replaces_prepared_folders_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*corpus(tmp_path), "--overwrite"]
    write(tmp_path / "out", "thesis.tex", ["mine"])
    status, _, error = call(words, tmp_path / "out", capsys)
    assert status == 2
    assert "holds something other than a prepared corpus" in error
    assert (tmp_path / "out" / "thesis.tex").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--merges", "0"], "--merges must be at least 1"),
        (["--vocabulary", "0"], "--vocabulary must be at least 5"),
        (["--hold-out", "1"], "--hold-out must be at least 2"),
        (["--merges", "9" * 20], "--merges must be at most 10,000,000, not 99,999,999"),
        (["--vocabulary", "9" * 20], "--vocabulary must be at most 10,000,000, not 99,999,999"),
        (["--jobs", "0"], "--jobs must be at least 1 and at most 1,024, not 0"),
        (["--jobs", "-2"], "--jobs must be at least 1 and at most 1,024, not -2"),
        (["--jobs", "99999"], "--jobs must be at least 1 and at most 1,024, not 99,999"),
        (["--first-pairs", "0"], "--first-pairs must be at least 1, not 0"),
        (["--max-length", "-3"], "--max-length must be at least 1, or 0 to keep all pairs, not -3"),
        (["--max-ratio", "-2"], "--max-ratio must be at least 1, or 0 to keep all pairs, not -2"),
        (["--max-ratio", "0.5"], "--max-ratio must be at least 1, or 0 to keep all pairs, not 0.5"),
        (["--max-ratio", "nan"], "--max-ratio must be at least 1, or 0 to keep all pairs, not nan"),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    status, _, error = call([*corpus(tmp_path), *words], tmp_path / "out", capsys)
    assert status == 2
    assert said in error
    assert len(error.splitlines()) == 1  # no stage was begun
    assert not (tmp_path / "out").exists()


def test_the_first_pairs_make_a_smaller_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*corpus(tmp_path), "--first-pairs", "120", "--json"]
    status, out, _ = call(words, tmp_path / "out", capsys)
    assert status == 0
    assert json.loads(out)["settings"]["first_pairs"] == 120
    data = PreparedData.open(tmp_path / "out")
    assert [len(data.split(split)) for split in data.splits] == [120, 20, 10]
    kept = [data.split("train").target(index).tolist() for index in range(120)]
    assert data.text.decode(kept, side="target") == pairs(300, 0)[1][:120]


def test_what_is_held_out_does_not_depend_on_the_first_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["parallel", "--merges", "60", "--hold-out", "10"]
    for option, language, lines in zip(("--source", "--target"), ("de", "en"), pairs(300, 0)):
        words += [option, str(write(tmp_path, f"c.{language}", lines))]
    assert call(words, tmp_path / "all", capsys)[0] == 0
    assert call([*words, "--first-pairs", "50"], tmp_path / "few", capsys)[0] == 0
    whole, few = PreparedData.open(tmp_path / "all"), PreparedData.open(tmp_path / "few")
    assert [len(whole.split(split)) for split in whole.splits] == [240, 30, 30]
    assert [len(few.split(split)) for split in few.splits] == [50, 30, 30]
    for split in ("valid", "test"):
        assert few.lines(split, "source") == whole.lines(split, "source")


def test_the_manifest_says_what_the_folder_was_made_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*corpus(tmp_path), "--json"]
    status, out, _ = call(words, tmp_path / "out", capsys)
    printed = json.loads(out)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert status == 0
    assert printed == {"output": str(tmp_path / "out"), "made": True, **manifest}
    assert manifest["settings"]["vocabulary"]["merges"] == 60
    assert [entry["name"] for entry in manifest["inputs"]] == sorted(
        f"{split}.{language}" for split in ("train", "valid", "test") for language in ("de", "en")
    )
    checksum = subprocess.run(
        ["sha256sum", str(tmp_path / "train.de")], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    size = (tmp_path / "train.de").stat().st_size
    assert {"name": "train.de", "bytes": size, "sha256": checksum} in manifest["inputs"]
    assert manifest["splits"]["train"]["read"] == manifest["splits"]["train"]["pairs"] == 300
    store = PreparedData.open(tmp_path / "out").split("train")
    assert manifest["splits"]["train"]["source_tokens"] == int(store.source_lengths.sum())


def test_a_finished_folder_is_recognised_and_not_redone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = corpus(tmp_path)
    call(words, tmp_path / "out", capsys)
    before = (tmp_path / "out/manifest.json").stat().st_mtime_ns
    status, out, error = call(words, tmp_path / "out", capsys)
    assert status == 0
    assert "was prepared already" in out
    assert "tokenising" not in error
    assert (tmp_path / "out/manifest.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--merges", "70"], "settings.vocabulary.merges is 60 there, 70 asked for"),
        (["--lowercase"], "settings.text.lowercase is false there, true asked for"),
        (["--first-pairs", "9"], "settings.first_pairs is null there, 9 asked for"),
        (["--max-length", "9"], "settings.cleaning.max_length is 250 there, 9 asked for"),
    ],
)
def test_another_request_for_the_same_folder_is_told_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: list[str], message: str
) -> None:
    words = corpus(tmp_path)
    call(words, tmp_path / "out", capsys)
    status, _, error = call([*words, *change], tmp_path / "out", capsys)
    assert status == 2
    assert message in error and "--overwrite" in error
    assert call([*words, *change, "--overwrite"], tmp_path / "out", capsys)[0] == 0
    assert call([*words, *change], tmp_path / "out", capsys)[0] == 0
    assert left(tmp_path) == ["out"]


def test_changed_files_and_damaged_folders_are_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = corpus(tmp_path)
    call(words, tmp_path / "out", capsys)
    write(tmp_path, "train.de", pairs(300, 5)[0])
    assert "inputs: train.de differ" in call(words, tmp_path / "out", capsys)[2]
    corpus(tmp_path)
    (tmp_path / "out/train.source.bin").write_bytes(b"")
    assert "train.source.bin is missing or changed" in call(words, tmp_path / "out", capsys)[2]


def test_a_folder_that_is_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = corpus(tmp_path)
    write(tmp_path / "out", "precious.txt", ["mine"])
    status, _, error = call(words, tmp_path / "out", capsys)
    assert (status, (tmp_path / "out/precious.txt").exists()) == (2, True)
    assert "exists and is not a prepared folder" in error


def test_the_same_request_gives_the_same_bytes_on_one_process_and_on_two(tmp_path: Path) -> None:
    words = corpus(tmp_path, train=9000)
    names = dict(zip(words[3::3], zip(words[4::3], words[5::3])))
    recipe = parallel(
        languages=("de", "en"), train=names["--train"], valid=names["--valid"], test=names["--test"]
    ).adjusted(merges=60)
    for jobs in (1, 2):
        prepare(recipe, tmp_path / str(jobs), places=[tmp_path], jobs=jobs)
    files = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert len(files) == 20
    for name in files:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name


def test_files_that_differ_in_their_compression_alone_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = pairs(100)
    words = ["parallel", "--merges", "50"]
    for option, ending, lot in (
        ("--train", ".gz", slice(60)),
        ("--valid", "", slice(60, 80)),
        ("--test", ".xz", slice(80, 100)),
    ):
        files = []
        for name, lines in (("a.de", source[lot]), ("a.en", target[lot])):
            path, opened = tmp_path / f"{name}{ending}", {".gz": gzip.open, ".xz": lzma.open}
            with opened.get(ending, open)(path, "wt", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))
            files.append(str(path))
        words += [option, *files]
    assert call(words, tmp_path / "out", capsys)[0] == 0
    data = PreparedData.open(tmp_path / "out")
    assert len(data.split("train")) == 60
    assert data.lines("valid", "source") == source[60:80]
    assert data.lines("test", "target") == target[80:100]


def test_pairs_are_held_out_where_no_file_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = pairs(100)
    files = [str(write(tmp_path, "a.de", source)), str(write(tmp_path, "a.en", target))]
    words = ["parallel", "--source", files[0], "--target", files[1], "--merges", "50"]
    assert call([*words, "--hold-out", "10"], tmp_path / "out", capsys)[0] == 0
    data = PreparedData.open(tmp_path / "out")
    assert data.lines("valid", "source") == source[9::10]
    assert data.lines("test", "source") == source[4::10]
    assert len(data.split("train")) == 80
    status, _, error = call([*words, "--hold-out", "2"], tmp_path / "none", capsys)
    assert status == 2
    assert "--hold-out must be at least 3, not 2" in error and "of every 2 pairs 2" in error
    assert call([*words, "--hold-out", "3"], tmp_path / "third", capsys)[0] == 0
    assert len(PreparedData.open(tmp_path / "third").split("train")) == 33
    given = ["--hold-out", "2", "--test", *files]
    assert call([*words, *given], tmp_path / "half", capsys)[0] == 0
    assert len(PreparedData.open(tmp_path / "half").split("train")) == 50
    status, _, error = call([*words, "--hold-out", "200"], tmp_path / "none", capsys)
    assert status == 2
    assert "nothing is left for the valid split" in error and "--hold-out" in error


def test_languages_are_read_from_the_names_or_asked_for() -> None:
    recipe, places = requested(recipe="parallel", train=["x/a.de.xz", "x/a.en.gz"])
    assert recipe.text.source == "de" and recipe.text.target == "en"  # type: ignore[attr-defined]
    assert places == [Path("x/a.de.xz"), Path("x/a.en.gz")]
    for given in ({"train": ["A.DE", "A.EN"]}, {"train": ["a", "b"], "languages": ["DE", "EN"]}):
        recipe, _ = requested(recipe="parallel", **given)  # type: ignore[arg-type]
        assert recipe.text.source == "de" and recipe.text.target == "en"  # type: ignore[attr-defined]
    for name in ("a.txt", "A.TXT"):
        with pytest.raises(UserError, match=rf"the language of {name} cannot be read .* --lang"):
            requested(recipe="parallel", train=[name, "b.txt"])


def test_folders_and_pipes_are_no_files_of_a_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = write(tmp_path, "a.en", ["a"])
    (tmp_path / "folder.de").mkdir()
    os.mkfifo(tmp_path / "pipe.de")  # as `--source <(zcat corpus.de.Z)` is one
    for name in ("folder.de", "pipe.de"):
        words = ["parallel", "--source", str(tmp_path / name), "--target", str(target)]
        status, _, error = call(words, tmp_path / "out", capsys)
        assert status == 2
        assert error.startswith(f"multibranch prepare: {tmp_path / name} is no file: give files")


def test_the_other_direction_exchanges_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call([*corpus(tmp_path), "--reverse"], tmp_path / "out", capsys)[0] == 0
    data = PreparedData.open(tmp_path / "out")
    assert data.lines("test", "source") == pairs(10, 2000)[1]
    assert (data.text.settings.source, data.text.settings.target) == ("en", "de")


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: zstandard.compress(data[:50]) + zstandard.compress(data[50:]),
}


@pytest.mark.parametrize("kind", COMPRESS)
def test_compressed_files_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    words = corpus(tmp_path)
    assert call(words, tmp_path / "plain", capsys)[0] == 0
    for path in tmp_path.glob("*.??"):
        (tmp_path / f"{path.name}.{kind}").write_bytes(COMPRESS[kind](path.read_bytes()))
        path.unlink()
    packed = [f"{word}.{kind}" if word.endswith((".de", ".en")) else word for word in words]
    assert call(packed, tmp_path / "out", capsys)[0] == 0
    for name in ("train.source.bin", "valid.target.txt", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


@pytest.mark.parametrize("kind", [*COMPRESS, "tgz"])
def test_files_cut_short_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    words = corpus(tmp_path)
    whole = (tmp_path / "train.de").read_bytes()
    if kind == "tgz":
        with tarfile.open(tmp_path / "all.tgz", "w:gz") as archive:
            for path in tmp_path.glob("*.??"):
                archive.add(path, path.name)
        content = (tmp_path / "all.tgz").read_bytes()
        cut, places = tmp_path / "all.tgz", ["--from", str(tmp_path / "all.tgz")]
        words = [Path(word).name if word.endswith((".de", ".en")) else word for word in words]
        assert call([*words, *places], tmp_path / "whole", capsys)[0] == 0
        words = [*words, *places]
    else:
        content = COMPRESS[kind](whole)
        cut = tmp_path / f"train.de.{kind}"
        words[words.index(str(tmp_path / "train.de"))] = str(cut)
    cut.write_bytes(content[: len(content) * 2 // 3])
    status, _, error = call(words, tmp_path / "out", capsys)
    assert status == 2
    assert f"{cut}" in error and "is cut short or damaged" in error and "again" in error
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


Damage = Callable[[Path], Any]
BAD: dict[str, tuple[Damage, str]] = {
    "sides of different length": (
        lambda f: write(f, "train.en", pairs(299)[1]),
        "the sides differ in length: .*train.en ends after 299 sentences, .*train.de has 300, so "
        "line 300 has no counterpart; give files whose lines correspond",
    ),
    "invalid UTF-8": (
        lambda f: write(f, "valid.de", b"gut\nschlecht \xe4\xf6\n" + b"x\n" * 18),
        "line 2 of .*valid.de is not valid UTF-8; convert the file to UTF-8",
    ),
    "an empty file": (
        lambda f: [write(f, f"test.{language}", b"") for language in ("de", "en")],
        "test.de holds no sentence; give a file that does",
    ),
    "one empty side": (
        lambda f: write(f, "test.en", b""),
        "the sides differ in length: .*test.en ends after 0 sentences, .*test.de has 10",
    ),
    "a missing file": (lambda f: (f / "test.en").unlink(), "test.en does not exist"),
    "nothing but blanks": (
        lambda f: [write(f, f"train.{language}", [" "] * 5) for language in ("de", "en")],
        "nothing is left for the train split of parallel: of 5 pairs 5 were empty",
    ),
    "nothing but one blank": (
        lambda f: [write(f, f"train.{language}", [" "]) for language in ("de", "en")],
        "of 1 pair 1 was empty",
    ),
    "one sentence on a side": (
        lambda f: write(f, "test.en", ["one"]),
        "test.en ends after 1 sentence, .*test.de has 10, so line 2 has no counterpart",
    ),
    "a wrong checksum": (
        lambda f: write(f, "SHA256SUMS", ["0" * 64 + "  train.de"]),
        "train.de has the checksum [0-9a-f]{64}, but .*SHA256SUMS says 0{64}: .* get it again",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_clear_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    damage, message = BAD[case]
    words = corpus(tmp_path)
    damage(tmp_path)
    status, out, error = call(words, tmp_path / "out", capsys)
    assert status == 2
    assert out == ""
    told = [line for line in error.splitlines() if line.startswith("multibranch prepare: ")]
    assert len(told) == 1 and error.splitlines()[-1] == told[0]
    assert re.search(message, told[0])
    assert [name for name in left(tmp_path) if name != "SHA256SUMS"] == []


def test_bad_lines_are_skipped_and_counted_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = corpus(tmp_path)
    source, target = pairs(300)
    raw = "\n".join(source).encode().split(b"\n")
    raw[7] = b"\xff\xfe"
    write(tmp_path, "train.de", b"\n".join(raw) + b"\n")
    write(tmp_path, "train.en", [*target, "one too many", "and another"])
    assert call(words, tmp_path / "out", capsys)[0] == 2
    status, out, _ = call([*words, "--skip-bad-lines"], tmp_path / "out", capsys)
    assert status == 0
    assert "3 unreadable" in out
    train = PreparedData.open(tmp_path / "out").manifest["splits"]["train"]
    assert (train["read"], train["pairs"], train["dropped"]) == (302, 299, {"unreadable": 3})
    store = PreparedData.open(tmp_path / "out")
    assert store.text.decode([store.split("train").target(7).tolist()], side="target") == [
        target[8]
    ]


def test_a_missing_split_says_what_was_looked_for_and_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in", "train.de", ["x"])
    write(tmp_path / "in", "train.en", ["x"])
    words = ["multi30k-de-en", "--from", str(tmp_path / "in")]
    status, _, error = call(words, tmp_path / "out", capsys)
    assert status == 2
    assert "the valid split of multi30k-de-en needs valid.de or val.de" in error
    assert "(there: train.de, train.en); add it, or name its place with --from" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["multi30k"], "unknown recipe 'multi30k': did you mean 'multi30k-de-en'?"),
        (["iwslt14-deen"], "unknown recipe 'iwslt14-deen': did you mean 'iwslt14-de-en'?"),
        (["parallel"], "takes your files: --source F --target F"),
        (["parallel", "--source", "a.de"], "--source and --target come together"),
        (["glue", "--merges", "5", "--from", "."], "glue keeps its text as it is"),
        (["multi30k-de-en", "--tokenised"], "are for your own files"),
        (["multi30k-de-en", "--hold-out", "9"], "--hold-out are for your own files"),
        (["parallel", "--train", *AB, "--valid", *AB, "--hold-out", "9"], "leave one of them out"),
        (["multi30k-de-en", "--tasks", "rte", "--from", "."], "multi30k-de-en has none"),
        (["multi30k-de-en", "--merges", "5", "--vocabulary", "9"], "say the same thing twice"),
        (["code-java", "--merges", "5"], "code-java has word vocabularies"),
        (["code-java", "--vocabulary", "5"], "takes two sizes, SOURCE TARGET"),
        (["code-java", "--lowercase"], "code-java keeps its words as they are"),
        (["multi30k-de-en", "--vocabulary", "5", "6"], "takes one size"),
    ],
)
def test_wrong_requests_get_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    status, _, error = call(words, tmp_path / "out", capsys)
    assert status == 2
    assert message in error and len(error.splitlines()) == 1


def test_the_root_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = call(corpus(tmp_path), Path("/"), capsys)
    assert status == 2
    assert "/ exists and is not a prepared folder; choose another --output" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say what to prepare: `multibranch prepare RECIPE --output DIR`"),
        (["nope"], "unknown recipe 'nope': `multibranch prepare --list` shows all."),
        (["multi30k"], "unknown recipe 'multi30k': did you mean 'multi30k-de-en'?"),
        (["multi30k-de-en"], "say where to write it: add --output DIR."),
    ],
)
def test_what_matters_most_of_what_is_missing_is_said_first(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["prepare", *words]) == 2
    assert capsys.readouterr().err.startswith(f"multibranch prepare: {message}")


def test_the_list_of_recipes_shows_sizes_licence_and_home(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["prepare", "--list"]) == 0
    shown = capsys.readouterr().out
    for word in ("iwslt14-de-en", "29,000 / 1,014 / 1,000", "CC BY-NC-SA", "gluebenchmark.com"):
        assert word in shown
    assert "109,108 / 2,000 / 2,000" in shown, "code-python: the public corpus's, not the paper's"
    assert main(["prepare", "--list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 11


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kill", [os.kill, os.killpg])
def test_an_interrupt_leaves_nothing_that_looks_finished(
    kill: Callable[[int, int], None], number: int, tmp_path: Path
) -> None:
    words = corpus(tmp_path, train=60_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "multibranch", "prepare", *words, "--output", str(tmp_path / "out")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.partial-*/train.source.words")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    kill(process.pid, number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert error.splitlines()[-1] == "multibranch prepare: interrupted"
    assert "Traceback" not in error
    assert left(tmp_path) == []


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_is_not_lost_while_workers_start(name: str, tmp_path: Path) -> None:
    """An interrupt that falls into a hook that Python runs at a fork would be."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        "from multibranch.data.workers import map_lots\n"
        f"signal.signal(signal.{name}, signal.default_int_handler)\n"
        f"os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.{name}))\n"
        "try:\n"
        "    print(list(map_lots(str, range(50), jobs=2)))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n"
    assert "Exception ignored" not in done.stderr


def test_what_a_killed_run_left_is_no_folder_and_goes_with_the_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = corpus(tmp_path)
    write(tmp_path / ".out.partial-999999999", "train.source.words", ["x"])
    with pytest.raises(UserError, match="not a prepared folder"):
        PreparedData.open(tmp_path / ".out.partial-999999999")
    assert call(words, tmp_path / "out", capsys)[0] == 0
    assert left(tmp_path) == ["out"]


@pytest.mark.parametrize("swaps", [True, False])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_folder_outlives_whichever_step_of_replacing_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool, step: int
) -> None:
    output, taken = tmp_path / "out", 0
    with Workshop(output) as folder:
        (folder / MANIFEST).write_text("old")
    if not swaps:
        monkeypatch.setattr(disk, "_swap", lambda one, other: False)

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **options: Any) -> Any:
            nonlocal taken
            taken += 1
            if taken == step:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **options)

        return act

    with contextlib.suppress(UserError), Workshop(output, overwrite=True) as folder:
        (folder / MANIFEST).write_text("new")
        for name in ("mkdir", "rename", "replace"):
            monkeypatch.setattr(Path, name, failing(getattr(Path, name)))
    assert (output / MANIFEST).read_text() == ("old" if step <= taken else "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("where", ["filling", "publishing"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space")])
def test_a_failure_leaves_no_folders_that_were_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Any
) -> None:
    def fail(*_: Any) -> None:
        raise error

    def fill() -> None:
        with Workshop(tmp_path / "new" / "deep" / "out") as folder:
            (folder / MANIFEST).write_text("{}")
            if where == "filling":
                fail()

    if where == "publishing":
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises((KeyboardInterrupt, UserError)):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_the_same_folder_that_another_run_has_made_meanwhile_is_taken(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with Workshop(output) as folder:
        (folder / MANIFEST).write_text("{}")
        shutil.copytree(folder, output)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    shutil.rmtree(output)
    with pytest.raises(UserError, match="appeared while it was being prepared"), Workshop(output):
        write(output, MANIFEST, ["{}"])
    assert (output / MANIFEST).is_file()


def test_what_a_killed_run_had_taken_away_comes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = corpus(tmp_path)
    assert call(words, tmp_path / "out", capsys)[0] == 0
    for more in ([], ["--overwrite"]):
        (tmp_path / "out").rename(tmp_path / ".old.out")
        assert call([*words, *more], tmp_path / "out", capsys)[0] == 0
        assert left(tmp_path) == ["out"]


def test_what_a_link_leads_to_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = corpus(tmp_path)
    (tmp_path / "out").symlink_to("elsewhere")
    for more in ([], ["--overwrite"]):
        assert call([*words, *more], tmp_path / "out", capsys)[0] == 0
        assert left(tmp_path) == ["elsewhere", "out"]
        assert (tmp_path / "out").is_symlink()


def test_a_file_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "out", ["mine"])
    status, _, error = call([*corpus(tmp_path), "--overwrite"], tmp_path / "out", capsys)
    assert status == 2 and "something other than a prepared corpus" in error
    assert (tmp_path / "out").read_text() == "mine\n"


def test_a_full_disk_is_said_in_one_line_and_nothing_is_left(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk's end: the same error, wherever it comes."""
    words = corpus(tmp_path, train=9000)
    done = subprocess.run(
        [sys.executable, "-m", "multibranch", "prepare", *words, "--output", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert done.returncode == 2
    assert "the disk is full (File too large)" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert left(tmp_path) == []


def test_few_lots_are_in_memory_at_once() -> None:
    read, given = 0, []

    def lots() -> Any:
        nonlocal read
        for number in range(100):
            read += 1
            yield number

    for made in map_lots(abs, lots(), jobs=2):
        given.append(made)
        assert read - len(given) <= 6
    assert given == list(range(100))


def test_an_error_in_a_worker_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        list(map_lots(_inverse, range(-9, 9), jobs=2))


def _die_at_3(lot: int) -> int:
    if lot == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return lot


def test_a_process_that_the_system_killed_is_said_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"one of 2 processes was killed.*fewer with --jobs"):
        list(map_lots(_die_at_3, range(9), jobs=2))


def _inverse(number: int) -> float:
    return 1 / number


def test_percent_signs_are_written_as_the_corpus_writes_them(tmp_path: Path) -> None:
    write(tmp_path, "a.de", ["Nur 5% davon."] * 60)
    write(tmp_path, "a.en", ["Only 5 % of it."] * 60)
    recipe = parallel(languages=("de", "en"), train=("a.de", "a.en"), hold_out=20)
    prepare(recipe.adjusted(merges=20), tmp_path / "out", places=[tmp_path])
    text = PreparedData.open(tmp_path / "out").text
    for side, line in (("source", "Nur 5% davon."), ("target", "Only 5 % of it.")):
        assert text.decode(text.encode([line], side=side), side=side) == [line]


def test_the_first_pairs_alone_say_how_percent_signs_are_written(tmp_path: Path) -> None:
    write(tmp_path, "a.de", ["Nur 5% davon."] * 30 + ["Nur 5 % davon."] * 90)
    write(tmp_path, "a.en", ["Only 5 % of it."] * 30 + ["Only 5% of it."] * 90)
    recipe = parallel(languages=("de", "en"), train=("a.de", "a.en"), hold_out=20)
    recipe = recipe.adjusted(merges=20, first_pairs=20)
    prepare(recipe, tmp_path / "out", places=[tmp_path])
    settings = PreparedData.open(tmp_path / "out").text.settings
    assert (settings.source_percent, settings.target_percent) == ("joined", "apart")


def test_ids_of_tokenised_text_are_the_texts_own_words(tmp_path: Path) -> None:
    lines = ["das ist &apos; s haus .", "ein well @-@ known „ test “ ."] * 40
    write(tmp_path, "a.de", lines)
    write(tmp_path, "a.en", lines)
    recipe = parallel(languages=("de", "en"), train=("a.de", "a.en"), tokenised=True, hold_out=20)
    prepare(recipe.adjusted(merges=60), tmp_path / "out", places=[tmp_path])
    data = PreparedData.open(tmp_path / "out")
    store = data.split("valid")
    ids = [np.asarray(store.source(index)).tolist() for index in range(len(store))]
    assert data.text.decode(ids, side="source", tokenised=True) == lines[19::20]
    assert data.text.decode(ids[:1], side="source") == ["ein well-known „test“."]
