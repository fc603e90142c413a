"""Kill training at random moments, again and again, and compare the final result.

    python benchmarks/resume.py [--kills 25] [--updates 120] [--seed 1] [--json FILE]

The command `multibranch train` runs once to its end, undisturbed. Then it runs in another folder
and is killed (SIGKILL) at random moments after a random update is saved: during start-up, updates,
validations, and the writing of checkpoints, model directories and snapshots. The same command is
restarted until it ends by itself. The result must be the same, bit for bit: weights, Adam's
moments, position, early stopping, snapshots, model directories and records.

Other parts: SIGTERM and Ctrl-C at random moments, likewise; a worker of two under `torchrun
--max-restarts` killed, which must come back by itself; and a checkpoint damaged between two starts.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import load_file

from multibranch.data.builtin import builtin
from origin import origin

MODEL = {
    "width": 32,
    "hidden": 64,
    "heads": 4,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "branches": 3,
    "drop_branch": 0.3,
    "dropout": 0.2,
    "attention_dropout": 0.1,
}
TRAIN = {
    "tokens": 250,
    "accumulate": 2,
    "warmup": 30,
    "learning_rate": 5e-3,
    "r_drop": 0.5,
    "clip_norm": 1.0,
    "validate_every": 9,
    "average": 3,
    "patience": 100,
    "log_every": 4,
    "checkpoint_minutes": 0.01,
    "device": "cpu",
    "threads": 1,
    "tensorboard": False,
}


class Campaign:
    """Runs of one configuration, each in a folder of its own."""

    def __init__(self, place: Path, *, updates: int, seed: int) -> None:
        self.place = place
        self.updates = updates
        self.dice = random.Random(seed)
        corpus = builtin("translation", place / "data", pairs=1500, valid=40, test=20, jobs=1)
        config = {
            "data": {"folder": str(corpus)},
            "model": MODEL,
            "train": {**TRAIN, "max_updates": updates},
        }
        (place / "config.yaml").write_text(yaml.safe_dump(config))

    def start(self, name: str, *launcher: str) -> subprocess.Popen:
        """Start the command in the folder `name`."""
        words = [sys.executable, *launcher, "-m", "multibranch", "train"]
        words += [str(self.place / "config.yaml"), "--train.output", str(self.place / name)]
        log = (self.place / f"{name}.log").open("a")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.started = time.time()
        return subprocess.Popen(words, stdout=log, stderr=log, env=environment)

    def update(self, name: str) -> int:
        """The update of the newest checkpoint."""
        places = sorted((self.place / name / "resume").glob("update-*"))
        return int(places[-1].name[7:]) if places else 0

    def strike(self, name: str, process: subprocess.Popen, goal: int, number: int) -> bool:
        """Send a signal once update `goal` is saved, and a while later; False: it has ended."""
        began, records = time.monotonic(), self.place / name / "metrics.jsonl"
        at_start = self.dice.random() < 0.2  # in start and set-up; else when updates are made
        while process.poll() is None and not at_start:
            working = records.is_file() and records.stat().st_mtime > self.started
            if working and self.update(name) >= goal:
                break
            time.sleep(0.002)
        time.sleep(8 * self.dice.random() if at_start else self.dice.uniform(0, 1.5))
        if process.poll() is not None:
            return False
        process.send_signal(number)
        print(f"{name}: {time.monotonic() - began:.2f} s after its start", end=" ", flush=True)
        return True

    def disturbed(
        self, name: str, signals: Sequence[signal.Signals], strikes: int
    ) -> dict[str, Any]:
        """Disturb a run at moments spread over all of it, until it has ended; what happened."""
        goals = sorted(self.dice.randrange(int(0.95 * self.updates)) for _ in range(strikes))
        struck: list[dict[str, Any]] = []
        while True:
            process = self.start(name)
            if goals:
                number = self.dice.choice(signals)
                if self.strike(name, process, goals.pop(0), number):
                    struck.append({"signal": number.name})
                    struck[-1] |= {"status": process.wait(), "saved_update": self.update(name)}
                    print(struck[-1], flush=True)
                    if struck[-1]["status"] != 0:  # a signal may come as the run ends
                        continue
            return {"strikes": struck, "status": process.wait()}


def leavings(folder: Path) -> dict[str, Any]:
    """All that a run leaves behind, less times."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or name.startswith(("resume/", "config.yaml", ".lock")):
            continue
        found[name] = path.read_bytes()
    newest = max((folder / "resume").glob("update-*"))
    found["resume/state"] = (newest / "state.safetensors").read_bytes()
    progress = json.loads((newest / "progress.json").read_text())
    found["resume/progress"] = _without_times(progress)
    for update in progress["snapshots"]:  # beside them, some that only an older checkpoint needs
        path = folder / "resume" / "snapshots" / f"{update:08d}.safetensors"
        found[f"resume/{path.name}"] = path.read_bytes()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    found["metrics.jsonl"] = [_without_times(json.loads(line)) for line in lines]
    return found


