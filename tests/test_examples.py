"""The Python examples of the docs run as they stand, offline, and give what they say they give.

A page's examples run one after another, as a reader would type them, in a folder that holds what
they read: corpora of a few pairs, and models that learned those by heart.

What an expression gives stands behind it as a promise, `# → …`, of one of two kinds:

- a Python literal is the value: `# → ["Good day."]`;
- what ends in `…` is how the value's repr begins: `# → [[Hypothesis(…`.

Any other is an error, and so is one behind something that is no expression: nothing would check it.
"""

import ast
import io
import json
import re
import shlex
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from multibranch.cli import main
from multibranch.data import PreparedData, StoreWriter
from multibranch.text import TextPipeline, TextSettings, WordCounter, learn_words
from multibranch.text.pipeline import tokeniser
from multibranch.training import Config, DataConfig, DecodeConfig, ModelConfig, TrainConfig, Trainer

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"# *→ *(.*?) *$", flags=re.MULTILINE)
PAGES = [page for page in sorted(DOCS.glob("*.md")) if BLOCK.search(page.read_text("utf-8"))]
# What a page's examples need beyond the packages that are always installed.
PACKAGES = {
    "code.md": ["tree_sitter", "tree_sitter_java"],
    "export.md": ["ctranslate2", "onnx", "onnxruntime"],
    "hub.md": ["transformers"],
}
SENTENCES = [
    ("Guten Morgen!", "Good morning!"),
    ("Guten Tag.", "Good day."),
    ("Ein Hund läuft.", "A dog runs."),
    ("ein Satz .", "a sentence ."),
    ("noch einer .", "another one ."),
]
METHODS = [
    ("Returns the name.", "public String getName ( ) { return name ; }"),
    ("Returns the size.", "public int getSize ( ) { return size ; }"),
    ("Sets the name.", "public void setName ( String name ) { this . name = name ; }"),
]


def train(data: str, output: str, **changes: Any) -> None:
    """Learn a prepared folder by heart."""
    model = {"width": 32, "hidden": 64, "encoder_layers": 1, "decoder_layers": 1, "branches": 3}
    config = Config(
        data=DataConfig(folder=data),
        model=ModelConfig(**{**model, "dropout": 0.0, "drop_branch": 0.0}),
        train=TrainConfig(
            output=output,
            tokens=256,
            learning_rate=1e-2,
            warmup=10,
            max_updates=60,
            validate_every=60,
            tensorboard=False,
            device="cpu",
        ),
    )
    for key, value in changes.items():
        setattr(config if hasattr(config, key) else config.model, key, value)
    Trainer(config, PreparedData.open(data), quiet=True).run()


def write(path: str, lines: Sequence[str]) -> None:
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def translation() -> None:
    """prepared/mine, and what was trained on it, by all the names that the docs give it."""
    for number, name in enumerate(("corpus.de", "corpus.en")):
        write(name, [pair[number] for pair in SENTENCES] * 8)
    write("long.txt", [source for source, _ in SENTENCES] * 2)
    words = "prepare parallel --source corpus.de --target corpus.en --merges 100 --hold-out 7"
    assert main([*words.split(), "--jobs", "1", "--output", "prepared/mine"]) == 0
    train("prepared/mine", "runs/mat")
    for name in ("mat-1", "mat-2", "iwslt14-de-en-mat"):
        shutil.copytree("runs/mat", f"runs/{name}")


def code() -> None:
    """prepared/code-java with runs/code-java-mat, and two files of one's own."""
    sides = {"source": [pair[0] for pair in METHODS], "target": [pair[1] for pair in METHODS]}
    write("my.nl", sides["source"])
    write("my.code", sides["target"])
    settings = TextSettings(kind="words", source="nl", target="java")
    vocabularies = []
    for side, lines in sides.items():
        counter = WordCounter()
        counter.update(Counter(" ".join(tokeniser(settings, side)(line) for line in lines).split()))
        vocabularies.append(learn_words(counter, size=40))
    text = TextPipeline(settings, *vocabularies)
    folder = Path("prepared/code-java")
    text.save(folder)
    for split in ("train", "valid", "test"):
        with StoreWriter(folder, split) as writer:
            writer.add_many(*(text.encode(lines, side=side) for side, lines in sides.items()))
        for side, lines in sides.items():
            write(f"{folder}/{split}.{side}.txt", lines)
    (folder / "manifest.json").write_text(json.dumps({"name": "methods"}), encoding="utf-8")
    train(str(folder), "runs/code-java-mat", task="code", share_embeddings="target")


