"""Which experiment makes which figure of the papers again."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from dalton.envs.errors import check_choice
from dalton.experiments.registry import options


class Experiment(NamedTuple):
    """What a file in ``conf/experiment`` says of itself."""

    name: str
    title: str | None
    paper: str | None
    """Figures and tables, e.g. ``Dalton Fig. 9a, 9d; PKG Table 3``."""


def experiments() -> list[Experiment]:
    """All named experiments, by name."""
    found = []
    for name in options("experiment"):
        text = (files("dalton.conf") / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
        content: Any = OmegaConf.create(text)
        found.append(Experiment(name, content.get("title"), content.get("paper")))
    return found


def figures() -> dict[str, Experiment]:
    """Every figure and table that an experiment makes again, like ``Dalton Fig. 9a``."""
    found = {}
    for experiment in experiments():
        kind = ""
        for part in re.split(r"[;,]", experiment.paper or ""):
            words = part.split()
            # "Dalton Fig. 9a, 9d" names the paper and the kind once.
            if len(words) > 1:
                kind = " ".join(words[:-1])
            if words:
                found[f"{kind} {words[-1]}"] = experiment
    return found


def experiment_of(figure: str) -> Experiment:
    """The experiment that makes a figure, written as in `figures` or shorter, like ``dalton 9a``."""
    known = figures()
    full = {_plain(name): name for name in known}
    return known[check_choice("figure", full.get(_plain(figure), figure), known)]


def _plain(figure: str) -> str:
    return re.sub(r"\bfig(ure|s)?\b|[\W_]", "", figure.lower())
