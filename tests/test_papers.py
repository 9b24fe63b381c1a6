"""Facts that the source papers report, on seeded streams and with stated margins."""

import numpy as np
import pytest

from dalton.envs.hashing import candidates, family
from dalton.envs.metrics import max_over_mean
from dalton.envs.simulate import simulate
from dalton.envs.window import Window
from dalton.envs.workloads import make_workload
from dalton.experiments import make

# Slides are only the points at which the imbalance since the start is taken, as the PKG papers do.
WINDOW = Window(20_000, 20_000)


def zipf(exponent, *, n_keys=10_000, n_tuples=1_000_000, seed=0, n_sources=1):
    return make_workload(
        "zipf", n_tuples=n_tuples, n_keys=n_keys, exponent=exponent, seed=seed, n_sources=n_sources
    )


def p1(exponent, n_keys=10_000):
    weights = np.arange(1, n_keys + 1) ** -float(exponent)
    return weights[0] / weights.sum()


def run(name, stream, n, *, view="global", **params):
    return simulate(make(name, n_workers=n, **params), stream, window=WINDOW, view=view, show_progress=False)


def fraction(name, stream, n, **params):
    return run(name, stream, n, **params).summary()["imbalance_fraction"]


# PKG Fig. 7: ZF with K = 10k, imbalance against the exponent and the number of workers.


@pytest.mark.parametrize(("exponent", "n"), [(0.4, 5), (0.4, 10), (0.8, 5), (0.8, 10)])
def test_pkg_is_orders_of_magnitude_better_than_hashing_while_p1_is_below_2_over_n(exponent, n):
    """PKG Fig. 7: at least two orders of magnitude, in every seed."""
    assert p1(exponent) < 2 / n
    for seed in range(3):
        stream = zipf(exponent, seed=seed)
        assert fraction("pkg", stream, n, seed=seed) < 1e-2 * fraction("kg", stream, n, seed=seed)


@pytest.mark.parametrize(("exponent", "n"), [(1.2, 20), (1.2, 50), (1.6, 10), (2.0, 5), (2.0, 20)])
def test_past_2_over_n_the_imbalance_of_pkg_grows_linearly(exponent, n):
    """PKG Section 4: two workers share the first key, hence I(m) >= (p1/2 - 1/n) m; 5 % for sampling."""
    assert p1(exponent) > 2 / n
    for seed in range(3):
        result = run("pkg", zipf(exponent, seed=seed), n, seed=seed)
        seen, imbalance = result.column("seen"), result.column("imbalance_total")
        slope = np.polyfit(seen, imbalance, 1)[0]
        assert slope > 0.95 * (p1(exponent) / 2 - 1 / n)
        # A straight line: it explains all but a thousandth of the variance.
        residual = imbalance - np.polyval(np.polyfit(seen, imbalance, 1), seen)
        assert residual.var() < 1e-3 * imbalance.var()


def test_below_2_over_n_the_imbalance_of_pkg_does_not_grow_with_the_stream():
    """PKG Theorem 4.2 gives O(m/n) in general but Fig. 5 shows no growth: last tenth within 3 x the first."""
    for seed in range(3):
        imbalance = run("pkg", zipf(0.8, seed=seed), 5, seed=seed).column("imbalance_total")
        tenth = len(imbalance) // 10
        assert imbalance[-tenth:].mean() < 3 * imbalance[:tenth].mean() + 5


# PKG Fig. 4: local estimation against the global oracle.


@pytest.mark.parametrize("n_sources", [5, 10])
@pytest.mark.parametrize(("exponent", "n"), [(0.8, 5), (1.0, 5), (1.0, 10)])
def test_local_estimation_stays_within_one_order_of_magnitude_of_global(exponent, n, n_sources):
    """PKG Fig. 4: L / G below 10, taken over three seeds together, and far below hashing."""
    local = whole = hashed = 0.0
    for seed in range(3):
        stream = zipf(exponent, seed=seed, n_sources=n_sources)
        local += fraction("pkg", stream, n, seed=seed, view="local")
        whole += fraction("pkg", stream, n, seed=seed)
        hashed += fraction("kg", stream, n, seed=seed)
    assert local < 10 * whole
    assert local < 0.1 * hashed


def test_local_estimation_decides_differently_from_global_though_both_balance():
    """PKG Fig. 6: over a quarter of the decisions differ at z = 0.4, at least 7 % fewer at z = 1.2."""
    shares = {0.4: 0.0, 1.2: 0.0}
    for exponent in shares:
        for seed in range(4):
            stream = zipf(exponent, n_tuples=300_000, n_sources=5, seed=seed)
            partitioner = make("pkg", n_workers=5, seed=seed)
            result = simulate(
                partitioner, stream, window=WINDOW, view="local", compare_global=True, show_progress=False
            )
            shares[exponent] += result.summary()["disagreement"] / 4
    assert shares[0.4] > 0.25
    assert shares[1.2] < 0.93 * shares[0.4]


