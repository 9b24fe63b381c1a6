"""What routing costs in Spark, beside Spark's own repartition."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from dalton.agents.dalton import Dalton
from dalton.agents.export import Policy
from dalton.envs.workloads import make_workload
from dalton.experiments.benchmark import fastest
from dalton.experiments.registry import make
from dalton.pipeline.session import spark_session

CORES = 2


def _drain(df: Any) -> None:
    df.write.format("noop").mode("overwrite").save()


def policy(n_workers: int, exponent: float) -> Policy:
    """Of an agent that has learned 200,000 tuples."""
    agent = make("dalton_share", n_workers=n_workers)
    assert isinstance(agent, Dalton)
    stream = make_workload("zipf", n_tuples=200_000, n_keys=100_000, exponent=exponent)
    for chunk in stream.chunks():
        agent.route(chunk.keys)
    return Policy.of(agent)


def run(n_rows: int = 4_000_000, n_workers: int = 16, exponent: float = 1.5, repeat: int = 3) -> None:
    """Measure and print; rows are read from Parquet, and the shuffled ones thrown away."""
    import numpy as np
    import pandas as pd

    from dalton.pipeline import place, route

    learned = policy(n_workers, exponent)
    settings: dict[str, Any] = {"spark.driver.memory": "1g", "spark.ui.enabled": "false"}
    spark = spark_session(master=f"local[{CORES}]", **settings)
    try:
        with tempfile.TemporaryDirectory() as folder:
            stream = make_workload("zipf", n_tuples=n_rows, n_keys=100_000, exponent=exponent)
            for i, chunk in enumerate(stream.chunks(n_rows // 4)):
                frame = pd.DataFrame({"key": chunk.keys, "value": np.arange(len(chunk.keys)), "cost": 1.0})
                frame.to_parquet(f"{folder}/{i}.parquet", index=False)
            df = spark.read.parquet(folder)
            frozen = functools.partial(place, df, "key", learned, column="worker", mode="frozen")
            plans: dict[str, Callable[[], Any]] = {
                "scan": lambda: df,
                "repartition(n, key)": lambda: df.repartition(n_workers, "key"),
                "frozen: route and place": lambda: frozen(order="auto"),
                "frozen, rows sorted first": lambda: frozen(order="sorted"),
                "adaptive: route": lambda: route(df, "key", learned, mode="adaptive"),
            }
            # All in turn, and again: what disturbs one disturbs the others.
            seconds = dict.fromkeys(plans, float("inf"))
            for _ in range(repeat + 1):
                for name, plan in plans.items():
                    seconds[name] = min(seconds[name], fastest(functools.partial(_drain, plan()), 1))
    finally:
        spark.stop()
    table = Table("Spark", "ns per row", "M rows/s per core", "x repartition", title="Routing in Spark")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, took in seconds.items():
        ratio = took / seconds["repartition(n, key)"]
        rate = n_rows / took / CORES / 1e6
        table.add_row(name, f"{1e9 * took / n_rows:.0f}", f"{rate:.2f}", f"{ratio:.2f}")
    console = Console()
    console.print(table)
    console.print(
        f"{n_rows:,} rows from Parquet, Zipf {exponent:g}, {n_workers} workers, local[{CORES}], "
        f"{len(learned.split)} hot keys; fastest of {repeat + 1}, taken in turn"
    )
