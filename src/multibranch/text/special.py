"""The ids that mean the same in every vocabulary, and how a vocabulary's size is rounded."""

BOS, PAD, EOS, UNK = range(4)
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
MULTIPLE = 8


def unused_tokens(size: int) -> list[str]:
    """The entries that fill a vocabulary of ``size`` entries up to a multiple of eight."""
    return [f"<unused{number}>" for number in range(-size % MULTIPLE)]
