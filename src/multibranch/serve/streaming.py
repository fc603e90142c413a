"""A long document as a stream: sentence after sentence, each line JSON, as they are translated."""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from multibranch.decoding import Hypothesis
from multibranch.errors import UserError
from multibranch.serve.batching import Closed, QueueFull
from multibranch.serve.engine import Translation
from multibranch.serve.guard import STOPPING
from multibranch.serve.service import Service, TooLong, since
from multibranch.text.sentences import SentenceSplitter, halves, paragraphs

AHEAD = 16  # sentences of one document that are in the queue at a time
Shape = Callable[[list[Hypothesis]], dict[str, Any]]


class Document:
    """The translation of one document, line by line of NDJSON.

    Few of its sentences are in the queue at a time, so that a reader who is slow, or goes away,
    costs little; and however many documents there are, half of the queue is left to others.
    """

    def __init__(self, service: Service, text: str, key: Translation, shape: Shape) -> None:
        self._service, self._key, self._shape = service, key, shape
        self._text = text
        self._parts = self._split()
        self._begun = time.monotonic()
        self._running: deque[tuple[dict[str, Any], asyncio.Task[list[Hypothesis]]]] = deque()

    async def begin(self) -> None:
        """Put the first sentence into the queue, so that a full one can still be answered 503."""
        self._service.batcher.admit(1)
        self._service.batcher.release(1)
        await self._start_more(1)

    async def lines(self) -> AsyncIterator[bytes]:
        """Every sentence with its translations, in order, then the end."""
        count = failed = 0
        error: str | None = None
        try:
            await self._start_more(AHEAD)
            while self._running:
                said, task = self._running[0]
                try:
                    said |= self._shape(await task)
                except UserError as wrong:
                    said["error"] = str(wrong)
                    failed += 1
                self._running.popleft()
                yield _line(said)
                await asyncio.sleep(0)  # whoever has gone is noticed before more is written
                count += 1
                await self._start_more(AHEAD)
        except TooLong as late:
            self._service.metrics.timed_out.add()  # once, though all that wait may be late
            error = str(late)
        except Closed:
            error = STOPPING
        finally:
            for _, task in self._running:
                task.cancel()
            await asyncio.gather(*(task for _, task in self._running), return_exceptions=True)
        end: dict[str, Any] = {"done": error is None, "lines": count, "failed": failed}
        end["seconds"] = since(self._begun)
        yield _line(end if error is None else {**end, "error": error})

    async def _start_more(self, ahead: int) -> None:
        while len(self._running) < ahead:
            said = await anext(self._parts, None)
            if said is None:
                return
            task = asyncio.ensure_future(self._admitted(said["source"]))
            self._running.append((said, task))

    async def _split(self) -> AsyncIterator[dict[str, Any]]:
        """Where every sentence stands, and what it is; those too long for the model in parts."""
        split = SentenceSplitter(self._service.engine.text.settings.source)
        number = 0
        for place, paragraph in enumerate(paragraphs(self._text), start=1):
            for sentence in await self._service.in_thread(partial(split, paragraph)):
                number += 1
                said = {"paragraph": place, "sentence": number}
                rest, part = [sentence], 0
                while rest:
                    piece = rest.pop()
                    cut = None
                    if not await self._fits(piece):
                        cut = await self._service.in_thread(partial(halves, piece))
                    if cut is not None:
                        rest += reversed(cut)
                        continue
                    part += 1
                    if rest or part > 1:
                        yield {**said, "part": part, "source": piece}
                    else:
                        yield {**said, "source": piece}

    async def _fits(self, text: str) -> bool:
        limits = self._service.limits
        if len(text) > limits.characters:
            return False
        [source] = await self._service.encode([text])
        return len(source) - 1 <= limits.tokens

    async def _admitted(self, text: str) -> list[Hypothesis]:
        """Translate; where there is no room, wait, for the answer has begun already."""
        limits, batcher = self._service.limits, self._service.batcher
        until = time.monotonic() + limits.seconds
        while True:
            if batcher.admitted < max(1, limits.queue // 2):
                with suppress(QueueFull):
                    return (await self._service.translate([text], self._key))[0]
            if time.monotonic() > until:
                raise TooLong("the service had no room for this document in time")
            await asyncio.sleep(0.05)


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said, ensure_ascii=False).encode("utf-8", errors="replace") + b"\n"
