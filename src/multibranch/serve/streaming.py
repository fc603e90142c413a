"""A long document as a stream: sentence after sentence, each line JSON, as they are translated."""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from multibranch.decoding import Hypothesis
from multibranch.errors import UserError
from multibranch.serve.batching import Closed, QueueFull
from multibranch.serve.engine import Translation
from multibranch.serve.service import Service, TooLong, since
from multibranch.text.sentences import SentenceSplitter, halves, paragraphs

AHEAD = 16  # sentences of one document that are in the queue at a time
Shape = Callable[[list[Hypothesis]], dict[str, Any]]


class Document:
    """The translation of one document, line by line of NDJSON.

    Few of its sentences are in the queue at a time: a book leaves room for other clients, and a
    reader who is slow, or goes away, costs little.
    """

    def __init__(self, service: Service, text: str, key: Translation, shape: Shape) -> None:
        self._service, self._key, self._shape = service, key, shape
        split = SentenceSplitter(service.engine.text.settings.source)
        self._sentences: Iterator[tuple[int, str]] = (
            (number, sentence)
            for number, paragraph in enumerate(paragraphs(text), start=1)
            for sentence in split(paragraph)
        )
        self._begun = time.monotonic()
        self._running: deque[tuple[int, str, asyncio.Task[list[Hypothesis]]]] = deque()

    async def begin(self) -> None:
        """Put the first sentence into the queue, so that a full one can still be answered 503."""
        first = next(self._sentences, None)
        if first is not None:
            self._service.batcher.admit(1)
            self._service.batcher.release(1)
            self._start(*first)

    async def lines(self) -> AsyncIterator[bytes]:
        """Every sentence with its translations, in order, then the end."""
        count = failed = 0
        error: str | None = None
        try:
            self._start_more()
            while self._running:
                paragraph, source, task = self._running[0]
                count += 1
                said: dict[str, Any] = {"paragraph": paragraph, "sentence": count, "source": source}
                try:
                    said |= self._shape(await task)
                except UserError as wrong:
                    said["error"] = str(wrong)
                    failed += 1
                self._running.popleft()
                yield _line(said)
                self._start_more()
        except TooLong as late:
            error = str(late)
        except Closed:
            error = "the service is stopping"
        finally:
            for _, _, task in self._running:
                task.cancel()
            await asyncio.gather(*(task for _, _, task in self._running), return_exceptions=True)
        end: dict[str, Any] = {"done": error is None, "sentences": count, "failed": failed}
        end["seconds"] = since(self._begun)
        yield _line(end if error is None else {**end, "error": error})

    def _start_more(self) -> None:
        while len(self._running) < AHEAD:
            following = next(self._sentences, None)
            if following is None:
                return
            self._start(*following)

    def _start(self, paragraph: int, sentence: str) -> None:
        task = asyncio.ensure_future(self._translate(sentence))
        self._running.append((paragraph, sentence, task))

    async def _translate(self, sentence: str) -> list[Hypothesis]:
        """One sentence, cut into pieces where it is too long for the model."""
        pieces = await self._pieces(sentence)
        found = []
        for piece in pieces:
            found.append((await self._admitted(piece))[0])
        return found[0] if len(found) == 1 else [_joined(found)]

    async def _pieces(self, sentence: str) -> list[str]:
        limits = self._service.limits
        if len(sentence) <= limits.characters:
            [source] = await self._service.encode([sentence])
            if len(source) - 1 <= limits.tokens:
                return [sentence]
        cut = halves(sentence)
        if cut is None:
            raise UserError(
                f"a word of {len(sentence):,} characters is longer than {limits.tokens} tokens"
            )
        return [piece for half in cut for piece in await self._pieces(half)]

    async def _admitted(self, text: str) -> list[list[Hypothesis]]:
        """Translate; where the queue is full, wait, for the answer has begun already."""
        until = time.monotonic() + self._service.limits.seconds
        while True:
            try:
                return await self._service.translate([text], self._key)
            except QueueFull:
                if time.monotonic() > until:
                    raise TooLong("the service had no room for this document in time") from None
                await asyncio.sleep(0.05)


def _joined(found: list[list[Hypothesis]]) -> Hypothesis:
    """The best translations of a sentence's pieces as one."""
    best = [hypotheses[0] for hypotheses in found if hypotheses]
    total = sum(one.log_probability for one in best)
    return Hypothesis(
        tuple(number for one in best for number in one.ids),
        sum(one.score for one in best) / max(1, len(best)),
        total,
        text=" ".join(one.text for one in best if one.text),
    )


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said, ensure_ascii=False).encode("utf-8", errors="replace") + b"\n"
