"""Dalton: a contextual bandit decides where hot keys go; other keys are hashed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalton.agents.exploration import FRAGMENTS, RULES, draw, explore
from dalton.agents.qtable import (
    QTable,
    forget_values,
    more_rows,
    qtable,
    row_of,
    set_value,
    stamp,
    take_row,
    turn,
)
from dalton.agents.statistics import GIVEN, KIND, KINDS, Stats, begin, grown_stats, has_place, observe, stats
from dalton.envs.contract import BLOCK, Costs, Keys, LoadAware, Times, Workers
from dalton.envs.draws import stream_key
from dalton.envs.errors import ConfigError, check_choice, check_int, check_real
from dalton.envs.hashing import candidates, family
from dalton.envs.hotness import FOLLOWING, LEAST, NUMBER, TUPLES, begin_window, check_stats_window, stats_span
from dalton.envs.kernel import kernel
from dalton.envs.reward import reward
from dalton.envs.table import EMPTY
from dalton.envs.window import BASE, BY_TIME, DEFAULT_WINDOW, POSITION, SLIDE, WindowSpec, amount, put, tick

# The generator of exploration among those of a seed (`dalton.envs.draws`).
EXPLORATION = 16
# Places in `rule`: parameters of the bandit.
EPSILON, DECAY, GAMMA, P1, INITIAL, HOT, MAX_SPLIT, EXPLORE, PAUSE, AWAIT = range(10)


class Buffer(NamedTuple):
    """Rewards that wait to be learned (Section 4.1); only of an agent that cooperates."""

    keys: NDArray[np.int64]
    actions: NDArray[np.int64]
    gains: NDArray[np.float64]
    used: NDArray[np.int64]


def buffer(size: int) -> Buffer:
    """An empty buffer."""
    return Buffer(np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size), np.zeros(1, np.int64))


@kernel
def new_window(s: Any, t: Any, span: Any, hot_keys: Any, now: Any) -> None:
    """Begin the STATS_WIN that holds ``now``, and keep what the last one said of each key's share."""
    tuples = span[TUPLES]
    known = begin_window(span, hot_keys, now)
    begin(s)
    for row in range(len(t.keys)):
        t.share[row] = t.tuples[row] * t.q.shape[1] / tuples if known else 0.0
        t.tuples[row] = 0


