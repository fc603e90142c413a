"""Which device a setting means, what it is called, and what is said of one that is none."""

from pathlib import Path

import pytest
import torch

from multibranch.device import choose_device, device_name
from multibranch.errors import UserError


@pytest.mark.parametrize("device", ["tpu", "meta", "mps", "gpu:1"])
def test_a_device_that_is_none_is_an_error_that_names_the_option(device: str) -> None:
    with pytest.raises(UserError, match=f"--device: '{device}' is no device here: choose auto"):
        choose_device(device)
    with pytest.raises(UserError, match=f"train.device: '{device}' is no device"):
        choose_device(device, option="train.device")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UserError, match="no GPU can be seen"):
        choose_device("cuda")
    assert choose_device("auto") == torch.device("cpu")
    assert choose_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (
            "processor\t: 0\nmodel name\t: Some CPU 2 GHz\ncache size\t: 9 KB\n",
            "Some CPU 2 GHz",
        ),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", "unknown riscv"),  # no name there
        (None, "unknown riscv"),  # not Linux
    ],
)
def test_a_processor_is_named_where_linux_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, name: str
) -> None:
    if told is not None:
        (tmp_path / "cpuinfo").write_text(told)
    asked: list[str] = []
    monkeypatch.setattr(
        "multibranch.device.Path", lambda path: asked.append(path) or tmp_path / "cpuinfo"
    )
    monkeypatch.setattr("platform.machine", lambda: "riscv")
    assert device_name("cpu") == name
    assert asked == ["/proc/cpuinfo"]
