"""MultiBranchTokenizer: the text pipeline of a model directory as a tokenizer of `transformers`.

It does all that the pipeline does: raw text is tokenised (Moses, code, …) before its vocabulary
sees it, and ids are decoded to text as people write it. The source side is what a call encodes; the
target side is `text_target`, and what is decoded.
"""

from pathlib import Path
from typing import Any

from transformers import AddedToken, PreTrainedTokenizerFast

from multibranch.text import SPECIAL_TOKENS, TextPipeline
from multibranch.text.pipeline import SIDES


class MultiBranchTokenizer(PreTrainedTokenizerFast):
    """Text to ids and back, as `multibranch.text.TextPipeline` does it."""

    vocab_files_names = {"tokenizer_file": "tokenizer.json", "text_file": "text.json"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, *args: Any, text_file: str | None = None, **kwargs: Any) -> None:
        if text_file is None:
            raise ValueError(
                "MultiBranchTokenizer is loaded, with from_pretrained, from a model directory that "
                "has its text.json; a tokenizer of another kind has a tokenizer_config.json that "
                "names that"
            )
        self._pipeline = TextPipeline.load(Path(text_file).parent)
        self._side = "source"
        super().__init__(*args, **kwargs)

    def add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Only the special ones that there are: for others the model has no vectors."""
        asked = [new_tokens] if isinstance(new_tokens, str | AddedToken) else new_tokens or []
        new = [str(token) for token in asked if str(token) not in SPECIAL_TOKENS]
        if new:
            raise ValueError(
                f"the vocabulary belongs to the model's text pipeline and takes no further token "
                f"such as {new[0]!r}: prepare the data with another one, and train"
            )
        return super().add_tokens(new_tokens, special_tokens=special_tokens)

    def _switch_to_input_mode(self) -> None:
        self._use_side("source")

    def _switch_to_target_mode(self) -> None:
        self._use_side("target")

    def _use_side(self, side: str) -> None:
        self._side = side
        self._tokenizer = self._pipeline.tokenizer(side)

    def _encode_plus(self, text: Any, text_pair: Any = None, **kwargs: Any) -> Any:
        kwargs["split_special_tokens"] = True  # "<s>" in a text is three characters
        self._use_side(self._side)
        return super()._encode_plus(self._words(text), self._words(text_pair), **kwargs)

    def _words(self, text: Any) -> Any:
        """Raw text, or each of a list, as words separated by blanks."""
        if isinstance(text, str):
            return self._pipeline.tokenise(text, self._side)
        return [self._words(line) for line in text] if isinstance(text, list | tuple) else text

    def _decode(
        self, token_ids: Any, skip_special_tokens: bool | None = None, **kwargs: Any
    ) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        if skip_special_tokens:
            return self._pipeline.decode([ids], side="target")[0]
        self._tokenizer = self._pipeline.tokenizer("target")
        return super()._decode(ids, skip_special_tokens=False, **kwargs)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> tuple[str, ...]:
        for side in SIDES:
            self._pipeline.tokenizer(side).no_padding()
            self._pipeline.tokenizer(side).no_truncation()
        self._pipeline.save(save_directory)
        self._use_side("source")
        return super().save_pretrained(save_directory, *args, **kwargs)