# PKG Fig. 9: more choices at z = 1.2.


@pytest.mark.parametrize(
    ("n", "choices", "factor"), [(5, 4, 1000), (10, 4, 1000), (40, 9, 20), (40, 12, 1000)]
)
def test_more_choices_restore_balance_at_exponent_1_2(n, choices, factor):
    """PKG Fig. 9: four choices for five workers, nine for forty.

    Means over six seeds. At five workers some hash functions balance with two choices already (the first two
    keys do not meet), so a single draw shows nothing.
    """
    two = more = 0.0
    for seed in range(6):
        stream = zipf(1.2, seed=seed)
        two += fraction("pkg", stream, n, seed=seed)
        more += fraction("pkg", stream, n, seed=seed, d=choices)
    assert more < two / factor


# PKG Section 3 and 5: what each scheme costs in counters.


def test_workers_per_key():
    """KG uses one worker a key and PKG at most two, and SG all of them for a frequent key."""
    chunk = next(zipf(1.0, n_tuples=300_000).chunks(300_000))
    most = {}
    for name in ("kg", "pkg", "potc", "sg"):
        pairs = np.unique(chunk.keys * 16 + make(name, n_workers=16).route(chunk.keys))
        most[name] = np.bincount(pairs // 16).max()
    assert most == {"kg": 1, "pkg": 2, "potc": 1, "sg": 16}


# CG Section V-A and Fig. 4.


@pytest.mark.parametrize("epsilon", [0.01, 0.1])
@pytest.mark.parametrize(("exponent", "n"), [(0.5, 10), (1.0, 50), (1.5, 10), (2.0, 50)])
def test_porc_keeps_imbalance_below_epsilon_m_over_n(exponent, n, epsilon):
    """CG Section V-A: I(m) <= ε m / n at every moment, up to the one tuple that fills a bin."""
    for seed in range(3):
        result = run("porc", zipf(exponent, seed=seed), n, seed=seed, epsilon=epsilon)
        assert np.all(result.column("imbalance_total") <= epsilon * result.column("seen") / n + 1)


@pytest.mark.parametrize("exponent", [1.0, 1.5, 2.0])
def test_porc_balances_with_fewer_pairs_than_shuffling_and_two_choices_per_message(exponent):
    """CG Fig. 4: at most 0.7 of the pairs of SG and PoTC, as balanced as they are, while KG and PKG are not.

    CG's PoTC hashes the *message* twice, not the key (Section V), which is PKG on the tuples' numbers.
    """
    n = 50
    for seed in range(3):
        keys = next(zipf(exponent, seed=seed).chunks(1_000_000)).keys
        routed = {
            name: make(name, n_workers=n, seed=seed).route(keys) for name in ("porc", "sg", "kg", "pkg")
        }
        routed["potc"] = make("pkg", n_workers=n, seed=seed).route(np.arange(len(keys)))
        pairs = {name: len(np.unique(keys * n + workers)) for name, workers in routed.items()}
        load = {name: max_over_mean(np.bincount(workers, minlength=n)) for name, workers in routed.items()}
        assert pairs["porc"] < 0.7 * min(pairs["sg"], pairs["potc"])
        assert max(load[name] for name in ("porc", "sg", "potc")) < 1.02
        assert min(load[name] for name in ("kg", "pkg")) > 1.5


# DKG: the pool of a hot key in stream time.


def test_dkg_grows_the_pool_of_a_persistent_hot_key_and_shrinks_it_after_it_cools():
    """DKG, in stream time: 20 minutes with one hot key, then 60 with another, five workers further round.

    Loads count from the start, so a pool shrinks when its workers have fallen behind, not at once.
    """
    n, rate = 10, 1000.0
    rng = np.random.default_rng(0)
    home = candidates(np.arange(1000), family(0, 1), n)[0]
    first, second = int(np.flatnonzero(home == 0)[0]), int(np.flatnonzero(home == 5)[0])

    def minute(hot, cold):
        keys = rng.integers(1_000, 20_000, int(60 * rate))
        draw = rng.random(len(keys))
        keys[draw < 0.8] = hot
        keys[(draw >= 0.8) & (draw < 0.802)] = cold
        return keys

    dkg = make("dkg", n_workers=n, rate=rate)
    pools = []
    for _ in range(20):
        dkg.route(minute(first, second))
        pools.append((dkg.pool(first), dkg.pool(second)))
    assert pools[0] == (2, 2)  # nothing is in the old space yet
    assert [pool for pool, _ in pools] == sorted(pool for pool, _ in pools)
    assert pools[-1] == (8, 2)
    for _ in range(60):
        dkg.route(minute(second, first))
        pools.append((dkg.pool(first), dkg.pool(second)))
    assert pools[-1][0] == 2
    assert pools[-1][1] > 4
