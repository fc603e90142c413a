"""Plain Python that the searches are held against: every sequence, and beam search in loops."""

import itertools
import math
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn

from multibranch.decoding import SearchOptions
from multibranch.directory import save_model
from multibranch.nn import MultiBranchTransformer
from multibranch.text import TextPipeline, TextSettings, WordCounter, learn_bpe

BOS, PAD, EOS, UNK = range(4)
NEVER = {BOS, PAD, UNK}


def random_model(seed: int = 0, vocabulary: int = 8, **changes) -> MultiBranchTransformer:
    """A small float64 model whose distributions are neither flat nor certain."""
    torch.manual_seed(seed)
    said = {
        "source_vocabulary": vocabulary,
        "target_vocabulary": vocabulary,
        "width": 16,
        "hidden": 32,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "branches": 2,
        "dropout": 0.0,
        "share_embeddings": "none",
    }
    model = MultiBranchTransformer(**{**said, **changes}).double().eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter, std=0.3)
    if hasattr(model, "output_weight"):
        model.output_weight.mul_(2.0)
    return model


def random_sources(seed: int, count: int, *, longest: int = 6, vocabulary: int = 8):
    generator = torch.Generator().manual_seed(seed)
    sources = []
    for _ in range(count):
        length = int(torch.randint(0, longest + 1, (1,), generator=generator))
        ids = torch.randint(4, vocabulary, (length,), generator=generator)
        sources.append([*ids.tolist(), EOS])
    return sources


def log_probabilities(
    models: list[MultiBranchTransformer], source: list[int], targets: list[list[int]]
) -> Tensor:
    """log p of the token after each position of BOS + target, (targets, longest + 1, V)."""
    longest = max(map(len, targets)) + 1
    ids = torch.full((len(targets), longest), PAD)
    ids[:, 0] = BOS
    for row, target in enumerate(targets):
        ids[row, 1 : len(target) + 1] = torch.tensor(target, dtype=torch.int64)
    sources = torch.tensor(source).expand(len(targets), -1)
    p = sum(model(sources, ids).double().softmax(-1) for model in models) / len(models)
    return p.log()


def exhaustive(
    model: MultiBranchTransformer, source: list[int], longest: int, length_penalty: float
) -> list[tuple[float, tuple[int, ...]]]:
    """Every sequence of up to `longest` tokens with its score, best first."""
    tokens = sorted(set(range(model.settings["target_vocabulary"])) - NEVER - {EOS})
    targets = [
        list(sequence)
        for length in range(longest + 1)
        for sequence in itertools.product(tokens, repeat=length)
    ]
    log_p = log_probabilities([model], source, targets)
    scored = []
    for row, target in enumerate(targets):
        total = sum(float(log_p[row, t, token]) for t, token in enumerate([*target, EOS]))
        scored.append((total / (len(target) + 1) ** length_penalty, tuple(target)))
    return sorted(scored, reverse=True)


def beam_search(
    model: MultiBranchTransformer,
    source: list[int],
    options: SearchOptions,
    prefix: tuple[int, ...] = (),
) -> list[tuple[float, tuple[int, ...]]]:
    """Full beam search as decoding/beam.py describes it, one hypothesis at a time."""
    longest = max(options.longest(len(source) - 1), len(prefix))
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, tuple[int, ...]]] = []
    for step in range(longest + 1):
        rows = log_probabilities([model], source, [list(ids) for _, ids in live])[:, step]
        candidates = []
        for (total, ids), row in zip(live, rows.tolist()):
            for token, log_p in enumerate(allowed(row, ids, step, longest, options, prefix)):
                if log_p > -math.inf:
                    candidates.append((total + log_p, ids, token))
        candidates.sort(key=lambda candidate: -candidate[0])
        for total, ids, token in candidates[: options.beam]:
            if token == EOS:
                finished.append((total / (len(ids) + 1) ** options.length_penalty, ids))
        live = [(total, (*ids, token)) for total, ids, token in candidates if token != EOS]
        live = live[: options.beam]
        if len(finished) >= options.beam or not live:
            break
    return sorted(finished, reverse=True)[: options.n_best]


def allowed(row, ids, step, longest, options, prefix) -> list[float]:
    """The log-probabilities after every rule."""
    if step < len(prefix) and step < longest:
        return [p if token == prefix[step] else -math.inf for token, p in enumerate(row)]
    if step >= longest:
        return [p if token == EOS else -math.inf for token, p in enumerate(row)]
    row = [p * options.repetition_penalty if t in ids else p for t, p in enumerate(row)]
    never = NEVER | set(options.never)
    if step < options.min_length:
        never = never | {EOS}
    n = options.no_repeat_ngram
    if n:
        seen = {ids[i : i + n] for i in range(len(ids) - n + 1)}
        last = ids[len(ids) - n + 1 :] if n > 1 else ()
        never = never | {token for token in range(len(row)) if (*last, token) in seen}
    return [-math.inf if token in never else p for token, p in enumerate(row)]


WORDS = [
    "der",
    "die",
    "das",
    "ein",
    "Mann",
    "Frau",
    "Hund",
    "Haus",
    "läuft",
    "sieht",
    "schläft",
    "und",
    "über",
    "rot",
    "grün",
    ".",
    ",",
    "?",
]


def save_model_directory(folder: Path, *, seed: int = 0, words: list[str] = WORDS, **changes):
    """A model directory with random weights and a small vocabulary; gives back its model."""
    counter = WordCounter()
    counter.update(Counter(dict.fromkeys(words, 50)))
    settings = TextSettings(kind="moses-bpe", source="de", target="en")
    text = TextPipeline(settings, learn_bpe(counter, merges=60))
    model = random_model(seed, vocabulary=text.target_size, **changes).float()
    save_model(folder, model, text, extra={"decoding": {"beam": 3, "length_penalty": 0.6}})
    return model
