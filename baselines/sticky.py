"""What the schemes share that choose a worker once per key and keep to it."""

from __future__ import annotations

from dalton.envs.contract import LoadAware
from dalton.envs.table import KeyMap


class Sticky(LoadAware):
    """A load vector since the start, and a routing table from key to worker that only grows."""

    routes: KeyMap

    def __init__(self, *, n_workers: int, seed: int = 0) -> None:
        super().__init__(n_workers=n_workers, seed=seed)

    @property
    def max_workers_per_key(self) -> int:
        """One."""
        return 1

    def _reset(self) -> None:
        super()._reset()
        self.routes = KeyMap()
