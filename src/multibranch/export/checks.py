"""What was written, run by its engine and held against PyTorch before it is put in place.

On random ids: whatever the model was trained on, its numbers must be the same.
"""

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multibranch.errors import UserError
from multibranch.export.folder import Tell, pytorchs_threads_kept, untold, vocabulary
from multibranch.export.onnx_model import OnnxModel
from multibranch.nn import MultiBranchEncoder, MultiBranchTransformer
from multibranch.text import BOS, EOS, SPECIAL_TOKENS, TextPipeline
from multibranch.text.pipeline import SIDES

_TOLERANCE = 1e-3  # of numbers of size 1; rounding alone differs by less than a tenth of this
_LENGTHS = (9, 1, 5)  # of the sequences that are tried


@torch.inference_mode()
def checked_ctranslate2(
    folder: Path,
    model: MultiBranchTransformer,
    text: TextPipeline,
    *,
    exact: bool,
    tell: Tell = untold,
) -> float:
    """The largest difference of a token's log-probability in CTranslate2 and in PyTorch.

    With `exact` more than rounding is an error.
    """
    import ctranslate2

    tell("checking it: running it with CTranslate2 and with PyTorch")
    sources = _sequences(model.settings["source_vocabulary"], seed=1)
    targets = _sequences(model.settings["target_vocabulary"], seed=2)
    names = {side: vocabulary(text, side) for side in SIDES}
    with pytorchs_threads_kept():
        engine = ctranslate2.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=1)
    scored = engine.score_batch(
        [[names["source"][number] for number in source] for source in sources],
        [[names["target"][number] for number in target] for target in targets],
        max_input_length=0,
    )
    given = torch.nn.utils.rnn.pad_sequence([torch.tensor(each.log_probs) for each in scored], True)
    source = _padded([[*source, EOS] for source in sources], model.padding)
    before = _padded([[BOS, *target] for target in targets], model.padding)
    after = _padded([[*target, EOS] for target in targets], model.padding)
    log_p = _on_cpu(model)(source, before).log_softmax(-1)
    wanted = log_p.gather(2, after.unsqueeze(2)).squeeze(2)
    there = after != model.padding
    return _judged(given * there, wanted * there, "CTranslate2", exact=exact)


@torch.inference_mode()
def checked_onnx(
    folder: Path, model: MultiBranchTransformer | MultiBranchEncoder, *, tell: Tell = untold
) -> float | None:
    """The largest difference of a number in onnxruntime and in PyTorch, all steps of a decoder."""
    if not _can_run_onnx(tell):
        return None
    run = OnnxModel(folder, threads=1)
    plain = _on_cpu(model)
    alone = isinstance(plain, MultiBranchEncoder)
    size = model.settings["vocabulary" if alone else "source_vocabulary"]
    source = _padded([[*each, EOS] for each in _sequences(size, seed=1)], model.padding)
    if alone:
        there = (source != model.padding).unsqueeze(-1)
        states = torch.from_numpy(run.states(source.numpy()))
        return _judged(states * there, plain(source) * there, "onnxruntime", exact=True)
    targets = _sequences(model.settings["target_vocabulary"], seed=2)
    target = _padded([[BOS, *each] for each in targets], model.padding)
    cache = run.start(source.numpy())
    steps = [run.step(target[:, at : at + 1].numpy(), cache) for at in range(target.shape[1])]
    given = torch.cat([torch.from_numpy(step) for step in steps], dim=1)
    return _judged(given, plain(source, target), "onnxruntime", exact=True)


@torch.inference_mode()
def checked_classifier(folder: Path, model: Any, *, tell: Tell = untold) -> float | None:
    """The same for a classifier of `transformers`: its logits, with and without padding.

    model: on the CPU, in evaluation mode and float32.
    """
    if not _can_run_onnx(tell):
        return None
    run = OnnxModel(folder, threads=1)
    padding = model.config.pad_token_id or 0
    ids = _padded(_sequences(len(model.get_input_embeddings().weight), seed=1), padding)
    mask = _padded([[1] * length for length in _LENGTHS], 0)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if run.takes_types:
        inputs["token_type_ids"] = (torch.arange(ids.shape[1]) > 2).long() * mask
    given = torch.from_numpy(run.logits(*(tensor.numpy() for tensor in inputs.values())))
    return _judged(given, model(**inputs).logits, "onnxruntime", exact=True)


def _can_run_onnx(tell: Tell) -> bool:
    there = importlib.util.find_spec("onnxruntime") is not None
    if there:
        tell("checking it: running it with onnxruntime and with PyTorch")
    else:
        tell("not checking it: onnxruntime is not installed")
    return there


def _judged(given: Tensor, wanted: Tensor, engine: str, *, exact: bool) -> float:
    for computed, by in ((wanted, "the model"), (given, engine)):
        if not bool(torch.isfinite(computed).all()):
            raise UserError(
                f"{by} computes infinities or NaN: weights this large cannot be used; nothing was "
                "written"
            )
    difference = float((given - wanted).abs().max())
    limit = _TOLERANCE * max(1.0, float(wanted.abs().max()))
    if exact and not difference <= limit:
        raise UserError(
            f"what {engine} computes differs from PyTorch by up to {difference:.3g}: nothing was "
            "written; please report this with the model's config.json"
        )
    return difference


def _on_cpu(model: MultiBranchTransformer | MultiBranchEncoder) -> torch.nn.Module:
    """The model as it computes on a CPU, in evaluation mode and float32; the model itself stays."""
    plain = type(model)(**model.settings)
    plain.load_state_dict(model.state_dict())
    return plain.eval()


def _sequences(vocabulary: int, *, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    first = min(len(SPECIAL_TOKENS), vocabulary - 1)
    return [
        torch.randint(first, vocabulary, (length,), generator=generator).tolist()
        for length in _LENGTHS
    ]


def _padded(sequences: list[list[int]], padding: int) -> Tensor:
    rows = [torch.tensor(sequence) for sequence in sequences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
