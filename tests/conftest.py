"""What every test shares: one thread a worker, and the optional folder of real corpora."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora that may lie beside the project; without it such tests skip."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no real corpora beside the project (../shared/data)")
    return folder
