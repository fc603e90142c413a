"""Every recipe end to end, on small archives in the layout of the originals."""

import dataclasses
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from multibranch.data.files import Library
from multibranch.data.formats import format_of
from multibranch.data.prepare import find_files, prepare
from multibranch.data.readers import read_pairs
from multibranch.data.recipe import Recipe
from multibranch.data.recipes import RECIPES, find_recipe
from multibranch.data.store import PreparedData
from multibranch.data.tokenising import Tokenise
from multibranch.errors import UserError

GERMAN = ["Der Hund", "Die Katze", "Ein Kind", "Das Haus", "Ein Baum", "Der Mann", "Eine Frau"]
ENGLISH = ["The dog", "The cat", "A child", "The house", "A tree", "The man", "A woman"]


def sentences(language: str, count: int, word: str = "") -> list[str]:
    """Numbered sentences; those of two languages correspond."""
    subjects = ENGLISH if language == "en" else GERMAN
    return [f"{subjects[n % 7]} {word or 'x'} {n}." for n in range(count)]


def lines(texts: Sequence[str]) -> bytes:
    return "".join(text + "\n" for text in texts).encode()


def segments(texts: Sequence[str], kind: str = "refset") -> bytes:
    body = [f'<seg id="{n}"> {text} </seg>' for n, text in enumerate(texts, 1)]
    head = ['<?xml version="1.0"?>', "<mteval>", f'<{kind} setid="x">', '<doc docid="1">']
    return lines([*head, "<title>Heading</title>", *body, "</doc>", f"</{kind}>", "</mteval>"])


def tags(texts: Sequence[str]) -> bytes:
    head = ["<url>http://x</url>", "<keywords>a, b</keywords>", "<talkid>1</talkid>"]
    return lines([*head, "<title>A title</title>", "<description>It tells</description>", *texts])


