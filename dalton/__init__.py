"""Learned, skew-aware stream partitioning.

The names below are imported on first use, so `import dalton` costs nothing and needs no optional dependency.
"""

from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dalton.envs.contract import Partitioner
    from dalton.envs.simulate import simulate
    from dalton.envs.window import Window
    from dalton.envs.workloads import make_workload
    from dalton.experiments import make
    from dalton.experiments.models import load_policy

__version__ = "0.1.0"

# In a checkout this directory holds none of the sub-packages. When the working directory is the checkout, as
# with `python -m`, it shadows the installed package, whose sub-packages must be found all the same.
__path__ = extend_path(__path__, __name__)

__all__ = ["Partitioner", "Window", "__version__", "load_policy", "make", "make_workload", "simulate"]

_HOMES = {
    "Partitioner": "dalton.envs.contract",
    "Window": "dalton.envs.window",
    "load_policy": "dalton.experiments.models",
    "make": "dalton.experiments",
    "make_workload": "dalton.envs.workloads",
    "simulate": "dalton.envs.simulate",
}


def __getattr__(name: str) -> object:
    """Import a public name from its home module on first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the module's names, including those not imported yet."""
    return sorted(set(globals()) | set(__all__))
