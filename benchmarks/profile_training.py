"""Profile an update on the GPU, kernel by kernel, with and without the fast paths.

    python benchmarks/profile_training.py DATA [--branches 3] [--tokens 4096] [--json FILE]

Each path trains for a few updates under PyTorch's profiler. For an update, the table shows the
kernels launched, the time in them by kind, and the wall-clock time, which for small models is
mostly launch latency unless the update is captured. On a CPU, the table shows operators instead.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from multibranch.data import PreparedData
from multibranch.nn.plainly import use_reference
from multibranch.training import Config, DataConfig, ModelConfig, TrainConfig, Trainer
from origin import origin

WARM_UP, PROFILED = 12, 10
PATHS: dict[str, dict[str, Any]] = {
    "eager, padded attention": {"compile": False, "reference": True},
    "eager, our kernels": {"compile": False},
    "captured, padded attention": {"reference": True},
    "captured, our kernels": {},
}
# Kinds of kernels by their names, the first that fits.
KINDS = {
    "our attention": r"_attention_forward|_attention_backward",
    "our loss": r"^_cross_entropy",
    "attention of PyTorch": r"flash|fmha|sdpa|efficient_attention|softmax",
    "matrix products": r"gemm|gemv|cublas|cutlass|nvjet|mm\b|matmul|sm90_xmma|addmm|bmm",
    "Adam": r"adam|multi_tensor|foreach",
    "fused by the compiler": r"^triton_|^cpp_fused",
    "copies and fills": r"memcpy|memset|copy|fill|cat",
    "embedding": r"embedding|index",
}


def measure(name: str, data: str, args: argparse.Namespace) -> dict[str, Any]:
    """The profile of one path."""
    settings = dict(PATHS[name])
    reference = settings.pop("reference", False)
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            data=DataConfig(folder=data),
            model=ModelConfig(
                width=args.width,
                hidden=args.hidden,
                branches=args.branches,
                drop_branch=0.3,
                encoder_layers=args.layers,
                decoder_layers=args.layers,
            ),
            train=TrainConfig(
                output=str(Path(folder) / "run"),
                tokens=args.tokens,
                max_updates=WARM_UP + PROFILED,
                validate_every=10**9,
                log_every=10**9,
                device=args.device,
                tensorboard=False,
                **settings,
            ),
        )
        trainer = Trainer(config, PreparedData.open(data), quiet=True)
        with use_reference() if reference else nullcontext():
            events, clock = _profiled(trainer, args.device)
    return {"name": name, "milliseconds": clock, **_summary(events, args.device)}


def _profiled(trainer: Trainer, device: str) -> tuple[Any, float]:
    """The events of PROFILED updates, and the milliseconds of one on the clock, unprofiled."""
    spans: dict[str, Any] = {}
    update = trainer._update
    half = WARM_UP + PROFILED // 2

    def watched() -> None:
        if trainer.progress.update == WARM_UP:
            _wait(device)
            spans["begin"] = time.perf_counter()
        if trainer.progress.update == half:
            _wait(device)
            spans["clock"] = 1000 * (time.perf_counter() - spans["begin"]) / (half - WARM_UP)
            activities = [ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU]
            spans["profiler"] = profile(activities=activities)
            spans["profiler"].start()
        update()

    trainer._update = watched  # type: ignore[method-assign]
    trainer._validate = lambda: None  # type: ignore[method-assign]
    trainer._set_up()
    trainer._epochs()
    _wait(device)
    spans["profiler"].stop()
    return spans["profiler"].key_averages(), spans["clock"]


def _summary(events: Any, device: str) -> dict[str, Any]:
    updates = PROFILED - PROFILED // 2
    kinds: dict[str, float] = {}
    calls = 0
    kernels_seen = []
    for event in events:
        spent = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        if not spent or event.key.startswith(("cuda", "Activity", "Profiler")):
            continue
        kind = next((k for k, names in KINDS.items() if re.search(names, event.key, re.I)), "other")
        kinds[kind] = kinds.get(kind, 0.0) + spent / 1000 / updates
        calls += event.count
        kernels_seen.append((spent / 1000 / updates, event.count / updates, event.key[:80]))
    return {
        "kernels_an_update": calls / updates,
        "milliseconds_in_kernels": sum(kinds.values()),
        "by_kind": {k: round(v, 4) for k, v in sorted(kinds.items(), key=lambda item: -item[1])},
        "longest": [
            {"milliseconds": round(spent, 4), "calls": count, "name": key}
            for spent, count, key in sorted(kernels_seen, reverse=True)[:20]
        ],
    }


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def table(results: list[dict[str, Any]]) -> str:
    lines = []
    for result in results:
        if "error" in result:
            lines.append(f"{result['name']}: {result['error']}")
            continue
        lines.append(
            f"{result['name']}: {result['milliseconds']:.2f} ms an update, "
            f"{result['milliseconds_in_kernels']:.2f} ms of them in "
            f"{result['kernels_an_update']:.0f} kernels"
        )
        lines += [f"  {spent:8.3f} ms  {kind}" for kind, spent in result["by_kind"].items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="a prepared folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--branches", type=int, default=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--only", nargs="*", help="paths whose names contain one of these")
    parser.add_argument("--json", type=Path, help="where to write the results")
    args = parser.parse_args()
    names = [n for n in PATHS if not args.only or any(part in n for part in args.only)]
    results: list[dict[str, Any]] = []
    for name in names:
        try:
            results.append(measure(name, args.data, args))
        except Exception as error:
            results.append({"name": name, "error": f"{type(error).__name__}: {error}"[:500]})
    record = {
        **origin(args.device),
        "results": results,
    }
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
