"""What the tests of training share: a toy corpus (reversing rows of words), and tiny runs on it."""

import json
import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from multibranch.data import PreparedData, StoreWriter
from multibranch.text import TextPipeline, TextSettings, WordCounter, learn_words
from multibranch.training import Config, DataConfig, ModelConfig, Outcome, TrainConfig, Trainer
from multibranch.training.together import Table

WORDS = [f"w{number}" for number in range(20)]


def write_toy(folder: Path, *, train: int = 253, valid: int = 40, seed: int = 0) -> Path:
    """A prepared folder: the target is the source in reverse."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    counter = WordCounter()
    counter.update({word: len(WORDS) - rank for rank, word in enumerate(WORDS)})
    settings = TextSettings(kind="classification", source="en", target="en")
    text = TextPipeline(settings, learn_words(counter, size=len(WORDS) + 4))
    text.save(folder)
    for split, pairs in (("train", train), ("valid", valid)):
        sources = [" ".join(random.choice(WORDS, random.integers(2, 8))) for _ in range(pairs)]
        targets = [" ".join(reversed(line.split())) for line in sources]
        with StoreWriter(folder, split) as writer:
            writer.add_many(
                text.encode(sources, side="source"), text.encode(targets, side="target")
            )
        for side, lines in (("source", sources), ("target", targets)):
            (folder / f"{split}.{side}.txt").write_text("\n".join(lines) + "\n")
    (folder / "manifest.json").write_text(json.dumps({"name": "toy"}))
    return folder


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy corpus: 253 pairs, eight batches of 200 tokens an epoch."""
    return write_toy(tmp_path_factory.mktemp("toy") / "data")


@pytest.fixture(scope="session")
def other_toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another corpus with the same vocabulary."""
    return write_toy(tmp_path_factory.mktemp("toy") / "other", train=200, seed=1)


MODEL: dict[str, Any] = {
    "width": 16,
    "hidden": 32,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "branches": 2,
    "drop_branch": 0.2,
    "dropout": 0.1,
}
TRAIN: dict[str, Any] = {
    "tokens": 200,
    "max_updates": 20,
    "warmup": 10,
    "learning_rate": 3e-3,
    "log_every": 5,
    "device": "cpu",
    "threads": 1,
    "tensorboard": False,
}


def tiny_config(toy: Path, output: Path, **changes: Any) -> Config:
    """A configuration of a run that takes a second; `changes` by the keys' last names."""
    sections: dict[str, dict[str, Any]] = {
        "data": {"folder": str(toy)},
        "model": dict(MODEL),
        "train": {**TRAIN, "output": str(output)},
    }
    kinds = {"data": DataConfig, "model": ModelConfig, "train": TrainConfig}
    for key, value in changes.items():
        section = next(name for name, kind in kinds.items() if key in kind.__dataclass_fields__)
        sections[section][key] = value
    return Config(
        data=DataConfig(**sections["data"]),
        model=ModelConfig(**sections["model"]),
        train=TrainConfig(**sections["train"]),
    )


def run_tiny(toy: Path, output: Path, *, score: Any = None, **changes: Any) -> Outcome:
    """Train such a run to its end."""
    config = tiny_config(toy, output, **changes)
    return Trainer(config, PreparedData.open(toy), score=score, quiet=True).run()


def run_at_table(config: Config, table: Table, *, watch: Any = None) -> Outcome:
    """Train one of the runs that meet at a table."""
    data = PreparedData.open(str(config.data.folder))
    return Trainer(config, data, watch=watch, table=table, quiet=True).run()


def records(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [record for record in found if kind in (None, record["kind"])]


def _work(function: Callable[[], Any], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    function()


def start_process(
    function: Callable[[], Any], environment: dict[str, str] | None = None
) -> multiprocessing.process.BaseProcess:
    """Run a function in a process of its own, forked: it has everything imported already."""
    process = multiprocessing.get_context("fork").Process(
        target=_work, args=(function, environment or {})
    )
    process.start()
    return process


def run_processes(function: Callable[[], Any], world: int = 2) -> list[int | None]:
    """Run a function in `world` processes with torchrun's environment; gives their exit codes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = [
        start_process(
            function,
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(world)
    ]
    for process in started:
        process.join(timeout=60)
        if process.is_alive():
            process.kill()
    return [process.exitcode for process in started]


@pytest.fixture(scope="session")
def tiny() -> SimpleNamespace:
    """The helpers of this file, for tests that cannot import it."""
    return SimpleNamespace(
        config=tiny_config,
        run=run_tiny,
        at_table=run_at_table,
        records=records,
        start=start_process,
        processes=run_processes,
        model=MODEL,
        train=TRAIN,
    )
