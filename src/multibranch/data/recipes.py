"""The corpora that `multibranch prepare` knows, each a short declaration.

To add one, add its declaration to ``RECIPES``: where the files of each split are, in which format,
and how they are cleaned, split and turned into ids. A translation recipe serves both directions
(wmt14-en-de and wmt14-de-en).
"""

import glob
from pathlib import Path

from multibranch.data.fetch import Download
from multibranch.data.files import without_compression
from multibranch.data.recipe import Cleaning, Corpus, Part, Recipe, Vocabulary
from multibranch.errors import UserError, nearest
from multibranch.text import TextSettings
from multibranch.text.pipeline import SIDES

_STATMT = "http://www.statmt.org"
_WMT = "http://data.statmt.org"
_GLUE = "https://dl.fbaipublicfiles.com/glue/data"
_COMMON_CRAWL = Download(f"{_STATMT}/wmt13/training-parallel-commoncrawl.tgz")
_WMT_LICENCE = "free for research; see the home page"
_TED_LICENCE = "CC BY-NC-ND 4.0"


def _moses(source: str, target: str, *, lowercase: bool = False) -> TextSettings:
    return TextSettings(kind="moses-bpe", source=source, target=target, lowercase=lowercase)


def _wmt(source: str, target: str) -> TextSettings:
    return TextSettings(
        kind="moses-bpe",
        source=source,
        target=target,
        split_hyphens=True,
        normalise_punctuation=True,
    )


def _part(*paths: str | dict[str, str], format: str = "plain") -> Part:
    return Part(paths, format)


def _ted(*paths: str) -> Part:
    return Part(paths, "segments")


_TED_CLEANING = Cleaning(max_length=175, max_ratio=1.5)
_WMT_CLEANING = Cleaning(max_length=250, max_ratio=1.5, unit="subwords")

