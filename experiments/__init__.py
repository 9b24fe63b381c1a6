"""Experiments: partitioners by name, comparison, benchmark and the command line."""

from dalton.experiments.registry import make

__all__ = ["make"]
