"""Time decoding side by side: our beam search, `generate` of transformers, CTranslate2.

    python benchmarks/decoding.py                             random weights, multi30k or built-in
    python benchmarks/decoding.py --model runs/mat --json decoding.json
    python benchmarks/decoding.py --model runs/mat --data test.de --tokenised --device cuda

All engines run in one process, in turn, on the same weights: `generate` on the folded model as a
Marian model (benchmarks/marian.py), CTranslate2 on the folded model that multibranch.export writes.
Each pass decodes all sentences, sorted, in batches of the engine's default size, or of
--batch-tokens. The table shows the fastest of --repeat passes, because on a shared machine slower
ones measure other load. It also shows processor time, summed over threads, which other programs
affect less than wall-clock time.

With --model, the sentences are decoded for real, and the table says how many outputs equal ours.
Without it, the weights are random, with sizes from the options, and every output has the same
number of tokens, so that all engines do the same work.
"""

import argparse
import itertools
import json
import lzma
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from multibranch.decoding import Ensemble, SearchOptions, generate
from multibranch.decoding.generate import batches, default_batch_tokens, pad
from multibranch.decoding.graphs import GraphRecorder
from multibranch.decoding.translator import PRECISIONS, saved_options, unused_ids
from multibranch.device import device_name
from multibranch.directory import load_model, load_text
from multibranch.nn import MultiBranchTransformer, int8_block
from multibranch.nn.stepper import Stepper
from multibranch.text import TextPipeline, TextSettings, WordCounter, learn_bpe
from origin import command

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "multi30k-de-en" / "test.de.xz"


@dataclass
class Task:
    """What every engine is given."""

    model: MultiBranchTransformer
    text: TextPipeline
    sources: list[list[int]]
    options: SearchOptions
    trained: bool
    batch_tokens: int | None
    device: torch.device


@dataclass
class Engine:
    """Something that decodes all sources: ids without the end, one list a source."""

    name: str
    run: Callable[[], list[list[int]]]
    batch_tokens: int
    seconds: list[float] = field(default_factory=list)  # on the clock, by pass
    processor: list[float] = field(default_factory=list)  # of all threads, by pass
    outputs: list[list[int]] = field(default_factory=list)


# -- The engines ---------------------------------------------------------------------------------


def ours(task: Task, *, precision: str, graphs: bool) -> Engine:
    models = Ensemble([Stepper(task.model, **PRECISIONS[precision])])
    recorder = GraphRecorder(models.device) if graphs and task.device.type == "cuda" else None

    def run() -> list[list[int]]:
        found = generate(
            models,
            task.sources,
            task.options,
            batch_tokens=task.batch_tokens,
            recorder=recorder,
        )
        if task.device.type == "cuda":
            torch.cuda.synchronize()
        return [list(hypotheses[0].ids) if hypotheses else [] for hypotheses in found]

    name = f"multibranch, {precision}" + (", graphs" if recorder else "")
    return Engine(name, run, task.batch_tokens or default_batch_tokens(models, task.options))


def transformers_generate(task: Task) -> Engine:
    """`generate`, with the stopping rule that is ours: done when `beam` hypotheses have ended."""
    from transformers.utils import logging

    from marian import marian_twin

    logging.set_verbosity_error()
    twin = marian_twin(task.model.cpu()).to(task.device)
    options = task.options
    never = sorted({0, 1, 3, *options.never})
    batch_tokens = task.batch_tokens or (1024 if task.device.type == "cpu" else 16384)

    @torch.inference_mode()
    def run() -> list[list[int]]:
        found: list[list[int]] = [[] for _ in task.sources]
        for members in batches(list(map(len, task.sources)), batch_tokens):
            source = pad([task.sources[member] for member in members]).to(task.device)
            longest = options.longest(source.shape[1] - 1)
            output = twin.generate(
                source,
                attention_mask=(source != 1).long(),
                num_beams=options.beam,
                length_penalty=options.length_penalty,
                early_stopping=True,
                do_sample=False,
                min_new_tokens=options.min_length + 1 if options.min_length else None,
                max_new_tokens=longest + 1,
                suppress_tokens=never,
            )
            for member, ids in zip(members, output.tolist()):
                found[member] = _content(ids[1:])
        return found

    return Engine("transformers generate, float32", run, batch_tokens)


