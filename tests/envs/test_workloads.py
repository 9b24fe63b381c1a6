"""Streams: invariance, determinism, and frequencies against theory (fixed seeds, margins in std. errors)."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from dalton.envs.countries import COUNTRIES, SKEWED
from dalton.envs.errors import ConfigError
from dalton.envs.hashing import key_ids
from dalton.envs.workloads import WORKLOADS, Chunk, Workload, make_workload

N = 20_000
TIMED = {"arrivals": "poisson", "cost_mean": 2.0, "cost_spread": 0.5}
# What a workload needs beyond its defaults, or to drift within N tuples.
EXTRA = {
    "alternate": {"every": 3_000},
    "random_zipf": {"every": 3_000, "n_keys": 1_000},
    "swap": {"every": 3_000, "n_keys": 1_000},
    "gradual": {"step": 1_500, "n_keys": 1_000},
    "country": {"half": True},
    "multi": {"sources": ["zipf", {"name": "swap", "every": 700}, "lognormal"]},
}


@pytest.fixture(scope="module")
def trace_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.npz"
    key = np.arange(N) ** 2 % 1_009
    np.savez(path, key=key, time=np.arange(N) / 7, cost=1.0 + key)
    return str(path)


def build(name, trace_path, **params):
    extra = {"path": trace_path} if name == "trace" else EXTRA.get(name, {})
    return make_workload(name, **{"n_tuples": N, **extra, **params})


def whole(workload, size=1 << 18, **span) -> Chunk:
    chunks = list(workload.chunks(size, **span))
    columns = [None if c[0] is None else np.concatenate(c) for c in list(zip(*chunks, strict=True))[1:]]
    return Chunk(chunks[0].start, *columns)


def same(a: Chunk, b: Chunk) -> bool:
    return all(
        (x is None and y is None) or (x.dtype == y.dtype and np.array_equal(x, y))
        for x, y in zip(a[1:], b[1:], strict=True)
    )


def near(count, n, p, errors=5.0):
    """A binomial count within ``errors`` standard errors of its mean."""
    return abs(count - n * p) <= errors * np.sqrt(n * p * (1 - p)) + 1e-9


@pytest.mark.parametrize("module", ["countries", "drift", "sources", "trace"])
def test_any_module_may_be_imported_first(module):
    code = (
        f"import dalton.envs.{module}; from dalton.envs.workloads import WORKLOADS; print(*sorted(WORKLOADS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == sorted(WORKLOADS), done.stderr


def test_every_extra_is_registered():
    assert set(EXTRA) < set(WORKLOADS)
    assert {"uniform", "zipf", "lognormal", "trace"} < set(WORKLOADS)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
@pytest.mark.parametrize("size", [1_000, 777])
def test_chunk_size_does_not_matter(name, size, trace_path):
    common = {**TIMED} if name == "multi" else {**TIMED, "n_sources": 3, "source_by": "key"}
    workload = build(name, trace_path, **common)
    all_at_once = whole(workload)
    assert len(all_at_once.keys) == N
    assert all_at_once.keys.dtype == np.int64
    assert all_at_once.times is not None
    assert all_at_once.costs is not None
    assert all_at_once.sources is not None
    assert same(whole(workload, size), all_at_once)
    assert [chunk.start for chunk in workload.chunks(size)] == list(range(0, N, size))


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_part_equals_the_same_part_of_the_whole(name, trace_path):
    workload = build(name, trace_path, **TIMED)
    part, full = whole(workload, 500, start=5_321, stop=12_345), whole(workload)
    cut = Chunk(5_321, *(None if x is None else x[5_321:12_345] for x in full[1:]))
    assert part.start == 5_321
    assert same(part, cut)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_seed_decides_the_keys(name, trace_path):
    first, again, other = (whole(build(name, trace_path, seed=seed)).keys for seed in (7, 7, 8))
    assert np.array_equal(first, again)
    assert np.array_equal(first, other) is not WORKLOADS[name].seeded


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_spec_and_pickle_make_it_again(name, trace_path):
    workload = build(name, trace_path, **TIMED)
    full = whole(workload)
    assert same(whole(make_workload(workload.spec)), full)
    copy = pickle.loads(pickle.dumps(workload))
    assert copy.params == workload.params
    assert same(whole(copy), full)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_keys_stay_below_their_bound(name, trace_path):
    workload = build(name, trace_path)
    distinct = np.unique(whole(workload).keys)
    assert workload.n_keys is None or len(distinct) <= workload.n_keys


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.5, 3.0])
def test_zipf_frequencies(exponent):
    # 5 standard errors for each of the 20 heaviest and for the rest together, 2M draws.
    n, n_keys = 2_000_000, 1_000
    keys = whole(make_workload("zipf", n_keys=n_keys, exponent=exponent, n_tuples=n, seed=1)).keys
    p = np.arange(1, n_keys + 1) ** -exponent
    p /= p.sum()
    counts = np.bincount(keys, minlength=n_keys)
    assert len(counts) == n_keys
    assert all(near(counts[r], n, p[r]) for r in range(20))
    assert near(counts[20:].sum(), n, p[20:].sum())


def test_zipf_whole_law_by_chi_square():
    n, n_keys = 2_000_000, 500
    counts = np.bincount(whole(make_workload("zipf", n_keys=n_keys, n_tuples=n)).keys, minlength=n_keys)
    expected = np.arange(1, n_keys + 1) ** -1.0
    expected *= n / expected.sum()
    # Mean n_keys - 1, standard deviation sqrt(2 (n_keys - 1)).
    chi = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi - (n_keys - 1)) < 4 * np.sqrt(2 * (n_keys - 1))


def test_zipf_shift_moves_every_id():
    plain, moved = (whole(make_workload("zipf", n_keys=50, shift=s, n_tuples=N)).keys for s in (0, 17))
    assert np.array_equal((plain + 17) % 50, moved)


def test_uniform_frequencies():
    counts = np.bincount(whole(make_workload("uniform", n_keys=10, n_tuples=1_000_000)).keys)
    assert len(counts) == 10
    assert all(near(count, 1_000_000, 0.1) for count in counts)


@pytest.mark.parametrize(("preset", "heaviest", "share"), [("ln1", 0, 0.1471), ("ln2", 3, 0.0701)])
def test_lognormal_heaviest_share_is_the_papers(preset, heaviest, share):
    n = 2_000_000
    counts = np.bincount(whole(make_workload("lognormal", preset=preset, n_tuples=n, seed=1)).keys)
    assert counts.argmax() == heaviest
    assert near(counts[heaviest], n, share)


def test_lognormal_folds_and_overrides():
    free, folded = (whole(make_workload("lognormal", n_keys=k, n_tuples=N)).keys for k in (None, 100))
    assert np.array_equal(free % 100, folded)
    assert set(whole(make_workload("lognormal", mu=np.log(6), sigma=0, n_tuples=100)).keys) == {6}


def test_country_shares():
    n, hot = 500_000, key_ids([SKEWED])[0]
    assert len(set(COUNTRIES)) == len(COUNTRIES) == 195
    keys = whole(make_workload("country", skew=40, n_tuples=n)).keys
    assert near((keys == hot).sum(), n, 0.4 + 0.6 / 195)
    assert set(keys) == set(key_ids(COUNTRIES))
    assert set(whole(make_workload("country", skew=100, n_tuples=1_000)).keys) == {hot}


def test_country_half_changes_in_the_middle():
    n, hot = 100_001, key_ids([SKEWED])[0]
    keys = whole(make_workload("country", skew=100, half=True, n_tuples=n)).keys
    assert (keys[: n // 2] == hot).all()
    assert near((keys[n // 2 :] == hot).sum(), n - n // 2, 1 / 195)


def test_alternate_takes_turns_and_each_goes_on():
    first, second = {"name": "uniform", "n_keys": 9, "seed": 4}, {"name": "zipf", "n_keys": 9, "seed": 5}
    keys = whole(make_workload("alternate", first=first, second=second, every=300, n_tuples=1_000), 70).keys
    a, b = whole(make_workload(first, n_tuples=600)).keys, whole(make_workload(second, n_tuples=400)).keys
    assert np.array_equal(keys, np.concatenate([a[:300], b[:300], a[300:600], b[300:400]]))


def test_random_zipf_changes_exactly_at_the_boundary():
    workload = make_workload("random_zipf", n_keys=500, every=50_000, n_tuples=200_000, seed=2)
    drawn = [workload.period(p) for p in range(4)]
    assert len(set(drawn)) == 4
    keys = whole(workload).keys
    for p, (z, shift) in enumerate(drawn):
        assert 0.5 <= z <= 1.5
        zipf = make_workload("zipf", n_keys=500, exponent=z, shift=shift, n_tuples=200_000, seed=2)
        span = slice(p * 50_000, (p + 1) * 50_000)
        assert np.array_equal(keys[span], whole(zipf).keys[span])


def test_swap_exchanges_the_hot_keys_exactly_at_the_boundary():
    params = {"n_keys": 100, "exponent": 1.2, "n_tuples": 4_000, "seed": 3}
    workload = make_workload("swap", n_hot=5, every=1_000, **params)
    keys, plain = whole(workload, 333).keys, whole(make_workload("zipf", **params)).keys
    hot = [workload.hot(p) for p in range(4)]
    assert hot[0] == 0
    assert len(set(hot)) == 4
    for p in range(4):
        place = np.arange(100)
        place[:5], place[hot[p] : hot[p] + 5] = np.arange(hot[p], hot[p] + 5), np.arange(5)
        span = slice(p * 1_000, (p + 1) * 1_000)
        assert np.array_equal(keys[span], place[plain[span]])
    shifted = whole(make_workload("swap", n_hot=5, every=1_000, shift=30, **params)).keys
    assert np.array_equal(shifted, (keys + 30) % 100)


def test_gradual_steps():
    workload = make_workload("gradual", n_keys=100, z0=0.0, z1=2.0, step=1_000, n_tuples=5_000)
    assert [workload.exponent(k) for k in range(5)] == [0.0, 0.5, 1.0, 1.5, 2.0]
    keys = whole(workload, 300).keys
    for k in range(5):
        zipf = make_workload("zipf", n_keys=100, exponent=k / 2, n_tuples=5_000)
        span = slice(k * 1_000, (k + 1) * 1_000)
        assert np.array_equal(keys[span], whole(zipf).keys[span])


def test_multi_interleaves_its_sources():
    specs = [{"name": "zipf", "seed": 1}, {"name": "uniform", "seed": 2}, {"name": "lognormal", "seed": 3}]
    chunk = whole(make_workload("multi", sources=specs, n_tuples=10_000), 101)
    assert np.array_equal(chunk.sources, np.arange(10_000) % 3)
    for i, spec in enumerate(specs):
        keys = chunk.keys[i::3]
        assert np.array_equal(keys, whole(make_workload(spec, n_tuples=len(keys))).keys)


def test_nested_seeds_follow_the_outer_seed_and_differ():
    keys = whole(make_workload("multi", sources=["uniform", "uniform"], n_tuples=1_000)).keys
    assert not np.array_equal(keys[::2], keys[1::2])


def test_sources_by_shuffle_and_by_key():
    shuffled = whole(make_workload("zipf", n_sources=4, n_tuples=N), 777)
    assert np.array_equal(shuffled.sources, np.arange(N) % 4)
    hashed = whole(make_workload("zipf", n_sources=4, source_by="key", n_tuples=N))
    assert np.array_equal(hashed.keys, shuffled.keys)
    pairs = set(zip(hashed.keys.tolist(), hashed.sources.tolist(), strict=True))
    assert len(pairs) == len(set(hashed.keys.tolist()))
    assert set(hashed.sources.tolist()) == {0, 1, 2, 3}


def test_arrival_times():
    assert whole(make_workload("zipf", n_tuples=10)).times is None
    constant = whole(make_workload("zipf", arrivals="constant", rate=4, n_tuples=10), 3).times
    assert constant.tolist() == [t / 4 for t in range(10)]
    gaps = np.diff(whole(make_workload("zipf", arrivals="poisson", rate=50, n_tuples=400_000)).times)
    # Mean and standard deviation of an exponential are both 1 / rate; 5 standard errors of the mean.
    assert abs(gaps.mean() * 50 - 1) < 5 / np.sqrt(len(gaps))
    assert abs(gaps.std() * 50 - 1) < 0.02
    assert gaps.min() >= 0


def test_costs_are_a_function_of_the_key():
    params = {"n_keys": 5_000, "cost_mean": 3.0, "cost_spread": 0.5, "n_tuples": 50_000}
    a, b = (whole(make_workload("uniform", seed=seed, **params)) for seed in (0, 1))
    cost = dict(zip(a.keys.tolist(), a.costs.tolist(), strict=True))
    assert all(cost.get(k, c) == c for k, c in zip(b.keys.tolist(), b.costs.tolist(), strict=True))
    values = np.array(list(cost.values()))
    assert values.min() >= 1.5
    assert values.max() < 4.5
    # Uniform on [1.5, 4.5]: standard deviation 3 / sqrt(12).
    assert abs(values.mean() - 3) < 5 * 3 / np.sqrt(12 * len(values))


def test_keyword_only_and_abstract():
    with pytest.raises(TypeError):
        WORKLOADS["zipf"](100)
    with pytest.raises(TypeError):
        Workload()


def test_make_workload_takes_a_workload_with_changes():
    workload = make_workload("zipf", n_tuples=10, exponent=2)
    assert make_workload(workload) is workload
    changed = make_workload(workload, n_tuples=20)
    assert (changed.n_tuples, changed.exponent) == (20, 2.0)


@pytest.mark.parametrize(
    ("spec", "params", "words"),
    [
        ("zipff", {}, ["workload = 'zipff'", "did you mean 'zipf'", "uniform"]),
        ("zipf", {"exponnt": 1}, ["zipf", "'exponnt'", "did you mean 'exponent'", "n_keys", "seed"]),
        ("zipf", {"exponent": -1}, ["exponent = -1", "from 0 to 3"]),
        ("zipf", {"exponent": float("nan")}, ["exponent = nan"]),
        ("zipf", {"n_keys": 0}, ["n_keys = 0"]),
        ("zipf", {"shift": -1}, ["shift = -1"]),
        ("uniform", {"n_keys": 2.5}, ["n_keys = 2.5"]),
        ("uniform", {"n_tuples": 0}, ["n_tuples = 0"]),
        ("uniform", {"seed": -1}, ["seed = -1"]),
        ("uniform", {"arrivals": "poison"}, ["arrivals = 'poison'", "did you mean 'poisson'"]),
        ("uniform", {"rate": 0}, ["rate = 0", "> 0"]),
        ("uniform", {"cost_mean": -2}, ["cost_mean = -2"]),
        ("uniform", {"cost_mean": 1, "cost_spread": 2}, ["cost_spread = 2", "from 0 to 1"]),
        ("uniform", {"cost_spread": 0.5}, ["cost_spread = 0.5", "cost_mean"]),
        ("uniform", {"n_sources": 0}, ["n_sources = 0"]),
        ("uniform", {"source_by": "hash"}, ["source_by = 'hash'", "shuffle"]),
        ("lognormal", {"preset": "ln3"}, ["preset = 'ln3'", "ln1, ln2"]),
        ("lognormal", {"sigma": -1}, ["sigma = -1"]),
        ("country", {"skew": 101}, ["skew = 101", "from 0 to 100"]),
        ("country", {"half": 3}, ["half = '3'"]),
        ("alternate", {"every": 0}, ["every = 0"]),
        ("alternate", {"first": {"name": "zip"}}, ["first", "did you mean 'zipf'"]),
        ("alternate", {"first": {"name": "zipf", "n_tuples": 9}}, ["first.n_tuples = 9", "at least 500000"]),
        ("alternate", {"first": {"name": "zipf", "rate": 9}}, ["first.rate", "outer workload"]),
        ("alternate", {"second": 3}, ["second = 3"]),
        ("random_zipf", {"low": 2, "high": 1}, ["high = 1", "from 2 to 3"]),
        ("swap", {"n_keys": 9, "n_hot": 4}, ["n_hot = 4", "from 1 to 3"]),
        ("gradual", {"z1": 4}, ["z1 = 4", "from 0 to 3"]),
        ("gradual", {"step": 0}, ["step = 0"]),
        ("multi", {}, ["multi", "sources is missing"]),
        ("multi", {"sources": []}, ["sources = []"]),
        ("multi", {"sources": "zipf"}, ["sources = 'zipf'", "list"]),
        ("multi", {"sources": ["zipf", 3]}, ["sources[1] = 3"]),
        ("multi", {"sources": ["zipf", {"name": "zipf", "exponent": -1}]}, ["sources[1]", "exponent = -1"]),
        ({"exponent": 1}, {}, ["'name'"]),
        (3, {}, ["workload = 3"]),
    ],
)
def test_mistakes_are_one_clear_line(spec, params, words):
    with pytest.raises(ConfigError) as caught:
        make_workload(spec, **params)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("span", [{"chunk_size": 0}, {"start": -1}, {"start": 11}, {"start": 5, "stop": 4}])
def test_chunks_checks_its_arguments_at_once(span):
    with pytest.raises(ConfigError):
        make_workload("zipf", n_tuples=10).chunks(**span)
