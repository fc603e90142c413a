"""What makes `generate` decode as multibranch.decoding does: its defaults and its lengths."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor
from transformers.utils import cached_file

from multibranch.decoding.options import SearchOptions, read_options
from multibranch.decoding.translator import unused_ids
from multibranch.directory import CONFIG
from multibranch.errors import UserError
from multibranch.hub.configuration import MultiBranchConfig
from multibranch.text import TextPipeline
from multibranch.text.pipeline import FILES

# What `from_pretrained` says of where files come from, as `cached_file` takes it.
_ORIGIN = (
    "cache_dir",
    "force_download",
    "proxies",
    "local_files_only",
    "token",
    "revision",
    "subfolder",
)


def decoding_defaults(
    config: MultiBranchConfig, text: TextPipeline | None = None
) -> GenerationConfig:
    """The settings of `generate` that are those of our beam search.

    text: the model's, where it is known: it says which entries of the vocabulary are unused.
    """
    ours = search_options(config)
    unused = () if text is None else unused_ids(text, config.target_vocabulary)
    return GenerationConfig(
        num_beams=ours.beam,
        length_penalty=ours.length_penalty,
        early_stopping=True,  # when as many as there are beams have ended, as our search does
        max_length=config.max_length,
        suppress_tokens=sorted(replace(ours, never=(*ours.never, *unused)).forbidden),
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


def origin(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the arguments of `from_pretrained`, those that say where files come from."""
    return {name: given[name] for name in _ORIGIN if name in given}


def text_beside(model: str | Path, **given: Any) -> TextPipeline | None:
    """The text pipeline of a model, in a folder or on the hub; None where it has no text files.

    Weights are of use without them: files that are damaged are no error, but are warned of.

    given: the arguments of `from_pretrained`, of which those that concern files are used.
    """
    found = {}
    for name in FILES:
        try:
            found[name] = cached_file(model, name, **origin(given))
        except OSError:  # not every model has every file
            continue
    settings = found.get(FILES[0])
    if settings is None:
        return None
    try:
        return TextPipeline.load(Path(settings).parent)
    except UserError as error:
        warnings.warn(f"generate may write unused entries of the vocabulary: {error}", stacklevel=2)
        return None


def search_options(config: MultiBranchConfig) -> SearchOptions:
    """Those that the model directory was saved with, and else our defaults."""
    where = Path(config.name_or_path) / CONFIG
    return SearchOptions(**read_options(getattr(config, "decoding", None), where))


def longest_outputs(
    config: MultiBranchConfig,
    own: GenerationConfig,
    source_tokens: Tensor,
    args: tuple,
    kwargs: dict[str, Any],
) -> Tensor:
    """The most tokens that each output (b,) may have, its end not counted.

    A length that the caller gives holds for all, be it as an argument or in `own`, the settings of
    the model: max_length, beginning and end counted, or max_new_tokens, which follow what the
    caller lets outputs begin with. Otherwise it follows from the source, and kwargs are given the
    room for it.
    """
    given = kwargs.get("generation_config") or next(iter(args), None)
    settings = [kwargs, {} if given is None else vars(given)]
    begun = _begun(config, kwargs.get("decoder_input_ids"))
    new = _first_of("max_new_tokens", [*settings, vars(own)])
    if own.max_length != config.max_length:  # else it is what `decoding_defaults` says
        settings.append(vars(own))
    total = _first_of("max_length", settings) if new is None else begun + new
    if total is not None:
        return torch.full_like(source_tokens, total - 2)
    ours = search_options(config)
    limits = [ours.longest(tokens) for tokens in source_tokens.tolist()]
    kwargs["max_length"] = max(*limits, begun - 1) + 2
    return torch.tensor(limits, device=source_tokens.device)


def _begun(config: MultiBranchConfig, beginning: Tensor | None) -> int:
    """How many tokens outputs begin with; the start, where it is missing, `generate` adds."""
    if beginning is None:
        return 1
    missing = config.decoder_start_token_id not in beginning[:, 0].tolist()
    return beginning.shape[1] + missing


def _first_of(name: str, settings: list[Mapping[str, Any]]) -> int | None:
    """What the first of these that says something says."""
    return next((said[name] for said in settings if said.get(name) is not None), None)


class EndAtLength(LogitsProcessor):
    """Leaves only the end of the sentence to an output that has its limit of tokens."""

    def __init__(self, limits: Tensor, end: int) -> None:
        self.limits = limits  # (b,)
        self.end = end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """input_ids (rows, t) with the beginning first, scores (rows, V)."""
        limits = self.limits.repeat_interleave(scores.shape[0] // self.limits.shape[0])
        full = (input_ids.shape[1] - 1 >= limits).unsqueeze(1)
        others = torch.ones_like(scores, dtype=torch.bool)
        others[:, self.end] = False
        return scores.masked_fill(full & others, float("-inf"))