def ctranslate2(task: Task, folder: Path, quantization: str) -> Engine:
    from multibranch.export.ctranslate2 import export_ctranslate2
    from multibranch.export.engine import BATCH_TOKENS, CTranslate2Engine

    place = export_ctranslate2(
        task.model.cpu(), task.text, folder / quantization, quantization=quantization
    )
    engine = CTranslate2Engine.load(place, device=task.device.type)
    options, batch_tokens = task.options, task.batch_tokens or BATCH_TOKENS

    def run() -> list[list[int]]:
        if task.trained:
            found = engine.search(task.sources, options, batch_tokens=batch_tokens)
            return [list(hypotheses[0].ids) for hypotheses in found]
        vocabulary = task.text.tokenizer("source")
        tokens = [[vocabulary.id_to_token(n) for n in ids[:-1]] for ids in task.sources]
        results = engine.engine.translate_batch(
            tokens,
            beam_size=options.beam,
            length_penalty=options.length_penalty,
            max_batch_size=batch_tokens,
            batch_type="tokens",
            min_decoding_length=options.min_length,
            max_decoding_length=options.min_length,
        )
        target = task.text.tokenizer("target").get_vocab()
        return [[target[token] for token in one.hypotheses[0]] for one in results]

    return Engine(f"CTranslate2, {quantization}", run, batch_tokens)


def _content(ids: Sequence[int]) -> list[int]:
    """Up to the end of sentence."""
    kept: list[int] = []
    for number in ids:
        if number in (1, 2):
            break
        kept.append(number)
    return kept


# -- What is decoded -----------------------------------------------------------------------------


def read_sentences(path: Path | None) -> tuple[list[str], str]:
    """Lines of a file, .xz or not; without one multi30k's test set, or the built-in corpus's."""
    if path is None and SHARED.is_file():
        path = SHARED
    if path is not None:
        content = path.read_bytes()
        if path.suffix == ".xz":
            content = lzma.decompress(content)
        return content.decode().rstrip("\n").split("\n"), f"{path.parent.name}/{path.name}"
    from multibranch.data import PreparedData
    from multibranch.data.builtin import builtin

    with tempfile.TemporaryDirectory() as folder:
        data = PreparedData.open(builtin("translation", Path(folder) / "corpus", pairs=2000))
        return data.lines("test", "source"), "the built-in corpus"


def make_task(args: argparse.Namespace, lines: list[str]) -> Task:
    device = torch.device(args.device)
    if args.model is not None:
        model, text = load_model(args.model), load_text(args.model)
        sources = text.encode(lines, side="source", tokenised=args.tokenised)
        said = {**saved_options(args.model), "beam": args.beam}
        if args.length_penalty is not None:
            said["length_penalty"] = args.length_penalty
        options = SearchOptions(**said, never=unused_ids(text, text.target_size))
    else:
        text = _own_vocabulary(lines, args.vocabulary)
        model = _random_model(args, text.target_size)
        sources = text.encode(lines, side="source", tokenised=True)
        length = int(statistics.median(map(len, sources)))
        options = SearchOptions(beam=args.beam, min_length=length, max_length=length)
    model = model.to(device).requires_grad_(False)
    return Task(model, text, sources, options, args.model is not None, args.batch_tokens, device)


def _own_vocabulary(lines: list[str], size: int) -> TextPipeline:
    """A vocabulary learned from the sentences themselves, for sources of realistic lengths.

    A test set alone gives fewer entries than are asked for: made-up words, rarer than all others,
    fill it up.
    """
    counter = WordCounter()
    counter.update({word: 9 * n for word, n in _words(lines).items()})
    letters = "abdefgiklmnorstu"
    made_up = ("".join(word) for word in itertools.product(letters, repeat=5))
    counter.update(dict.fromkeys(itertools.islice(made_up, 0, None, 37), 2))
    tokenizer = learn_bpe(counter, size=size)
    return TextPipeline(TextSettings(kind="tokenised-bpe", source="de", target="en"), tokenizer)