@kernel
def _dalton(
    loads: Any,
    s: Any,
    t: Any,
    span: Any,
    rule: Any,
    random: Any,
    waiting: Any,
    first: Any,
    keys: Any,
    times: Any,
    costs: Any,
    out: Any,
    forward: Any,
    rewards: Any,
) -> Any:
    load, ring, clock, edge, pace = loads
    q, until, fragments, visits = t.q, t.until, t.fragments, t.visits
    n, slides = len(load), t.ages.shape[1]
    epsilon, decay, gamma, p1 = rule[EPSILON], rule[DECAY], rule[GAMMA], rule[P1]
    by_time, awaiting = edge[BY_TIME] > 0.0, rule[AWAIT] > 0.0
    total = load.sum()
    window, following, least = np.int64(span[NUMBER]), span[FOLLOWING], span[LEAST]
    # Micro-batches are their own slides: a key's fragments are those of the batch (Section 3.4).
    slide = window if s.mode[KIND] == GIVEN else clock[SLIDE] - clock[BASE]
    done = len(keys)
    begun = 0
    per_tuple = n / (rule[HOT] * span[LEAST])
    full = t.spare[0] == 0 or not has_place(s) or (awaiting and waiting.used[0] == len(waiting.keys))
    for i in range(len(keys)):
        if full:
            done = i
            break
        now = times[i] if by_time else np.float64(clock[POSITION])
        if now >= following:
            if rule[PAUSE] > 0.0:
                done = i
                break
            span[TUPLES] += i - begun
            begun = i
            new_window(s, t, span, rule[HOT], now)
            per_tuple = n / (rule[HOT] * span[LEAST])
            window, following, least = np.int64(span[NUMBER]), span[FOLLOWING], span[LEAST]
        passed = tick(load, ring, clock, edge, times, i)
        if passed > 0:
            total = load.sum()
            if s.mode[KIND] != GIVEN:
                slide = clock[SLIDE] - clock[BASE]
                turn(t, slide, passed, window)
        oldest = slide - slides
        key = keys[i]
        home = np.int64(first[i])
        row = row_of(t, key)
        if row == EMPTY or until[row] <= window:
            f, last = observe(s, slide, key)
            if f >= least:
                if row == EMPTY:
                    row = take_row(t, key, home)
                    t.tuples[row] = f - 1
                    if last > oldest:
                        stamp(t, row, home, last, oldest)
                if until[row] < window:
                    forget_values(t, row, rule[INITIAL])
                until[row] = window + 1
            full = t.spare[0] == 0 or not has_place(s)
        rewards[i] = np.nan
        best = home
        # Unsigned, for numba looks at every signed index whether it counts from the end.
        at = np.uintp(row)
        if row != EMPTY:
            t.tuples[at] += 1
        if row == EMPTY:
            forward[i] = True
        elif until[row] < window:
            # No longer hot, but still split over the window.
            stamp(t, row, best, slide, oldest)
            forward[i] = fragments[row] == 1
        else:
            action = t.best[at]
            if draw(random) * (1.0 + decay * visits[at]) < epsilon:
                how = np.int64(rule[EXPLORE]) if fragments[row] < rule[MAX_SPLIT] else FRAGMENTS
                share = max(t.share[row], t.tuples[row] * per_tuple)
                best = explore(how, random, load, t.stamps[row], oldest, fragments[row], share)
                action = best - home
                if action < 0:
                    action += n
            else:
                best = home + action
                if best >= n:
                    best -= n
            visits[at] += 1
            stamp(t, at, np.uintp(best), slide, oldest)
            value = q[at, np.uintp(action)]
            added = amount(pace, costs, i, best)
            gain = reward(load[np.uintp(best)] + added, total + added, n, fragments[at], p1)
            if awaiting:
                place = waiting.used[0]
                waiting.keys[place], waiting.actions[place], waiting.gains[place] = key, action, gain
                waiting.used[0] += 1
                full = full or waiting.used[0] == len(waiting.keys)
            else:
                set_value(t, at, np.uintp(action), value + gamma * (gain - value))
            forward[i] = False
            rewards[i] = gain
        added = amount(pace, costs, i, best)
        put(load, ring, clock, np.uintp(best), added)
        total += added
        out[i] = best
    span[TUPLES] += done - begun
    return done