def _without_times(record: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in record.items() if k not in ("seconds", "tokens_per_second")}


def compare(one: Path, other: Path) -> dict[str, Any]:
    """Which of the things that two runs left are not the same."""
    a, b = leavings(one), leavings(other)
    different = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
    return {"compared": len(a), "different": different, "identical": not different}


def damaged(campaign: Campaign) -> dict[str, Any]:
    """Stop a run, cut its newest checkpoint short, and let it go on."""
    process = campaign.start("damaged")
    while process.poll() is None and campaign.update("damaged") < campaign.updates // 3:
        time.sleep(0.01)
    process.kill()
    process.wait()
    newest = max((campaign.place / "damaged" / "resume").glob("update-*"))
    state = newest / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1000])
    status = campaign.start("damaged").wait()
    log = (campaign.place / "damaged.log").read_text()
    return {
        "status": status,
        "message": next(line for line in log.splitlines() if "is damaged" in line)[-80:],
        **compare(campaign.place / "reference", campaign.place / "damaged"),
    }


def workers(campaign: Campaign) -> dict[str, Any]:
    """Two processes under torchrun; one is killed, and torchrun starts both anew."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    status = campaign.start("unhurt", *launcher).wait()
    process = campaign.start("hurt", *launcher, "--max-restarts", "3")
    killed = []
    for goal in (campaign.updates // 5, campaign.updates // 2):
        while process.poll() is None and campaign.update("hurt") < goal:
            time.sleep(0.01)
        victim = campaign.dice.choice(_children(process.pid))
        os.kill(victim, signal.SIGKILL)
        killed.append({"saved_update": campaign.update("hurt")})
        print(f"hurt: {killed[-1]}", flush=True)
    hurt_status = process.wait()
    a, b = (
        load_file(campaign.place / name / "last" / "model.safetensors")
        for name in ("unhurt", "hurt")
    )
    apart = max(float((a[name] - b[name]).abs().max()) for name in a)
    return {
        "status": [status, hurt_status],
        "killed": killed,
        "resumed": (campaign.place / "hurt.log").read_text().count("resuming after update"),
        "largest_difference_of_a_weight": apart,
        "identical": apart == 0,
    }


def _children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == str(parent):
            found.append(int(status.parent.name))
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--updates", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the results")
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="resume-"))
    campaign = Campaign(place, updates=args.updates, seed=args.seed)
    began = time.monotonic()
    assert campaign.start("reference").wait() == 0
    seconds = time.monotonic() - began
    print(f"reference: {args.updates} updates in {seconds:.0f} s", flush=True)
    record: dict[str, Any] = {
        **origin("cpu"),
        "model": MODEL,
        "train": {**TRAIN, "max_updates": args.updates},
        "reference_seconds": round(seconds, 1),
    }
    for name, signals, strikes in (
        ("killed", [signal.SIGKILL], args.kills),
        ("stopped", [signal.SIGTERM, signal.SIGINT], 6),
    ):
        happened = campaign.disturbed(name, signals, strikes)
        record[name] = {**happened, **compare(place / "reference", place / name)}
        print(f"{name}: {len(happened['strikes'])} strikes, {record[name]['different']}")
    record["damaged"] = damaged(campaign)
    record["workers"] = workers(campaign)
    parts = ("killed", "stopped", "damaged", "workers")
    assert len(record["killed"]["strikes"]) >= min(20, args.kills)
    record["identical"] = all(record[part]["identical"] for part in parts)
    print(json.dumps({part: record[part]["identical"] for part in parts}))
    shutil.rmtree(place)
    if args.json:
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0 if record["identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
