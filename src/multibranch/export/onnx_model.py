"""An exported ONNX folder in onnxruntime: encode once, then step by step with a cache."""

from pathlib import Path
from typing import Any

import numpy as np

from multibranch.directory import check_folder
from multibranch.errors import UserError, needed
from multibranch.export.folder import EXTRA

FORMAT = "onnx"


class OnnxModel:
    """The graphs of a folder that `multibranch export --format onnx` wrote.

        model = OnnxModel("exported")
        cache = model.start(source)         source (b, s), padded with <pad>
        logits = model.step(ids, cache)     ids (b, t) → (b, t, V); first <s>, then what was chosen

    An encoder by itself has `states`, a classifier `logits`. Ids may be of any integer type.
    """

    def __init__(self, folder: str | Path, *, threads: int = 0) -> None:
        onnxruntime = needed("onnxruntime", install=EXTRA, purpose="Running ONNX graphs")
        folder = Path(folder)
        check_folder(folder)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.sessions = {}
        for path in sorted(folder.glob("*.onnx")):
            try:
                self.sessions[path.stem] = onnxruntime.InferenceSession(
                    str(path), options, providers=["CPUExecutionProvider"]
                )
            except Exception as error:  # onnxruntime's own kinds share no other base
                raise UserError(f"onnxruntime cannot load {path}: {error}") from None
        if not self.sessions:
            raise UserError(f"{folder} is incomplete: it has no .onnx file")

    def states(self, ids: np.ndarray) -> np.ndarray:
        """The encoder's states (b, s, d) for ids (b, s)."""
        session = self._session("encoder")
        return session.run(["states"], {session.get_inputs()[0].name: _whole(ids)})[0]

    def logits(
        self, ids: np.ndarray, mask: np.ndarray, types: np.ndarray | None = None
    ) -> np.ndarray:
        """A classifier's logits (b, labels) for ids (b, s).

        mask (b, s) is 1 at tokens; types (b, s) is 1 at those of a pair's second piece, for
        graphs that have this input.
        """
        session = self._session("classifier")
        given = {"input_ids": _whole(ids), "attention_mask": _whole(mask)}
        if self.takes_types:
            given["token_type_ids"] = _whole(np.zeros_like(ids) if types is None else types)
        return session.run(["logits"], given)[0]

    @property
    def takes_types(self) -> bool:
        """Whether a classifier's graph is told which piece of a pair a token is of."""
        inputs = self._session("classifier").get_inputs()
        return any(given.name == "token_type_ids" for given in inputs)

    def start(self, source: np.ndarray) -> dict[str, np.ndarray]:
        """The cache for decoding sources (b, s): what every step is given beside its ids."""
        encoder = self._session("encoder")
        names = [output.name for output in encoder.get_outputs()]
        cache = dict(zip(names, encoder.run(None, {"source": _whole(source)})))
        del cache["states"]
        for given in self._session("decoder").get_inputs():
            if given.name.startswith("past_"):
                heads, width = given.shape[1], given.shape[3]
                cache[given.name] = np.zeros((len(source), heads, 0, width), np.float32)
        return cache

    def step(self, ids: np.ndarray, cache: dict[str, np.ndarray]) -> np.ndarray:
        """Logits (b, t, V) after each of ids (b, t); the cache remembers them."""
        decoder = self._session("decoder")
        names = [output.name for output in decoder.get_outputs()]
        results = dict(zip(names, decoder.run(None, {"ids": _whole(ids), **cache})))
        logits = results.pop("logits")
        cache.update({name.replace("present_", "past_"): r for name, r in results.items()})
        return logits

    def _session(self, name: str) -> Any:
        if name not in self.sessions:
            raise UserError(f"this exported model has no {name}.onnx")
        return self.sessions[name]


def _whole(numbers: np.ndarray) -> np.ndarray:
    """As the graphs take them: int64, which is not NumPy's own size everywhere."""
    return np.asarray(numbers).astype(np.int64, casting="same_kind", copy=False)