def exports() -> None:
    """runs/mat for both engines."""
    for form, folder in (("ctranslate2", "exported"), ("onnx", "graphs")):
        assert main(["export", "runs/mat", "--format", form, "--output", folder]) == 0


def pretrained() -> None:
    """A small random model at the path that on the hub is RoBERTa's name."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    config = RobertaConfig(vocab_size=99, num_hidden_layers=2, **sizes)
    RobertaForSequenceClassification(config).save_pretrained("FacebookAI/roberta-base")


# Made for one page only; what all others read is made once for all.
MADE: dict[str, Callable[[], None]] = {"code.md": code, "export.md": exports, "hub.md": pretrained}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and models for translation."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        translation()
    return folder


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No network; and PyTorch's threads as they were, which loading CTranslate2 changes."""

    def refuse(*_: Any) -> None:
        raise AssertionError("an example asked the network for something")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def check(value: Any, promise: str, where: str) -> None:
    """That a value is what was promised, in one of the two ways to promise."""
    beginning = promise.removesuffix("…")
    if beginning and beginning != promise:
        assert repr(value).startswith(beginning), where
        return
    try:
        literal = ast.literal_eval(promise)
    except (ValueError, SyntaxError):
        pytest.fail(f"{where}: `# → {promise}` is neither a literal nor a beginning, with … behind")
    assert value == literal, where


def run(example: str, names: dict[str, Any], where: str) -> None:
    """Run an example statement by statement, and hold it to its promises."""
    lines, kept = example.splitlines(), 0
    for statement in ast.parse(example).body:
        if isinstance(statement, ast.Expr):
            value = eval(compile(ast.Expression(statement.value), where, "eval"), names)
            promise = PROMISE.search(lines[(statement.end_lineno or 0) - 1])
            if promise is not None:
                check(value, promise[1], where)
                kept += 1
        else:
            exec(compile(ast.Module([statement], []), where, "exec"), names)
    assert kept == len(PROMISE.findall(example)), f"{where}: a promise is not behind an expression"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(
    page: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in PACKAGES.get(page.name, []):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(place)
    if page.name in MADE:
        MADE[page.name]()
    names: dict[str, Any] = {}
    for number, example in enumerate(BLOCK.findall(page.read_text("utf-8")), start=1):
        run(example, names, f"{page.name}, example {number}")


def test_the_commands_of_the_page_on_decoding_run_with_a_model_such_as_the_demo_s(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has two branches, and a beam of 4 where nothing is said of one."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.chdir(tmp_path)
    train(str(place / "prepared" / "mine"), "runs/mat", branches=2, decode=DecodeConfig(beam=4))
    write("input.de", [source for source, _ in SENTENCES])
    shown = re.findall(r"^multibranch .*$", (DOCS / "decoding.md").read_text("utf-8"), flags=re.M)
    assert len(shown) == 4
    for command in shown:
        given = io.TextIOWrapper(io.BytesIO(Path("input.de").read_bytes()))
        monkeypatch.setattr("sys.stdin", given)
        assert main(shlex.split(re.split("[<>]", command)[0])[1:]) == 0, command


@pytest.mark.parametrize(
    "example", ["1 + 1  # → 2", "[\n    1\n]  # → [1]", "{1: 2}  # → {1: …", "x = 1  # one"]
)
def test_a_kept_promise_passes(example: str) -> None:
    run(f"{example}\n", {}, "here")


@pytest.mark.parametrize(
    ("example", "why"),
    [
        ("1 + 1  # → 3", "here"),
        ("None  # → 3", "here"),
        ("[1, 2]  # → [2…", "here"),
        ("[1]  # → [Hypothesis]", "neither a literal nor"),
        ("[1]  #→ a list", "neither a literal nor"),
        ("[1]  # → …", "neither a literal nor"),
        ("x = 1  # → 1", "not behind an expression"),
        ("for x in (1, 2):\n    x  # → 1", "not behind an expression"),
    ],
)
def test_a_promise_that_is_broken_or_cannot_be_checked_fails(example: str, why: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception), match=why):
        run(f"{example}\n", {}, "here")
