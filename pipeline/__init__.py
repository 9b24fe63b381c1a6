"""Spark pipelines: datasets, routing, aggregation, joins and streaming.

The names below are imported on first use: this package can be imported without PySpark, and says what to
install when something of it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dalton.pipeline.session import require_spark

if TYPE_CHECKING:
    from dalton.pipeline.aggregation import Aggregate, split_aggregate
    from dalton.pipeline.join import split_join
    from dalton.pipeline.per_key import split_apply
    from dalton.pipeline.routing import place, route
    from dalton.pipeline.session import spark_session

__all__ = ["Aggregate", "place", "route", "spark_session", "split_aggregate", "split_apply", "split_join"]

_HOMES = {
    "Aggregate": "aggregation",
    "place": "routing",
    "route": "routing",
    "spark_session": "session",
    "split_aggregate": "aggregation",
    "split_apply": "per_key",
    "split_join": "join",
}


def __getattr__(name: str) -> object:
    """Import a public name from its home module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_spark()
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