_TRANSLATION = (
    Recipe(
        name="iwslt14-de-en",
        title="TED talks of IWSLT 2014, lower-cased",
        pairs="160k / 7k / 6,750",
        licence=_TED_LICENCE,
        home="https://wit3.fbk.eu/2014-01",
        downloads=(Download("https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"),),
        text=_moses("de", "en", lowercase=True),
        vocabulary=Vocabulary(merges=10_000),
        cleaning=_TED_CLEANING,
        valid_every=23,
        train=(_part("train.tags.de-en.{language}", format="tagged"),),
        test=tuple(
            _ted(f"IWSLT14.{name}.de-en.{{language}}.xml")
            for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
        ),
    ),
    Recipe(
        name="iwslt14-es-en",
        title="TED talks of IWSLT 2014",
        pairs="183k / 1k / 1k",
        licence=_TED_LICENCE,
        home="https://wit3.fbk.eu/2014-01",
        downloads=(
            Download("https://wit3.fbk.eu/archive/2014-01/texts/es/en/es-en.tgz"),
            Download("https://wit3.fbk.eu/archive/2013-01-test/texts/es/en/es-en.tgz"),
            Download("https://wit3.fbk.eu/archive/2014-01-test/texts/es/en/es-en.tgz"),
        ),
        text=_moses("es", "en"),
        vocabulary=Vocabulary(merges=10_000),
        cleaning=_TED_CLEANING,
        train=(_part("train.tags.es-en.{language}", format="tagged"),),
        valid=(_ted("*.tst2013.es-en.{language}.xml", "*.tst2013.en-es.{language}.xml"),),
        test=(_ted("*.tst2014.es-en.{language}.xml", "*.tst2014.en-es.{language}.xml"),),
    ),
    Recipe(
        name="iwslt17-fr-en",
        title="TED talks of IWSLT 2017",
        pairs="236k / 1k / 1k",
        licence=_TED_LICENCE,
        home="https://wit3.fbk.eu/2017-01",
        downloads=(
            Download("https://wit3.fbk.eu/archive/2017-01-trnted/texts/fr/en/fr-en.tgz"),
            Download("https://wit3.fbk.eu/archive/2017-01-ted-test/texts/fr/en/fr-en.tgz"),
        ),
        text=_moses("fr", "en"),
        vocabulary=Vocabulary(merges=10_000),
        cleaning=_TED_CLEANING,
        train=(_part("train.tags.fr-en.{language}", format="tagged"),),
        valid=(_ted("*.tst2016.fr-en.{language}.xml", "*.tst2016.en-fr.{language}.xml"),),
        test=(_ted("*.tst2017.fr-en.{language}.xml", "*.tst2017.en-fr.{language}.xml"),),
    ),
    Recipe(
        name="wmt14-en-de",
        title="Europarl, Common Crawl, News Commentary of WMT 2014",
        pairs="4.5M / 3,000 / 3,003",
        licence=_WMT_LICENCE,
        home=f"{_STATMT}/wmt14/translation-task.html",
        downloads=(
            Download(
                f"{_STATMT}/wmt13/training-parallel-europarl-v7.tgz",
                "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
            ),
            _COMMON_CRAWL,
            Download(f"{_STATMT}/wmt14/training-parallel-nc-v9.tgz"),
            Download(f"{_WMT}/wmt17/translation-task/dev.tgz"),
            Download(f"{_STATMT}/wmt14/test-full.tgz"),
        ),
        text=_wmt("en", "de"),
        vocabulary=Vocabulary(merges=32_000),
        cleaning=_WMT_CLEANING,
        train=(
            _part("europarl-v7.de-en.{language}"),
            _part("commoncrawl.de-en.{language}"),
            _part("news-commentary-v9.de-en.{language}", "news-commentary-v12.de-en.{language}"),
        ),
        valid=(_part("newstest2013.{language}"),),
        test=(_ted("newstest2014-deen-*.{language}.sgm"),),
    ),
    Recipe(
        name="wmt19-en-de",
        title="Europarl, Common Crawl, News Commentary, Rapid of WMT 2019",
        pairs="6M / 3,000 / 1,997",
        licence=_WMT_LICENCE,
        home=f"{_STATMT}/wmt19/translation-task.html",
        downloads=(
            Download(
                f"{_STATMT}/europarl/v9/training/europarl-v9.de-en.tsv.gz",
                "c2aef75d81bf06b22e4a9237319c1d53ba9668a13cb155c6b1361182cd3abc84",
            ),
            _COMMON_CRAWL,
            Download(
                f"{_WMT}/news-commentary/v14/training/news-commentary-v14.de-en.tsv.gz",
                "8aaa98a77d38bd39dcbdbcb775f3b6c633700e4c10fd915cf3dc6b9bfd0f2dca",
            ),
            Download(
                "https://s3-eu-west-1.amazonaws.com/tilde-model/rapid2019.de-en.zip",
                "ed5a10e57092715020334b918f6e114e5b6c7206bee3e956f2a1e2937c59c2e7",
            ),
            Download(f"{_WMT}/wmt19/translation-task/dev.tgz"),
            Download(f"{_WMT}/wmt19/translation-task/test.tgz"),
        ),
        text=_wmt("en", "de"),
        vocabulary=Vocabulary(merges=32_000),
        cleaning=_WMT_CLEANING,
        train=(
            _part("europarl-v9.de-en.tsv", format="de|en"),
            _part("commoncrawl.de-en.{language}"),
            _part("news-commentary-v14.de-en.tsv", format="de|en"),
            _part("rapid2019.de-en.{language}"),
        ),
        valid=(_part("newstest2013.{language}"),),
        test=(_ted("newstest2019-{source}{target}-*.{language}.sgm"),),
    ),
    Recipe(
        name="wmt19-de-fr",
        title="Europarl, Common Crawl, ParaCrawl, News Commentary of WMT 2019",
        pairs="9M / 16k / 1,701",
        licence=_WMT_LICENCE,
        home=f"{_STATMT}/wmt19/translation-task.html",
        downloads=(
            *(
                Download(f"{_WMT}/wmt19/translation-task/fr-de/bitexts/{name}.{language}.gz")
                for name in ("europarl-v7", "commoncrawl", "de-fr.bicleaner07")
                for language in ("de", "fr")
            ),
            Download(f"{_WMT}/news-commentary/v14/training/news-commentary-v14.de-fr.tsv.gz"),
            Download(f"{_WMT}/wmt19/translation-task/dev.tgz"),
            Download(f"{_WMT}/wmt19/translation-task/test.tgz"),
        ),
        text=_wmt("de", "fr"),
        vocabulary=Vocabulary(merges=32_000),
        cleaning=_WMT_CLEANING,
        train=(
            _part("europarl-v7.{language}"),
            _part("commoncrawl.{language}"),
            _part("de-fr.bicleaner07.{language}"),
            _part("news-commentary-v14.de-fr.tsv", format="de|fr"),
        ),
        valid=(
            _part("news-test2008.{language}"),
            *(_part(f"newstest{year}.{{language}}") for year in range(2009, 2014)),
        ),
        test=(_ted("newstest2019-{source}{target}-*.{language}.sgm"),),
    ),
    Recipe(
        name="multi30k-de-en",
        title="captions of photographs, lower-cased",
        pairs="29,000 / 1,014 / 1,000",
        licence="CC BY-NC-SA 4.0",
        home="https://github.com/multi30k/dataset",
        downloads=tuple(
            Download(f"http://www.quest.dcs.shef.ac.uk/wmt16_files_mmt/{name}.tar.gz", checksum)
            for name, checksum in (
                ("training", "20140d013d05dd9a72dfde46478663ba05737ce983f478f960c1123c6671be5e"),
                ("validation", "a7aa20e9ebd5ba5adce7909498b94410996040857154dab029851af3a866da8c"),
                (
                    "mmt16_task1_test",
                    "0681be16a532912288a91ddd573594fbdd57c0fbb81486eff7c55247e35326c2",
                ),
            )
        ),
        text=_moses("de", "en", lowercase=True),
        vocabulary=Vocabulary(size=8_000),
        train=(_part("train.{language}"),),
        valid=(_part("valid.{language}", "val.{language}"),),
        test=(_part("test.{language}", "test_2016_flickr.{language}", "test2016.{language}"),),
    ),
)


