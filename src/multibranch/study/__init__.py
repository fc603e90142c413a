"""The study: the paper's tables as data and as runnable experiments, with reports side by side.

`paper` holds the tables, `architectures` and `counting` their sizes. A study file is read by `plan`
into `experiment`s; `bench` gives each its configuration and folder, `trial` runs one, or has
`classifying` do it, `trial_folder` is what is kept of it. `order` says which is next, `company`
which are trained as one, `storage` keeps them in a database, `worker` takes them from it, by
`leases`, until something of `stopping` ends it; `telling` says how they go. `scoring` scores
translations, `comparing` tests their differences, `results` sums up, `layout`, `markdown`, `plots`
and `page` show it, `reporting` puts it together. `searching` goes beyond the grid: `space` says
among what, `starting` from what, `proposing` what is tried, `findings` what came of it.
"""

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
