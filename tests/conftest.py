"""What every test shares: one thread a worker, Ctrl-C, and the optional folder of real corpora."""

import signal
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora that may lie beside the project; without it such tests skip."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no real corpora beside the project (../shared/data)")
    return folder
