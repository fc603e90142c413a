"""Which device a setting means, and what is said of one that is none."""

import pytest
import torch

from multibranch.device import choose_device
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
