"""The study: the paper's tables as data and as runnable experiments, with reports side by side."""

from multibranch.study.architectures import Architecture, architectures, parameters
from multibranch.study.paper import Cell, Part, Row, Table, cells, experiments, in_text, tables

__all__ = [
    "Architecture",
    "Cell",
    "Part",
    "Row",
    "Table",
    "architectures",
    "cells",
    "experiments",
    "in_text",
    "parameters",
    "tables",
]
