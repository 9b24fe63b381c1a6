"""Partitioners by their configuration name: a module and a YAML file in ``conf/partitioner`` each."""

from __future__ import annotations

import importlib
import inspect
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

from dalton.envs.contract import Partitioner
from dalton.envs.errors import ConfigError, check_choice


def options(group: str) -> list[str]:
    """The names in a group of the configuration, sorted."""
    entries = (files("dalton.conf") / group).iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


def partitioner_names() -> list[str]:
    """Every known name, sorted."""
    return options("partitioner")


def ready_names() -> list[str]:
    """The names of those that need no trained policy."""
    return [name for name in partitioner_names() if "checkpoint" not in partitioner_config(name)[1]]


def defaults_of(group: str, name: str) -> dict[str, Any]:
    """The content of an option's file."""
    check_choice(group, name, options(group))
    text = (files("dalton.conf") / group / f"{name}.yaml").read_text(encoding="utf-8")
    loaded = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    if not isinstance(loaded, dict):
        raise ConfigError(f"conf/{group}/{name}.yaml: expected a mapping")
    return {str(key): value for key, value in loaded.items()}


def partitioner_config(name: str) -> tuple[type[Partitioner], dict[str, Any]]:
    """The class of a partitioner and its own parameters with their configured values."""
    params = defaults_of("partitioner", name)
    if "_target_" not in params:
        raise ConfigError(f"conf/partitioner/{name}.yaml: expected a mapping with _target_")
    module, _, cls = str(params.pop("_target_")).rpartition(".")
    return getattr(importlib.import_module(module), cls), params


def make(name: str, **params: Any) -> Partitioner:
    """Build a partitioner by its configuration name.

    Args:
        name: One of `partitioner_names`, e.g. ``"pkg"``.
        **params: ``n_workers``, ``seed`` and the partitioner's own parameters; what is not given has the
            value of its YAML file.
    """
    cls, defaults = partitioner_config(name)
    allowed = list(inspect.signature(cls).parameters)
    for field in params:
        check_choice(f"parameter of {name}", field, allowed)
    if "n_workers" not in params:
        raise ConfigError(f"{name}: parameter n_workers is missing; expected a whole number >= 1")
    return cls(**{**defaults, **params})