def _docstrings(split: str) -> tuple[Part, ...]:
    stem = "parallel-corpus/data_ps"
    original = {"nl": f"{stem}.descriptions.{split}", "python": f"{stem}.declbodies.{split}"}
    return (Part((f"{split}.{{language}}", original), "docstrings"),)


_CODE = (
    Recipe(
        name="code-java",
        title="a sentence to a Java method (TL-CodeSum)",
        pairs="69,708 / 8,714 / 8,714",
        licence="not stated; from open-source projects",
        home="https://github.com/xing-hu/TL-CodeSum",
        downloads=(Download("https://github.com/xing-hu/TL-CodeSum/archive/master.zip"),),
        text=TextSettings(kind="words", source="nl", target="java"),
        vocabulary=Vocabulary(source=27_000, target=50_000),
        tokenised=True,
        train=(_part("train/train.token.{language}", "train.{language}", format="numbered"),),
        valid=(_part("valid/valid.token.{language}", "valid.{language}", format="numbered"),),
        test=(_part("test/test.token.{language}", "test.{language}", format="numbered"),),
    ),
    Recipe(
        name="code-python",
        title="a docstring to a Python function",
        pairs="109,108 / 2,000 / 2,000",
        licence="not stated; from open-source projects",
        home="https://github.com/EdinburghNLP/code-docstring-corpus",
        downloads=(
            Download("https://github.com/EdinburghNLP/code-docstring-corpus/archive/master.zip"),
        ),
        text=TextSettings(kind="words", source="nl", target="python"),
        vocabulary=Vocabulary(source=18_000, target=50_000),
        tokenised=True,
        normalise_code=True,
        train=_docstrings("train"),
        valid=_docstrings("valid"),
        test=_docstrings("test"),
    ),
)

GLUE = Corpus(
    name="glue",
    title="sentence classification: MNLI, MRPC, QNLI, SST-2, RTE, CoLA",
    pairs="2k to 393k a task, 277 to 10k, as many",
    licence="differs by task; see the home page",
    home="https://gluebenchmark.com",
    downloads=(
        Download(
            f"{_GLUE}/MNLI.zip", "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"
        ),
        Download(f"{_GLUE}/QNLIv2.zip"),
        Download(
            f"{_GLUE}/SST-2.zip", "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"
        ),
        Download(f"{_GLUE}/RTE.zip"),
        Download(
            f"{_GLUE}/CoLA.zip", "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"
        ),
        Download(
            f"{_GLUE}/mrpc_dev_ids.tsv",
            "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
        ),
        Download(
            "https://dl.fbaipublicfiles.com/senteval/senteval_data/msr_paraphrase_train.txt",
            "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
        ),
    ),
)

PARALLEL = Corpus(
    name="parallel",
    title="your own files, a sentence a line on each side",
    pairs="any number of",
    licence="yours",
    home="--source F --target F, or --train A B --valid A B --test A B",
)

HOLD_OUT = 50  # one in so many pairs of one's own files is held out, unless the user says how many

RECIPES: dict[str, Corpus] = {
    corpus.name: corpus for corpus in (*_TRANSLATION, *_CODE, GLUE, PARALLEL)
}


def find_recipe(name: str) -> Corpus:
    """The recipe of that name, in either direction; an unknown one is a UserError."""
    if name in RECIPES:
        return RECIPES[name]
    turned = {recipe.reversed().name: recipe.reversed() for recipe in _TRANSLATION}
    if name in turned:
        return turned[name]
    near = nearest(name, [*RECIPES, *turned])  # of both directions, the one that is listed
    hint = f"did you mean '{near}'? " if near else ""
    raise UserError(f"unknown recipe '{name}': {hint}`multibranch prepare --list` shows all.")


def parallel(
    *,
    languages: tuple[str, str],
    train: tuple[str, str],
    valid: tuple[str, str] | None = None,
    test: tuple[str, str] | None = None,
    tokenised: bool = False,
    hold_out: int = HOLD_OUT,
) -> Recipe:
    """A recipe for one's own files: a source and a target for each split.

    Where ``valid`` is not given, every ``hold_out``-th pair is held out for it, and where neither
    ``valid`` nor ``test`` is given as many again for the test.
    """
    kind = "tokenised-bpe" if tokenised else "moses-bpe"
    return Recipe(
        name=PARALLEL.name,
        title=PARALLEL.title,
        pairs=PARALLEL.pairs,
        licence=PARALLEL.licence,
        home=PARALLEL.home,
        text=TextSettings(kind=kind, source=languages[0], target=languages[1]),
        vocabulary=Vocabulary(merges=10_000),
        cleaning=Cleaning(max_length=250, max_ratio=9.0),
        train=(_own(train),),
        valid=(_own(valid),) if valid else (),
        test=(_own(test),) if test else (),
        valid_every=None if valid else hold_out,
        test_every=None if valid or test else hold_out,
    )


def _own(paths: tuple[str, str]) -> Part:
    given = [Path(path).as_posix() for path in paths]
    plain = [without_compression(name) for name in given]
    known = [given] if plain == given else [given, plain]
    return Part(tuple(dict(zip(SIDES, map(glob.escape, names))) for names in known))