class Dalton(LoadAware):
    """A contextual bandit splits hot keys; other keys are hashed (Dalton, PVLDB 16(3), Section 3).

    A key is hot from the tuple on at which its count f in the current STATS_WIN reaches L / (c n), L the
    tuples of the STATS_WIN before, until the end of the next (Definition 3.3, with c = 1). A hot key goes to

        a = argmax_i Q(k, i)   with probability 1 - ε, ties to the hashed worker,
        a = an explored worker with probability ε,

    and then Q(k, a) += γ (R - Q(k, a)) (Eq. 5) with the reward R of Eq. 3 and 4 (`dalton.envs.reward`). Q
    starts at the least possible reward, so that a key keeps together until exploration finds better.

    Where load is measured in time (`measure`), so are L_a and avg of the reward: cost over capacity. Which
    keys are hot depends on their tuples all the same: keys that cost more than others call for a larger c.

    Where tuples are counted, L of the first STATS_WIN is its length. Deviations from the authors' code, all
    towards the paper's text: no cap on splitting (``max_split``), fragments expire, sketches resolve the
    threshold.

    Args:
        n_workers: Number of workers n.
        seed: Chooses the hashed worker and the draws of exploration.
        window: Window W and slide s of load and fragments.
        epsilon: Probability ε of exploring.
        epsilon_decay: d in ε / (1 + d v) after v decisions for the key; 0 is constant.
        gamma: Step γ in (0, 1].
        p1: Weight of balance in the reward; p2 = 1 - p1 is that of aggregation.
        initial_q: Value of an action never taken.
        hot_factor: c in the threshold L / (c n).
        explore: Rule of exploration: uniform, least_loaded, fragments or share.
        max_split: Workers of a key from which on it explores only among them; None for no cap.
        statistics: Frequency statistic: exact, sketch, hybrid or space_saving.
        stats_window: STATS_WIN in tuples or in time, as the window is; None for one slide.
        hybrid_limit: Distinct keys in a STATS_WIN above which a hybrid sketches the next.
    """

    forwards = True

    def __init__(
        self,
        *,
        n_workers: int,
        seed: int = 0,
        window: WindowSpec = DEFAULT_WINDOW,
        epsilon: float = 0.1,
        epsilon_decay: float = 0.0,
        gamma: float = 0.1,
        p1: float = 0.5,
        initial_q: float = -2.0,
        hot_factor: float = 1.0,
        explore: str = "uniform",
        max_split: int | None = None,
        statistics: str = "hybrid",
        stats_window: float | None = None,
        hybrid_limit: int = 10_000,
    ) -> None:
        super().__init__(n_workers=n_workers, seed=seed, window=window)
        if self.window is None:
            raise ConfigError("window = None: dalton needs a window, its slide is the unit of its statistics")
        self.epsilon = check_real("epsilon", epsilon, low=0, high=1)
        self.epsilon_decay = check_real("epsilon_decay", epsilon_decay, low=0)
        self.gamma = check_real("gamma", gamma, above=0, high=1)
        self.p1 = check_real("p1", p1, low=0, high=1)
        self.initial_q = check_real("initial_q", initial_q)
        self.hot_factor = check_real("hot_factor", hot_factor, above=0)
        self.explore = check_choice("explore", explore, RULES)
        self.max_split = None if max_split is None else check_int("max_split", max_split, low=1)
        self.statistics = check_choice("statistics", statistics, KINDS[:-1])
        self.stats_window = check_stats_window(self.window, stats_window)
        self.hybrid_limit = check_int("hybrid_limit", hybrid_limit, low=0)
        self.reset()

    stats: Stats
    qtable: QTable
    forward: NDArray[np.bool_]
    """Of the last batch: the flags of `route_and_forward`."""
    rewards: NDArray[np.float64]
    """Of the last batch: the reward of each decision, NaN for hashed tuples."""

    def _reset(self) -> None:
        super()._reset()
        assert self.window is not None
        n = self.n_workers
        self.members = family(self.seed, 1)
        self.forward, self.rewards = np.empty(0, np.bool_), np.empty(0)
        self.random = np.array([stream_key(self.seed, EXPLORATION)], np.uint64)
        self.stats = stats(self.statistics, self.hot_factor * n, self.hybrid_limit)
        self.qtable = qtable(n, self.window.n_slides)
        self.span = stats_span(self.window, self.stats_window)
        split = np.inf if self.max_split is None else self.max_split
        hot = self.hot_factor * n
        rule = [self.epsilon, self.epsilon_decay, self.gamma, self.p1, self.initial_q, hot, split]
        self.rule = np.array([*rule, RULES.index(self.explore), 0, 0], np.float64)
        self.buffer = buffer(0)

    def route_and_forward(
        self, keys: ArrayLike, times: ArrayLike | None = None, costs: ArrayLike | None = None
    ) -> tuple[Workers, NDArray[np.bool_]]:
        """As `route`, with a flag per tuple: whether its key is on one worker only (Section 4.2).

        The combiner may send such a key's result to the output directly, past the reducers, unless a later
        tuple of the slide has no flag.
        """
        workers = self.route(keys, times, costs)
        return workers, self.forward.copy()

    def _route(self, keys: Keys, times: Times, costs: Costs, out: Workers) -> None:
        if len(self.rewards) != len(keys):
            self.forward, self.rewards = np.empty(len(keys), np.bool_), np.empty(len(keys))
        done = 0
        while done < len(keys):
            part = slice(done, done + BLOCK)
            first = candidates(keys[part], self.members, self.n_workers)[0]
            decided = _dalton(
                self.loads,
                self.stats,
                self.qtable,
                self.span,
                self.rule,
                self.random,
                self.buffer,
                first,
                keys[part],
                times[part],
                costs[part],
                out[part],
                self.forward[part],
                self.rewards[part],
            )
            done += decided
            if decided < len(keys[part]):
                self._paused(times[part], decided)

    def _paused(self, times: Times, at: int) -> None:
        """See to what stopped the kernel before tuple ``at``: there was no room for one more key."""
        if self.qtable.spare[0] == 0:
            self.qtable = more_rows(self.qtable)
        if not has_place(self.stats):
            self.stats = grown_stats(self.stats)
