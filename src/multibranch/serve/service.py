"""From texts to translations for one request: limits, the queue, timeouts, clients that go away."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from multibranch.decoding import Hypothesis
from multibranch.decoding.attention import Inspection
from multibranch.errors import UserError, counted
from multibranch.serve.batching import Batcher, Work
from multibranch.serve.engine import Engine, Examination, Translation
from multibranch.serve.metrics import Metrics
from multibranch.serve.options import Limits, ServeOptions

Result = TypeVar("Result")
_SHORT = 1000  # characters whose encoding takes less than handing them to a thread


class TooLong(Exception):
    """A request took longer than it may."""


class Service:
    """The engine, its queue and its limits. Methods are called in the event loop."""

    def __init__(self, engine: Engine, options: ServeOptions) -> None:
        self.engine, self.options = engine, options
        self.limits: Limits = options.limits
        self.metrics = Metrics()
        self.batcher = Batcher(
            engine.run,
            capacity=self.limits.queue,
            batch_cost=engine.batch_cost,
            wait=options.batch_milliseconds / 1000,
            metrics=self.metrics,
        )
        # One thread: encoding is Python, and more of them would only share its lock.
        self._encoding = ThreadPoolExecutor(max_workers=1, thread_name_prefix="encoding")
        waiting = ("Texts that wait or are being translated.", lambda: self.batcher.admitted)
        self.metrics.gauges["multibranch_queue_sentences"] = waiting

    def close(self) -> None:
        """Finish what was submitted and end the threads."""
        self.batcher.close(timeout=self.options.grace_seconds)
        self._encoding.shutdown(wait=False, cancel_futures=True)

    # -- What is asked ----------------------------------------------------------------------

    def translation(
        self,
        *,
        n_best: int,
        beam: int | None,
        length_penalty: float | None,
        branches: Sequence[int] | None,
    ) -> Translation:
        """The key for a request, or a UserError for what cannot be asked."""
        options = self.engine.options(
            n_best=n_best, **self._search(beam=beam, length_penalty=length_penalty)
        )
        return Translation(options, self.engine.chosen(branches))

    def examination(
        self,
        *,
        beam: int | None,
        length_penalty: float | None,
        branches: Sequence[int] | None,
        target: str | None,
    ) -> Examination:
        """The same for a request to look at attention."""
        options = self.engine.options(
            n_best=1, **self._search(beam=beam, length_penalty=length_penalty)
        )
        return Examination(options, self.engine.chosen(branches), target)

    def _search(self, **asked: Any) -> dict[str, Any]:
        if (asked["beam"] or 1) > self.limits.beam:
            raise UserError(f"the beam may be {self.limits.beam} wide at most")
        given = {name: value for name, value in asked.items() if value is not None}
        return {"beam": self.beam, **given}

    @property
    def beam(self) -> int:
        """The beam that is used unless another is asked for: the model's, as far as allowed."""
        return min(self.engine.options().beam, self.limits.beam)

    # -- What is answered -------------------------------------------------------------------

    async def translate(self, texts: Sequence[str], key: Translation) -> list[list[Hypothesis]]:
        """The hypotheses for every text, in order."""
        if len(texts) > self.limits.sentences:
            raise UserError(
                f"{len(texts)} texts are more than the {self.limits.sentences} that one request "
                "may bring; send several requests"
            )
        for number, text in enumerate(texts, start=1):
            self._check_characters(text, number, len(texts))
        self.batcher.admit(len(texts))
        try:
            async with _InTime(self.limits.seconds):
                sources = await self.encode(texts)
                for number, source in enumerate(sources, start=1):
                    self._check_tokens(source, self.limits.tokens, number, len(texts))
                found = await self._run(Work(key, sources, [len(source) for source in sources]))
        finally:
            self.batcher.release(len(texts))
        self._count(sources, found)
        return found

    async def examine(self, text: str, key: Examination) -> Inspection:
        """A text's attention."""
        self._check_characters(text, 1, 1)
        if key.target is not None:
            self._check_characters(key.target, 1, 1)
        self.batcher.admit(1)
        try:
            async with _InTime(self.limits.seconds):
                [source] = await self.encode([text])
                if len(source) == 1:  # only its end
                    raise UserError("the text is blank: there is nothing to look at")
                self._check_tokens(source, self.limits.inspect_tokens, 1, 1)
                if key.target is not None:
                    [target] = await self.encode([key.target], side="target")
                    self._check_tokens(target, 2 * self.limits.inspect_tokens, 1, 1)
                [inspection] = await self._run(Work(key, [text], [self.engine.batch_cost]))
        finally:
            self.batcher.release(1)
        return inspection

    async def encode(self, texts: Sequence[str], *, side: str = "source") -> list[list[int]]:
        """The ids of texts: short ones at once, others in the thread for that."""
        if sum(map(len, texts)) <= _SHORT:
            return self.engine.encode(list(texts), side=side)
        return await self.in_thread(lambda: self.engine.encode(list(texts), side=side))

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Work on texts, away from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._encoding, work)

    async def _run(self, work: Work) -> list[Any]:
        # When this is cancelled, so is the work's future, and the batcher drops the work.
        return await asyncio.wrap_future(self.batcher.submit(work))

    def _count(self, sources: Sequence[Sequence[int]], found: list[list[Hypothesis]]) -> None:
        self.metrics.sentences.add(len(sources))
        self.metrics.source_tokens.add(sum(map(len, sources)))
        self.metrics.target_tokens.add(sum(len(h[0].ids) for h in found if h))

    def _check_characters(self, text: str, number: int, of: int) -> None:
        if len(text) > self.limits.characters:
            most = counted(self.limits.characters, "is", "are")
            raise UserError(
                f"{_which(number, of)} has {len(text):,} characters; "
                f"{most} the most. Send documents to /translate/stream, "
                "which splits them into sentences"
            )

    def _check_tokens(self, source: Sequence[int], most: int, number: int, of: int) -> None:
        tokens = len(source) - 1
        if tokens > most:
            raise UserError(
                f"{_which(number, of)} has {tokens:,} tokens; "
                f"{counted(most, 'is', 'are')} the most. Split it into sentences"
            )


class _InTime:
    """Within, what takes too long is cancelled and raises TooLong."""

    def __init__(self, seconds: float) -> None:
        self._timeout, self._seconds = asyncio.timeout(seconds), seconds

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await self._timeout.__aexit__(*raised)
        except TimeoutError:
            raise TooLong(
                f"this took longer than {counted(self._seconds, 'second')}; "
                "send less at once, or later"
            ) from None


class ClientGone(Exception):
    """The client does not wait for its answer any more."""


async def while_connected(work: Awaitable[Result], receive: Any) -> Result:
    """Await `work`, but cancel it and raise ClientGone as soon as the client disconnects."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _which(number: int, of: int) -> str:
    return "the text" if of == 1 else f"text {number}"


def since(began: float) -> float:
    """Seconds from `began` on the monotonic clock, to the millisecond."""
    return round(time.monotonic() - began, 3)
