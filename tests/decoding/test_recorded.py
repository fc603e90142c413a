"""Steps that are recorded once and replayed: what a CUDA graph does, done here on a CPU.

The recorder notes every operator call of one step and later repeats the calls on the same tensors,
as a CUDA graph repeats kernels. Whatever the step reads from Python, or asks of values, would be
frozen at what it was, and the results would differ from those of steps that run as they are.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import reference_decoding as reference
from multibranch.decoding import Ensemble, SearchOptions, generate
from multibranch.nn.stepper import Stepper


class Tape(TorchDispatchMode):
    """Notes the operators that run inside it; refuses those that would make the host wait."""

    WAITING = {"_local_scalar_dense", "nonzero", "is_nonzero", "item", "masked_select"}

    def __init__(self) -> None:
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        assert operator.overloadpacket.__name__ not in self.WAITING, operator
        output = operator(*args, **(kwargs or {}))
        self.calls.append((operator, args, kwargs or {}, output))
        return output

    def replay(self) -> None:
        new = {}
        swap = lambda value: new.get(id(value), value)  # noqa: E731
        for operator, args, kwargs, output in self.calls:
            again = operator(*tree_map(swap, args), **tree_map(swap, kwargs))
            for old, value in zip(tree_flatten(output)[0], tree_flatten(again)[0]):
                if isinstance(old, torch.Tensor):
                    new[id(old)] = value


class TapeRecorder:
    """As a capture does, it leaves all tensors as they were before the step."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, step):
        search = step.__self__
        kept = {name: tensor.clone() for name, tensor in self._tensors(search)}
        with Tape() as tape:
            step()
        for name, tensor in self._tensors(search):
            tensor.copy_(kept[name])
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            tape.replay()

        return replay

    @staticmethod
    def _tensors(search):
        for name in (*search.state, "number"):
            yield name, getattr(search, name)
        for number, cache in enumerate(search.caches):
            for name in ("slots", "place", "_ancestry"):
                yield f"{number}.{name}", getattr(cache, name)
            for place, layer in enumerate(cache.layers):
                yield f"{number}.{place}.key", layer.key
                yield f"{number}.{place}.value", layer.value


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(beam=4, n_best=2, length_penalty=1.2, max_length=30),
        SearchOptions(beam=3, length_penalty=-0.5, max_length=24, min_length=2),
        SearchOptions(beam=3, max_length=40, repetition_penalty=1.5, no_repeat_ngram=2),
        SearchOptions(beam=1, max_length=30),
        SearchOptions(sample=True, n_best=3, top_k=5, top_p=0.9, max_length=30),
    ],
    ids=["beam", "negative penalty", "repetitions", "greedy", "sampling"],
)
def test_replayed_steps_find_what_steps_find(options):
    models = Ensemble([Stepper(reference.random_model(seed, vocabulary=16)) for seed in (1, 2)])
    sources = reference.random_sources(9, 14, vocabulary=16)
    prefixes = [tuple(source[:2]) if len(source) > 3 else () for source in sources]
    plain = generate(models, sources, options, prefixes=prefixes)
    recorder = TapeRecorder()
    replayed = generate(models, sources, options, prefixes=prefixes, recorder=recorder)
    assert recorder.recorded >= 1
    assert recorder.replayed >= 3 * recorder.recorded
    for ours, theirs in zip(replayed, plain):
        assert [h.ids for h in ours] == [h.ids for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs])
        assert [h.unknowns for h in ours] == [h.unknowns for h in theirs]
