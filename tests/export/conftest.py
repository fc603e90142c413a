"""Small models with random weights whose outputs are worth comparing, and a vocabulary for them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from multibranch.decoding import Hypothesis
from multibranch.decoding.generate import pad
from multibranch.directory import save_model
from multibranch.nn import MultiBranchTransformer
from multibranch.text import BOS, EOS, PAD, UNK, TextPipeline, TextSettings, WordCounter, learn_bpe

WORDS = ["der", "die", "das", "ein", "Mann", "Frau", "Hund", "Haus", "läuft", "sieht", "schläft"]
WORDS += ["und", "über", "rot", "grün", "blau", "weiß", "kalt", ".", ",", "?"]
TRAINING_STEPS = 150
SETTINGS = TextSettings(kind="tokenised-bpe", source="de", target="en")


def tokenizer(words: list[str]):
    counter = WordCounter()
    counter.update(dict.fromkeys(words, 50))
    return learn_bpe(counter, merges=60)


@pytest.fixture(scope="session")
def text() -> TextPipeline:
    return TextPipeline(SETTINGS, tokenizer(WORDS))


@pytest.fixture(scope="session")
def two_sided_text() -> TextPipeline:
    """Sides with vocabularies of their own, of different sizes."""
    return TextPipeline(SETTINGS, tokenizer(WORDS), tokenizer(WORDS[:9]))


@pytest.fixture(scope="session")
def make_model() -> Callable[..., MultiBranchTransformer]:
    """A model for a vocabulary: random, but sure never to write what may not be written.

    A search that never meets what is forbidden must go the same way in every engine.
    """

    def make(text: TextPipeline, *, seed: int = 0, polite: bool = True, **changes):
        torch.manual_seed(seed)
        said = {
            "source_vocabulary": text.source_size,
            "target_vocabulary": text.target_size,
            "width": 16,
            "hidden": 24,
            "heads": 2,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "branches": 3,
            "share_embeddings": "all" if text.shared else "target",
        }
        model = MultiBranchTransformer(**{**said, **changes}).eval().requires_grad_(False)
        for name, parameter in model.named_parameters():
            if "bias" in name:
                nn.init.normal_(parameter, std=0.3)
        # A shared embedding would repeat what was read last, were the layers not strong enough.
        for block in model.blocks:
            block.feed_forward.out_weight.mul_(5)
            block.attention.out_weight.mul_(2)
        model.output_vectors.mul_(1.5)
        if polite:
            _forbid(model, text)
        return model

    return make


def _forbid(model: MultiBranchTransformer, text: TextPipeline) -> None:
    """Let the last norm point away from special and unused tokens, and a little towards the end."""
    pre = model.settings["norm"] == "pre"
    norm = model.decoder_norm if pre else model.decoder[-1].feed_forward_norm
    towards = nn.functional.normalize(torch.randn(model.settings["width"]), dim=0)
    norm.bias.add_(12 * towards)
    vectors = model.output_vectors
    vectors -= (vectors @ towards)[:, None] * towards
    names = [text.tokenizer("target").id_to_token(n) for n in range(text.target_size)]
    unused = [number for number, name in enumerate(names) if name.startswith("<unused")]
    vectors[[BOS, PAD, UNK, *unused]] -= 2 * towards
    vectors[EOS] += 0.12 * towards


def some_sentences(*, seed: int, count: int, longest: int = 12) -> list[str]:
    """Sentences of 1 to `longest` words."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [
        " ".join(
            WORDS[number] for number in torch.randint(0, len(WORDS), (n,), generator=generator)
        )
        for n in lengths
    ]


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return some_sentences(seed=5, count=24)


@pytest.fixture(scope="session")
def trained(text, make_model) -> MultiBranchTransformer:
    """A model that has begun to learn to write a sentence backwards."""
    model = make_model(text, polite=False, width=32, hidden=64, dropout=0.0).requires_grad_(True)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.15)
    optimiser = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in range(TRAINING_STEPS):
        lines = some_sentences(seed=1000 + step, count=48, longest=5)
        backwards = [" ".join(reversed(line.split())) for line in lines]
        source = pad(text.encode(lines, side="source", tokenised=True))
        target = pad(text.encode(backwards, side="target", tokenised=True))
        before = torch.cat([torch.full((len(lines), 1), BOS), target[:, :-1]], dim=1)
        logits = model.train()(source, before)
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=0.1
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def directory(tmp_path_factory, text, trained) -> Path:
    """A model directory that remembers how to search."""
    folder = tmp_path_factory.mktemp("models") / "one"
    decoding = {"beam": 3, "length_penalty": 0.6}
    save_model(folder, trained, text, extra={"decoding": decoding})
    return folder


@pytest.fixture(scope="session")
def same() -> Callable:
    """Asserts that two engines gave the same hypotheses in the same order, with equal scores."""

    def same(found: list[list[Hypothesis]], wanted: list[list[Hypothesis]]) -> None:
        assert len(found) == len(wanted)
        for some, others in zip(found, wanted):
            assert [one.ids for one in some] == [other.ids for other in others]
            assert [one.text for one in some] == [other.text for other in others]
            for one, other in zip(some, others):
                assert one.score == pytest.approx(other.score, abs=1e-4)
                assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)

    return same