def _words(lines: list[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.split())


def _random_model(args: argparse.Namespace, vocabulary: int) -> MultiBranchTransformer:
    torch.manual_seed(1)
    return MultiBranchTransformer(
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        width=args.width,
        hidden=args.hidden,
        heads=args.heads,
        encoder_layers=args.layers,
        decoder_layers=args.layers,
        branches=args.branches,
    ).eval()


# -- The measurement -----------------------------------------------------------------------------


def engines(args: argparse.Namespace, task: Task, folder: Path) -> list[Engine]:
    """Those that are asked for, can be had, and run here."""
    wanted = args.only or ["ours", "generate", "ctranslate2"]
    made = []
    for name in wanted:
        try:
            if name == "ours":
                made += [ours(task, precision=p, graphs=False) for p in args.precision]
                if args.cuda_graphs:
                    made += [ours(task, precision=p, graphs=True) for p in args.precision]
            elif name == "generate":
                made.append(transformers_generate(task))
            else:
                made += [ctranslate2(task, folder, q) for q in args.quantization]
        except ImportError as error:
            print(f"left out {name}: {error}", file=sys.stderr)
    return made


def measure(task: Task, found: list[Engine], repeat: int) -> None:
    """In turn, so that whatever else the machine does meets all engines alike."""
    whole = task.sources
    task.sources = whole[:8]
    for engine in found:  # whatever the first call of an engine sets up is not timed
        engine.run()
    task.sources = whole
    for number in range(repeat):
        for engine in found:
            start, used = time.perf_counter(), time.process_time()
            engine.outputs = engine.run()
            engine.seconds.append(time.perf_counter() - start)
            engine.processor.append(time.process_time() - used)
            said = f"{engine.seconds[-1]:.2f} s, {engine.processor[-1]:.2f} s of processor"
            print(f"pass {number + 1}: {engine.name}: {said}", file=sys.stderr)


def rows(task: Task, found: list[Engine]) -> list[dict[str, Any]]:
    reference = next((e for e in found if e.name.startswith("transformers")), None)
    table = []
    for engine in found:
        best = min(engine.seconds)
        tokens = sum(len(ids) + 1 for ids in engine.outputs)
        same = sum(a == b for a, b in zip(engine.outputs, found[0].outputs))
        table.append(
            {
                "engine": engine.name,
                "batch_tokens": engine.batch_tokens,
                "seconds": round(best, 3),
                "sentences_a_second": round(len(task.sources) / best, 1),
                "tokens_a_second": round(tokens / best, 1),
                "times_generate": (
                    None if reference is None else round(min(reference.seconds) / best, 2)
                ),
                "processor_seconds": round(min(engine.processor), 3),
                "times_generate_by_processor": (
                    None
                    if reference is None
                    else round(min(reference.processor) / min(engine.processor), 2)
                ),
                "outputs_as_ours": f"{same} of {len(task.sources)}",
                "passes": [round(seconds, 3) for seconds in engine.seconds],
            }
        )
    return table


def main() -> None:
    args = _arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    path = None if args.data is None else Path(args.data)
    lines, corpus = read_sentences(path)
    task = make_task(args, [line for line in lines if line.strip()])
    task.sources = task.sources[: args.sentences]
    with tempfile.TemporaryDirectory() as folder:
        found = engines(args, task, Path(folder))
        measure(task, found, args.repeat)
    table = rows(task, found)
    said = {name: task.model.settings[name] for name in ("branches", "width", "hidden", "heads")}
    layers = f"{task.model.settings['encoder_layers']}+{task.model.settings['decoder_layers']}"
    result = {
        "command": command(),
        "corpus": corpus,
        "sentences": len(task.sources),
        "source_tokens": sum(map(len, task.sources)),
        "weights": str(args.model) if task.trained else "random, outputs of one length",
        "model": {**said, "layers": layers, "vocabulary": task.text.target_size},
        "parameters": sum(p.numel() for p in task.model.parameters()),
        "beam": task.options.beam,
        "length_penalty": task.options.length_penalty,
        "output_tokens": task.options.min_length if not task.trained else None,
        "machine": _machine(task.device),
        "int8_step": "one call a block" if int8_block.runs_here() else "one call an operation",
        "engines": table,
    }
    _print(result)
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _machine(device: torch.device) -> dict[str, Any]:
    return {
        "device": device_name(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = (
        f"{result['sentences']:,} sentences of {result['corpus']}, beam {result['beam']}, "
        f"{result['weights']}"
    )
    table = Table(title=title, title_justify="left")
    names = ("engine", "seconds", "processor", "sentences/s", "tokens/s", "× generate", "× by p.")
    for name in (*names, "as ours"):
        table.add_column(name, justify="left" if name == "engine" else "right")
    for row in result["engines"]:
        times = [row["times_generate"], row["times_generate_by_processor"]]
        table.add_row(
            row["engine"],
            f"{row['seconds']:.2f}",
            f"{row['processor_seconds']:.2f}",
            f"{row['sentences_a_second']:,.1f}",
            f"{row['tokens_a_second']:,.0f}",
            *("–" if number is None else f"{number:.2f}" for number in times),
            row["outputs_as_ours"],
        )
    Console(width=max(120, Console().width)).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a model directory; random weights without it")
    parser.add_argument("--data", help="a file of sentences, plain or .xz")
    parser.add_argument("--tokenised", action="store_true", help="the sentences are tokenised")
    parser.add_argument("--sentences", type=int, default=10**9, help="at most so many")
    parser.add_argument("--only", nargs="+", choices=["ours", "generate", "ctranslate2"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=list(PRECISIONS),
        help="of ours; float32, and on a CPU int8, unless given",
    )
    parser.add_argument("--quantization", nargs="+", default=["float32", "int8"])
    parser.add_argument("--cuda-graphs", action="store_true", help="also with replayed steps")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--length-penalty", type=float)
    parser.add_argument(
        "--batch-tokens", type=int, help="source tokens of a batch, padding counted"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", help="where to write the result")
    parser.add_argument("--vocabulary", type=int, default=10000)
    parser.add_argument("--branches", type=int, default=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=6)
    args = parser.parse_args()
    args.precision = args.precision or ["float32", *(["int8"] if args.device == "cpu" else [])]
    return args


if __name__ == "__main__":
    main()