def tar(path: Path, files: Mapping[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def packed(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def small(name: str) -> Recipe:
    recipe = find_recipe(name)
    assert isinstance(recipe, Recipe)
    return recipe if recipe.text.kind == "words" else recipe.adjusted(merges=50)


def make(name: str, tmp_path: Path, places: Sequence[Path]) -> PreparedData:
    manifest, made = prepare(small(name), tmp_path / "prepared", places=places, jobs=1)
    assert made
    assert manifest["recipe"] == name
    return PreparedData.open(tmp_path / "prepared")


def decoded(data: PreparedData, split: str, side: str) -> list[str]:
    store = data.split(split)
    read = store.source if side == "source" else store.target
    ids = [read(index).tolist() for index in range(len(store))]
    return data.text.decode(ids, side=side, tokenised=True)


@pytest.mark.parametrize("language", ["de", "en"])
def test_the_official_iwslt14_xml_becomes_the_published_test_set(
    shared_data: Path, language: str
) -> None:
    recipe = find_recipe("iwslt14-de-en")
    assert isinstance(recipe, Recipe)
    library = Library([shared_data / "iwslt14-de-en-raw-eval"])
    made: list[str] = []
    function = Tokenise(recipe.text, cleaning=None)
    for part in recipe.test:
        found = [library.find(*part.names(recipe.text, side)) for side in ("source", "target")]
        formats = (format_of(part.format, "de"), format_of(part.format, "en"))
        assert found[0] is not None and found[1] is not None
        for lot in read_pairs((found[0], found[1]), formats):
            made += function(lot).words[0 if language == "de" else 1]
    packed = (shared_data / f"ted-de-en/test.{language}.xz").read_bytes()
    published = lzma.decompress(packed).decode().removesuffix("\n").split("\n")
    assert len(made) == len(published) == 6750
    assert sum(ours != theirs for ours, theirs in zip(made, published)) == 0


def iwslt14(tmp_path: Path) -> Path:
    names = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
    files = {}
    for language in ("de", "en"):
        train = sentences(language, 46)
        train[3] = "" if language == "de" else "No source."
        train[5] = "zu lang " * 3 if language == "de" else "short"
        train[7] = "wort " * 176 if language == "de" else "word " * 176
        files[f"de-en/train.tags.de-en.{language}"] = tags(train)
        for name in names:
            files[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = segments(
                [f"{name} isn’t {language}."]
            )
    return tar(tmp_path / "de-en.tgz", files)


def test_iwslt14_de_en(tmp_path: Path) -> None:
    data = make("iwslt14-de-en", tmp_path, [iwslt14(tmp_path)])
    facts = data.manifest["splits"]
    # 46 sentences, a title and a description are read, three dropped, and every 23rd held out.
    assert facts["train"]["read"] == 48
    assert facts["train"]["dropped"] == {"empty": 1, "too different in length": 1, "too long": 1}
    assert (facts["train"]["pairs"], facts["valid"]["pairs"], facts["test"]["pairs"]) == (44, 1, 5)
    assert decoded(data, "train", "source")[:3] == ["a title", "it tells", "der hund x 0 ."]
    # The 23rd clean pair is sentence 23: two headings before it, three dropped.
    assert decoded(data, "valid", "target") == ["a child x 23 ."]
    assert data.lines("valid", "target") == ["A child x 23."]
    assert decoded(data, "test", "target") == [
        f"{name} isn &apos;t en ."
        for name in ("ted.dev2010", "tedx.dev2012", "ted.tst2010", "ted.tst2011", "ted.tst2012")
    ]


def test_iwslt14_en_de_is_the_same_corpus_turned_round(tmp_path: Path) -> None:
    data = make("iwslt14-en-de", tmp_path, [iwslt14(tmp_path)])
    assert decoded(data, "valid", "source") == ["a child x 23 ."]
    assert decoded(data, "valid", "target") == ["ein kind x 23 ."]
    assert data.text.settings.source == "en"


@pytest.mark.parametrize(
    ("name", "pair", "valid", "test"),
    [
        ("iwslt14-es-en", "es-en", "IWSLT13.TED.tst2013", "IWSLT14.TED.tst2014"),
        ("iwslt17-fr-en", "fr-en", "IWSLT16.TED.tst2016", "IWSLT17.TED.tst2017"),
    ],
)
def test_other_iwslt_recipes(tmp_path: Path, name: str, pair: str, valid: str, test: str) -> None:
    files = {}
    source = pair[:2]
    for language in (source, "en"):
        files[f"{pair}/train.tags.{pair}.{language}"] = tags(sentences(language, 30))
        files[f"{pair}/{valid}.{pair}.{language}.xml"] = segments(["Valid one.", "Valid two."])
    outer = {f"texts/{pair}.tgz": tar(tmp_path / "inner.tgz", files).read_bytes()}
    tests = {
        f"{pair}/{test}.{pair}.{language}.xml": segments(["Test."]) for language in (source, "en")
    }
    places = [tar(tmp_path / "2017-01.tgz", outer), tar(tmp_path / "test.tar", tests, "w")]
    data = make(name, tmp_path, places)
    counts = {split: facts["pairs"] for split, facts in data.manifest["splits"].items()}
    assert counts == {"train": 32, "valid": 2, "test": 1}
    # Case is kept.
    assert decoded(data, "train", "target")[2] == "The dog x 0 ."


def test_wmt14_en_de(tmp_path: Path) -> None:
    def corpus(stem: str, word: str, count: int) -> dict[str, bytes]:
        return {
            f"{stem}.{language}": lines(sentences(language, count, word))
            for language in ("en", "de")
        }

    evaluation = {
        f"test-full/newstest2014-deen-{kind}.{language}.sgm": segments(["A well-known “test”."])
        for kind, language in (("src", "en"), ("ref", "de"), ("src", "de"), ("ref", "en"))
    }
    europarl = corpus("training/europarl-v7.de-en", "europarl", 20)
    europarl["training/europarl-v7.fr-en.en"] = b"another pair\n"
    places = [
        tar(tmp_path / "training-parallel-europarl-v7.tgz", europarl),
        tar(
            tmp_path / "training-parallel-commoncrawl.tgz", corpus("commoncrawl.de-en", "crawl", 10)
        ),
        tar(tmp_path / "nc.tgz", corpus("training/news-commentary-v9.de-en", "well-known", 5)),
        tar(tmp_path / "dev.tgz", corpus("dev/newstest2013", "valid", 4)),
        tar(tmp_path / "test-full.tgz", evaluation),
    ]
    data = make("wmt14-en-de", tmp_path, places)
    counts = {split: facts["pairs"] for split, facts in data.manifest["splits"].items()}
    assert counts == {"train": 35, "valid": 4, "test": 1}
    train = decoded(data, "train", "source")
    assert train[0] == "The dog europarl 0 ."
    assert train[20] == "The dog crawl 0 ."
    assert train[30] == "The dog well @-@ known 0 ."
    # Punctuation is made uniform before it is tokenised, and the text keeps what people wrote.
    assert decoded(data, "test", "source") == ["A well @-@ known &quot; test . &quot;"]
    assert data.lines("test", "source") == ["A well-known “test”."]


def test_wmt14_is_cleaned_by_subwords(tmp_path: Path) -> None:
    long = "x y z " * 100
    files = {
        "europarl-v7.de-en.en": lines([*sentences("en", 9), long, "one two three four"]),
        "europarl-v7.de-en.de": lines([*sentences("de", 9), long, "x"]),
    }
    for language in ("en", "de"):
        for stem in ("commoncrawl.de-en", "news-commentary-v12.de-en", "newstest2013"):
            files[f"{stem}.{language}"] = lines(sentences(language, 3))
        files[f"newstest2014-deen-src.{language}.sgm"] = segments(["Test."])
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    data = make("wmt14-de-en", tmp_path, [tmp_path])
    train = data.manifest["splits"]["train"]
    assert train["dropped"] == {"too different in length": 1, "too long": 1}
    assert train["pairs"] == len(data.split("train")) == 15
    # Of the first pairs as well, whose vocabulary it takes to know: then there are fewer of them.
    recipe = dataclasses.replace(small("wmt14-de-en"), first_pairs=12)
    manifest, _ = prepare(recipe, tmp_path / "first", places=[tmp_path], jobs=1)
    first = manifest["splits"]["train"]
    assert (first["pairs"], first["dropped"]) == (10, train["dropped"])


def test_wmt19_en_de(tmp_path: Path) -> None:
    def table(word: str, count: int) -> bytes:
        rows = zip(sentences("de", count, word), sentences("en", count, word))
        return lines([*(f"{a}\t{b}" for a, b in rows), "\t", "only one side"])

    (tmp_path / "europarl-v9.de-en.tsv.gz").write_bytes(gzip.compress(table("parliament", 9)))
    (tmp_path / "news-commentary-v14.de-en.tsv.gz").write_bytes(gzip.compress(table("news", 9)))
    both = ("de", "en")
    crawl = {f"commoncrawl.de-en.{language}": lines(sentences(language, 5)) for language in both}
    rapid = {f"rapid2019.de-en.{language}": lines(sentences(language, 4)) for language in both}
    valid = {f"dev/newstest2013.{language}": lines(sentences(language, 3)) for language in both}
    test = {
        "sgm/newstest2019-ende-src.en.sgm": segments(["One.", "Two."], "srcset"),
        "sgm/newstest2019-ende-ref.de.sgm": segments(["Eins.", "Zwei."]),
        "sgm/newstest2019-deen-src.de.sgm": segments(["Drei."], "srcset"),
        "sgm/newstest2019-deen-ref.en.sgm": segments(["Three."]),
    }
    tar(tmp_path / "commoncrawl.tgz", crawl)
    packed(tmp_path / "rapid2019.de-en.zip", rapid)
    tar(tmp_path / "dev.tgz", valid)
    tar(tmp_path / "test.tgz", test)
    data = make("wmt19-en-de", tmp_path, [tmp_path])
    counts = {split: facts["pairs"] for split, facts in data.manifest["splits"].items()}
    assert counts == {"train": 27, "valid": 3, "test": 2}
    assert data.manifest["splits"]["train"]["dropped"] == {"empty": 4}
    assert decoded(data, "train", "source")[0] == "The dog parliament 0 ."
    assert decoded(data, "train", "target")[0] == "Der Hund parliament 0 ."
    turned = find_files(small("wmt19-de-en"), Library([tmp_path]))
    assert turned["test"][0][1].members[-1] == "sgm/newstest2019-deen-src.de.sgm"


def test_wmt19_de_fr(tmp_path: Path) -> None:
    for language in ("de", "fr"):
        for name in ("europarl-v7", "commoncrawl", "de-fr.bicleaner07"):
            content = gzip.compress(lines(sentences(language, 6, name)))
            (tmp_path / f"{name}.{language}.gz").write_bytes(content)
    (tmp_path / "news-commentary-v14.de-fr.tsv.gz").write_bytes(gzip.compress(b"Deutsch\tAlors\n"))
    names = ["news-test2008", *(f"newstest{year}" for year in range(2009, 2014))]
    files = {f"dev/{name}.{language}": b"Satz.\n" for name in names for language in ("de", "fr")}
    tar(tmp_path / "dev.tgz", files)
    test = {
        "newstest2019-defr-src.de.sgm": segments(["Ja."], "srcset"),
        "newstest2019-defr-ref.fr.sgm": segments(["Oui."]),
    }
    tar(tmp_path / "test.tgz", test)
    data = make("wmt19-de-fr", tmp_path, [tmp_path])
    counts = {split: facts["pairs"] for split, facts in data.manifest["splits"].items()}
    assert counts == {"train": 19, "valid": 6, "test": 1}
    assert decoded(data, "train", "target")[-1] == "Alors"


def test_multi30k_de_en(tmp_path: Path) -> None:
    for archive, stem, count in (
        ("training", "train", 30),
        ("validation", "val", 4),
        ("test", "test2016", 3),
    ):
        files = {
            f"{stem}.{language}": lines(sentences(language, count)) for language in ("de", "en")
        }
        files[f"._{stem}.de"] = b"\x00\xff resource fork"
        tar(tmp_path / f"{archive}.tar.gz", files)
    recipe = RECIPES["multi30k-de-en"]
    assert isinstance(recipe, Recipe)
    manifest, _ = prepare(recipe.adjusted(vocabulary=[260]), tmp_path / "out", places=[tmp_path])
    assert manifest["vocabulary"] == {"shared": True, "source_size": 264, "target_size": 264}
    assert [manifest["splits"][s]["pairs"] for s in ("train", "valid", "test")] == [30, 4, 3]


def test_code_java(tmp_path: Path) -> None:
    files = {}
    for split, count in (("train", 6), ("valid", 2), ("test", 1)):
        for kind, text in (("nl", "returns the value ."), ("code", "int f ( ) { return _NUM ; }")):
            numbered = [f"{n + 40}\t{text}" for n in range(count)]
            files[f"TL-CodeSum-master/data/{split}/{split}.token.{kind}"] = lines(numbered)
    data = make("code-java", tmp_path, [packed(tmp_path / "master.zip", files)])
    assert decoded(data, "train", "source") == ["returns the value ."] * 6
    assert decoded(data, "test", "target") == ["int f ( ) { return _NUM ; }"]
    assert not data.text.shared
    assert data.text.decode([data.split("test").target(0).tolist()], side="target") == [
        "int f() {\n    return _NUM;\n}"
    ]


def test_code_python(tmp_path: Path) -> None:
    folder = "code-docstring-corpus-master/parallel-corpus"
    code = 'def f(a): DCNL  DCSP if a: DCNL DCSP  DCSP return "one DCSP two" DCNL DCSP return (a)'
    old = "def g(): DCNL  DCSP print 'x'"
    files = {}
    for split in ("train", "valid", "test"):
        files[f"{folder}/data_ps.descriptions.{split}"] = lines(
            ["'Gets a thing. DCNL DCNL It\\'s x.'", "'Prints.'"]
        )
        files[f"{folder}/data_ps.declbodies.{split}"] = lines([code, old])
    data = make("code-python", tmp_path, [packed(tmp_path / "master.zip", files)])
    assert decoded(data, "train", "source")[0] == "gets a thing . it \\ ' s x ."
    assert decoded(data, "train", "target") == [
        "def f ( a ) : NEWLINE INDENT if a : NEWLINE INDENT return 'one two' NEWLINE DEDENT "
        "return a NEWLINE DEDENT",
        "def g ( ) : NEWLINE INDENT print 'x' NEWLINE DEDENT",
    ]
    # Python 2 does not parse, and is left as it is.
    assert data.manifest["splits"]["train"]["normalised"] == 1
    assert data.lines("test", "target") == decoded(data, "test", "target")


@pytest.mark.parametrize("name", ["code-java", "code-python"])
def test_tokenised_code_folders_are_taken_as_they_are(
    shared_data: Path, tmp_path: Path, name: str
) -> None:
    for split in ("train", "valid", "test"):
        for kind in ("nl", "code"):
            content = lzma.decompress((shared_data / name / f"valid.{kind}.xz").read_bytes())
            first = b"".join(content.splitlines(keepends=True)[:200])
            (tmp_path / f"{split}.{kind}.xz").write_bytes(lzma.compress(first))
    data = make(name, tmp_path, [tmp_path])
    assert len(data.split("train")) == 200
    assert data.manifest["splits"]["train"]["target_unknown"] == 0
    expected = content.decode().split("\n")[:200]
    normalised = decoded(data, "train", "target")
    if name == "code-java":
        assert normalised == expected
    else:
        assert data.manifest["splits"]["train"]["normalised"] == 200


def glue(tmp_path: Path) -> Path:
    folder = tmp_path / "glue_data"
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    rows = {
        "MRPC/train.tsv": [
            header,
            '1\t1\t2\tHe said " yes .\tHe agreed .',
            '0\t3\t4\t" No .\tOk " .',
        ],
        "MRPC/dev.tsv": [header, "1\t5\t6\ta\tb"],
        "CoLA/train.tsv": ["gj04\t1\t\tThey left.", "gj04\t0\t*\tThem left."],
        "CoLA/dev.tsv": ["gj04\t1\t\tShe slept."],
        "CoLA/test.tsv": ["index\tsentence", "0\tWho knows?"],
        "SST-2/train.tsv": ["sentence\tlabel", "good \t1", "bad \t0"],
        "SST-2/dev.tsv": ["sentence\tlabel", "fine\t1"],
        "RTE/train.tsv": ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tnot_entailment"],
        "RTE/dev.tsv": ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tentailment"],
        "QNLI/train.tsv": ["index\tquestion\tsentence\tlabel", "0\tq\ts\tentailment"],
        "QNLI/dev.tsv": ["index\tquestion\tsentence\tlabel", "0\tq\ts\tnot_entailment"],
        "MNLI/train.tsv": [
            "index\tsentence1\tsentence2\tlabel1\tgold_label",
            "0\ta\tb\tx\tneutral",
        ],
        "MNLI/dev_matched.tsv": ["sentence1\tsentence2\tgold_label", "a\tb\tcontradiction"],
        "MNLI/dev_mismatched.tsv": ["sentence1\tsentence2\tgold_label", "c\td\tentailment"],
        "MNLI/test_matched.tsv": ["sentence1\tsentence2", "e\tf"],
    }
    for name, content in rows.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(lines(content))
    return folder


def test_glue(tmp_path: Path) -> None:
    manifest, _ = prepare(RECIPES["glue"], tmp_path / "out", places=[glue(tmp_path)])
    assert list(manifest["tasks"]) == ["mnli", "mrpc", "qnli", "sst2", "rte", "cola"]
    read = [json.loads(line) for line in (tmp_path / "out/mrpc/train.jsonl").open()]
    assert read == [
        {"text": 'He said " yes .', "pair": "He agreed .", "label": 1},
        {"text": '" No .', "pair": 'Ok " .', "label": 0},
    ]
    cola = manifest["tasks"]["cola"]
    assert cola["labels"] == ["unacceptable", "acceptable"]
    assert cola["splits"]["train"] == {
        "examples": 2,
        "unreadable": 0,
        "labels": {"acceptable": 1, "unacceptable": 1},
    }
    assert (tmp_path / "out/cola/test.jsonl").read_text() == '{"text": "Who knows?"}\n'
    assert manifest["tasks"]["mnli"]["splits"]["valid_mismatched"]["labels"] == {"entailment": 1}
    assert (tmp_path / "out/mnli/train.jsonl").read_text() == (
        '{"text": "a", "pair": "b", "label": 1}\n'
    )


def test_glue_takes_mrpc_from_microsofts_own_file(tmp_path: Path) -> None:
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    (tmp_path / "msr_paraphrase_train.txt").write_bytes(
        lines([header, "1\t10\t11\ta\tb", "0\t12\t13\tc\td", "1\t14\t15\te\tf"])
    )
    (tmp_path / "mrpc_dev_ids.tsv").write_bytes(b"12\t13\n")
    manifest, _ = prepare(RECIPES["glue"], tmp_path / "out", places=[tmp_path], tasks=["mrpc"])
    splits = manifest["tasks"]["mrpc"]["splits"]
    assert (splits["train"]["examples"], splits["valid"]["examples"]) == (2, 1)
    assert (tmp_path / "out/mrpc/valid.jsonl").read_text() == (
        '{"text": "c", "pair": "d", "label": 0}\n'
    )


def test_the_real_glue_has_its_known_sizes(shared_data: Path, tmp_path: Path) -> None:
    manifest, _ = prepare(RECIPES["glue"], tmp_path / "out", places=[shared_data / "glue"])
    sizes = {
        task: [facts["examples"] for facts in results["splits"].values()]
        for task, results in manifest["tasks"].items()
    }
    assert sizes == {
        "mrpc": [3668, 408],
        "qnli": [5463],
        "sst2": [67349, 872],
        "rte": [2490, 277],
        "cola": [8551, 1043],
    }


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "RTE/dev.tsv",
            b"index\tsentence1\tlabel\n",
            "has no column 'sentence2' in its first line",
        ),
        (
            "RTE/dev.tsv",
            b"index\tsentence1\tsentence2\tlabel\n0\ta\tb\n",
            "line 2 of .*dev.tsv holds 3 cells instead of 4",
        ),
        (
            "CoLA/dev.tsv",
            b"x\t1\t\tGood.\nx\t2\t\tBad.\n",
            "line 2 of .*dev.tsv holds the unknown label '2'",
        ),
        ("SST-2/dev.tsv", b"sentence\tlabel\n", "holds no example"),
        ("SST-2/dev.tsv", b"sentence\tlabel\n\xff\t1\n", "line 2 of .* is not valid UTF-8"),
    ],
)
def test_bad_glue_files_are_named(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    folder = glue(tmp_path)
    (folder / file).write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare(RECIPES["glue"], tmp_path / "out", places=[folder])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["glue_data"]


def test_glue_without_a_split_or_with_an_unknown_task_says_so(tmp_path: Path) -> None:
    folder = glue(tmp_path)
    (folder / "RTE/dev.tsv").unlink()
    with pytest.raises(UserError, match=r"the valid split of rte needs RTE/dev.tsv"):
        prepare(RECIPES["glue"], tmp_path / "out", places=[folder])
    with pytest.raises(UserError, match="unknown task 'sst'; the tasks are mnli, mrpc"):
        prepare(RECIPES["glue"], tmp_path / "out", places=[folder], tasks=["sst"])


def test_every_translation_recipe_has_two_directions() -> None:
    both = [
        name
        for name, recipe in RECIPES.items()
        if isinstance(recipe, Recipe) and recipe.text.kind != "words"
    ]
    assert len(both) == 7
    for name in both:
        stem, source, target = name.rsplit("-", 2)
        turned = find_recipe(f"{stem}-{target}-{source}")
        assert isinstance(turned, Recipe)
        assert (turned.text.source, turned.text.target) == (target, source)
        assert turned.reversed() == find_recipe(name)


def test_an_unknown_recipe_gets_the_nearest_name() -> None:
    with pytest.raises(
        UserError, match=r"unknown recipe 'iwslt14-deen': did you mean 'iwslt14-de-en'"
    ):
        find_recipe("iwslt14-deen")
