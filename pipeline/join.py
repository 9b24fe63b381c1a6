"""Skewed joins: hot keys of the large side are spread, and what they match is there on all their workers."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dalton.agents.export import Policy
from dalton.envs.errors import ConfigError, check_choice
from dalton.pipeline.aggregation import PLACED
from dalton.pipeline.lookup import Lookup
from dalton.pipeline.routing import ID, SLOT, WHOLE_NUMBERS, key_id, place, policy_of

MATCHED = "__dalton_matched"
HOW = ("inner", "left", "semi", "anti")
ALIASES = {
    "left_outer": "left",
    "leftouter": "left",
    "left_semi": "semi",
    "leftsemi": "semi",
    "left_anti": "anti",
    "leftanti": "anti",
}


def split_join(
    left: DataFrame,
    right: DataFrame,
    key: str,
    policy: Policy | str | os.PathLike[str],
    how: str = "inner",
    *,
    n_workers: int | None = None,
    order: str = "auto",
) -> DataFrame:
    """Join with hot keys of ``left`` on several workers: the rows of ``left.join(right, key, how)``.

    Every row of the left side goes to one worker; a row of the right side goes to all workers to which its
    key may go, and to no other. So a pair meets exactly once. If the right side is small enough to be
    broadcast, that is better still, and Spark does it by itself.

    Args:
        left: The large, skewed side.
        right: The other side.
        key: Name of the key column of both.
        policy: A policy trained on the left side, or the path of its file.
        how: ``inner``, ``left``, ``semi`` or ``anti``, which keep the left side's rows where they are.
        n_workers: See `dalton.pipeline.route`; so is ``order``.
        order: See `route`; it concerns the left side.
    """
    chosen = policy_of(policy, n_workers)
    how = check_choice("how", ALIASES.get(how, how), HOW)
    _check_types(left, right, key)
    if how in ("inner", "semi"):
        left = left.where(F.col(key).isNotNull())
    if how in ("semi", "anti"):
        right = right.select(key)
    placed = place(left, key, chosen, column=PLACED, mode="frozen", order=order)
    copies = _replicated(right, key, chosen).repartitionById(chosen.n_workers, F.col(PLACED))
    on = [PLACED, key]
    if how in ("inner", "left"):
        return placed.join(copies, on, how).drop(PLACED)
    # Spark would move the placing of the left side above a semi- or anti-join, and shuffle by the key below.
    # Distinct matches say the same.
    matches = copies.distinct()
    if how == "semi":
        return placed.join(matches, on).drop(PLACED).select(*left.columns)
    found = placed.join(matches.withColumn(MATCHED, F.lit(True)), on, "left")
    return found.where(F.col(MATCHED).isNull()).select(*left.columns)


def _check_types(left: DataFrame, right: DataFrame, key: str) -> None:
    for side in (left, right):
        check_choice("key", key, side.columns)
    kinds = [side.schema[key].dataType for side in (left, right)]
    if kinds[0] != kinds[1] and not all(isinstance(kind, WHOLE_NUMBERS) for kind in kinds):
        names = " and ".join(kind.simpleString() for kind in kinds)
        raise ConfigError(f"key = {key}: has types {names}; expected the same type on both sides")


def _replicated(right: DataFrame, key: str, policy: Policy) -> DataFrame:
    """Every row with each of its key's workers; rows without a key match nothing."""
    lookup, id_ = Lookup(policy), F.col(ID)
    known = right.where(F.col(key).isNotNull()).withColumn(ID, key_id(right, key))
    workers = F.array(lookup.home(id_))
    if lookup.any:
        known = known.withColumn(SLOT, lookup.slot(id_))
        slot = F.col(SLOT)
        workers = F.when(lookup.is_hot(id_, slot), lookup.workers(slot)).otherwise(workers)
    return known.withColumn(PLACED, F.explode(workers)).drop(ID, SLOT)
