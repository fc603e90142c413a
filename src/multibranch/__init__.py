"""Multi-branch Attentive Transformers: train, run, study and ship them."""

__version__ = "0.1.0"
