"""A search for the hyperparameters of a training, with Ray Tune (extra ``deep``)."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dalton.agents.training import Params, Plan, Training
from dalton.envs.errors import ConfigError, check_choice, check_real, shown

Space = dict[str, tuple[float, float, bool]]


class Trial(NamedTuple):
    """What came of one setting of the parameters."""

    params: Params
    history: list[dict[str, float]]
    """Metrics of every iteration."""
    policy: Path | None
    """Where its policy is, as `Training.save` writes it."""
    failure: str
    """Why there is none."""


def check_space(given: object, plan: Plan) -> Space:
    """Ranges (low, high, whether logarithmic) of numbers of the plan's algorithm."""
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"search.space = {shown(given)}: expected a range for each parameter")
    numbers = [key for key, value in plan.algorithm.items() if isinstance(value, float)]
    space = {}
    for name, part in given.items():
        check_choice("key of search.space", name, numbers)
        low = check_real(f"search.space.{name}.low", part.get("low"))
        high = check_real(f"search.space.{name}.high", part.get("high"), above=low)
        space[str(name)] = (low, high, bool(part.get("log", False)))
        for end in (low, high):
            replace(plan, algorithm={**plan.algorithm, name: end})
    return space


def _trial(config: Params, *, plan: Plan, iterations: int) -> None:
    """Train with the parameters of a trial, in a process of its own."""
    from ray import tune

    training = Training(replace(plan, algorithm={**plan.algorithm, **config}))
    try:
        for _ in range(iterations):
            metrics = training.iterate()
            with tempfile.TemporaryDirectory() as folder:
                training.save(Path(folder), {"search": config})
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))
    finally:
        training.close()


def search(
    plan: Plan, space: Space, *, trials: int, iterations: int, folder: Path, advance: Callable[[int], None]
) -> list[Trial]:
    """Train ``trials`` policies with parameters drawn at random (needs `local_ray`).

    Those with less reward are stopped early: after 1/4 and 1/2 of the iterations the worse half of what got
    there (ASHA, Li et al., MLSys 2020).

    Args:
        plan: What they have in common; its seed also draws the parameters.
        space: Ranges of the parameters.
        trials: Number of trials.
        iterations: Iterations of a trial that is not stopped.
        folder: Where Tune keeps its files.
        advance: Told of every trial that has ended.

    Returns:
        The trials, in the order in which they were drawn.
    """
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search import BasicVariantGenerator

    class Report(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            advance(1)

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            advance(1)

    draws = {
        name: tune.loguniform(low, high) if log else tune.uniform(low, high)
        for name, (low, high, log) in space.items()
    }
    tuner = tune.Tuner(
        tune.with_parameters(_trial, plan=plan, iterations=iterations),
        param_space=draws,
        tune_config=tune.TuneConfig(
            metric="reward",
            mode="max",
            num_samples=trials,
            search_alg=BasicVariantGenerator(random_state=plan.seed),
            scheduler=ASHAScheduler(
                max_t=iterations, grace_period=max(1, iterations // 4), reduction_factor=2
            ),
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.resolve()),
            verbose=0,
            callbacks=[Report()],
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        ),
    )
    # Tune announces itself on the standard output, however silent it is told to be.
    with contextlib.redirect_stdout(io.StringIO()):
        results = tuner.fit()
    return [_outcome(results[i]) for i in range(len(results))]


def _outcome(result: Any) -> Trial:
    names = ("reward", "steps", "total_loss", "vf_loss", "entropy", "qf_mean", "seconds")
    table = result.metrics_dataframe
    history = [] if table is None else table[[name for name in names if name in table]].to_dict("records")
    failure = str(result.error).strip().splitlines()[-1] if result.error is not None else ""
    policy = Path(result.checkpoint.path) if result.checkpoint is not None else None
    return Trial(dict(result.config or {}), history, policy, failure)
