"""Measure the HTTP service: latency at 1, 8 and 64 clients, errors, and memory over the run.

    python benchmarks/serving.py --model runs/mat --source test.de --json serving.json
    python benchmarks/serving.py --model exported --engine ctranslate2 --source test.de

Starts `multibranch serve` as a separate process with its default options. For each number of
--clients, that many clients send one sentence after another for --seconds. A client that gets a 503
waits as long as Retry-After says. The clients share one process with an event loop, on the same
cores as the service. Memory is the service's resident memory, read every second; its growth
compares the medians of the last and the first third of a run.

The exit status is 1 if any answer was neither 200 nor 503.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from origin import origin


def main() -> int:
    args = _arguments()
    lines = [line.strip() for line in Path(args.source).read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line][: args.sentences]
    service = subprocess.Popen(
        [sys.executable, "-m", "multibranch", "serve", args.model, "--engine", args.engine]
        + ["--port", "0", "--quiet", *args.serve_options],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address = _address(service)
        rows = [
            asyncio.run(_campaign(address, service.pid, lines, clients, args))
            for clients in args.clients
        ]
        with urllib.request.urlopen(f"{address}/metrics") as answer:
            metrics = answer.read().decode()
    finally:
        service.send_signal(signal.SIGTERM)
        status = service.wait(60)
    result = {
        **origin("cpu"),
        "model": args.model,
        "engine": args.engine,
        "sentences": len(lines),
        "words_a_sentence": round(statistics.mean(len(line.split()) for line in lines), 1),
        "seconds": args.seconds,
        "cores": os.cpu_count(),
        "serve_options": args.serve_options,
        "sentences_a_batch": _mean_batch(metrics),
        "exit_status": status,
        "clients": rows,
    }
    print(json.dumps(result, indent=2))
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if status == 0 and not any(row["errors"] for row in rows) else 1


def _address(service: subprocess.Popen[str]) -> str:
    assert service.stderr is not None
    said = []
    for line in service.stderr:
        said.append(line)
        found = re.search(r"http://\S+", line)
        if found:
            return found[0]
    raise SystemExit(f"the service did not start: {''.join(said)}")


async def _campaign(
    address: str, pid: int, lines: list[str], clients: int, args: argparse.Namespace
) -> dict[str, Any]:
    """So many clients for so many seconds, after a short warming up."""
    texts = itertools.cycle(lines)
    await _load(address, texts, clients, seconds=min(3.0, args.seconds / 4))
    memory: list[float] = []
    watching = asyncio.ensure_future(_watch(pid, memory))
    latencies, statuses, seconds = await _load(address, texts, clients, seconds=args.seconds)
    watching.cancel()
    third = max(1, len(memory) // 3)
    first, last = statistics.median(memory[:third]), statistics.median(memory[-third:])
    latencies.sort()
    row = {
        "clients": clients,
        "answered": statuses["200"],
        "refused_503": statuses["503"],
        "errors": {s: count for s, count in statuses.items() if s not in ("200", "503")},
        "sentences_a_second": round(statuses["200"] / seconds, 1),
        "p50_ms": round(1000 * _quantile(latencies, 0.50), 1),
        "p95_ms": round(1000 * _quantile(latencies, 0.95), 1),
        "p99_ms": round(1000 * _quantile(latencies, 0.99), 1),
        "longest_ms": round(1000 * latencies[-1], 1) if latencies else None,
        "memory_first_mb": round(first / 1e6, 1),
        "memory_last_mb": round(last / 1e6, 1),
        "memory_growth": round(last / first - 1, 4),
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


async def _load(
    address: str, texts: Iterator[str], clients: int, *, seconds: float
) -> tuple[list[float], Counter[str], float]:
    began = time.monotonic()
    latencies: list[float] = []
    statuses: Counter[str] = Counter()

    async def one() -> None:
        client = Client(address)
        while time.monotonic() - began < seconds:
            sent = time.monotonic()
            try:
                status, wait = await client.translate(next(texts))
            except (OSError, EOFError, ValueError) as error:
                statuses[type(error).__name__] += 1
                client.close()
                await asyncio.sleep(0.1)
                continue
            statuses[str(status)] += 1
            if status == 200:
                latencies.append(time.monotonic() - sent)
            else:
                await asyncio.sleep(wait)
        client.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return latencies, statuses, time.monotonic() - began


class Client:
    """One connection that stays open; written out, to leave the cores to the service."""

    def __init__(self, address: str) -> None:
        self.host, port = address.removeprefix("http://").split(":")
        self.port = int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def translate(self, text: str) -> tuple[int, float]:
        """Ask for one translation; the status, and the seconds of Retry-After."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self.host, self.port)
        reader, writer = self._streams
        body = json.dumps({"text": text}).encode()
        writer.write(
            b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).decode("latin-1")
        headers = dict(re.findall(r"^([\w-]+): (.*?)\r$", head.lower(), re.MULTILINE))
        answer = await reader.readexactly(int(headers["content-length"]))
        status = int(head.split(" ", 2)[1])
        if status == 200 and not json.loads(answer)["translations"]:
            raise ValueError("an answer without a translation")
        return status, float(headers.get("retry-after", 1))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _watch(pid: int, memory: list[float]) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    while True:
        memory.append(float(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page)
        await asyncio.sleep(1)


def _quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def _mean_batch(metrics: str) -> float:
    said = dict(re.findall(r"^multibranch_batch_sentences_(sum|count) (\S+)$", metrics, re.M))
    return round(float(said["sum"]) / float(said["count"]), 2)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a model directory or an exported folder")
    parser.add_argument("--engine", default="torch", choices=["torch", "ctranslate2"])
    parser.add_argument("--source", required=True, help="sentences to send, one a line")
    parser.add_argument("--sentences", type=int, default=1000, help="so many different ones")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each number of clients")
    parser.add_argument("--json", help="where to write the result")
    parser.add_argument(
        "serve_options", nargs="*", help="after --: options for multibranch serve, say --max-queue"
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
