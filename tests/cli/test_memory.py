"""Too little memory is a line for people; other errors of PyTorch are mistakes of ours."""

import pytest
import torch

from multibranch.cli import demo, main


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_too_little_memory_is_one_line(error, monkeypatch, capsys):
    def fail(args):
        raise error

    monkeypatch.setattr(demo, "run", fail)
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == (
        "multibranch demo: there is not enough memory for this: make the model, the beam or the "
        "batches smaller\n"
    )


def test_a_mistake_of_ours_is_not_hidden(monkeypatch):
    def fail(args):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(demo, "run", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        main(["demo"])
