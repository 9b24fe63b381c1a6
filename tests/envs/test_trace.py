"""Recorded streams: every format, and one clear line per mistake."""

import contextlib
import os
import pickle
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

from dalton.envs import readers
from dalton.envs.errors import ConfigError
from dalton.envs.hashing import key_ids
from dalton.envs.workloads import make_workload

WORDS = ["b", "a", "żółw", "b", "c"]
INTS = [5, 3, 5, -1, 2**40]
TIMES = [0.0, 0.5, 0.5, 2.0, 3.25]
COSTS = [1.0, 2.0, 0.0, 4.0, 5.0]


def save(path, row_group_size=None, compressed=False, **columns):
    """Write the columns in the format of the suffix."""
    if path.suffix == ".npz":
        arrays = {name: np.asarray(column) for name, column in columns.items()}
        (np.savez_compressed if compressed else np.savez)(path, **arrays)
        return path
    table = pytest.importorskip("pyarrow").table(columns)
    if path.suffix == ".csv":
        pytest.importorskip("pyarrow.csv").write_csv(table, path)
    else:
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=row_group_size)
    return path


def read(path, **params):
    (chunk,) = make_workload("trace", path=str(path), **params).chunks()
    return chunk


def fails(path, *words, **params):
    with pytest.raises(ConfigError) as caught:
        make_workload("trace", path=str(path), **params)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.fixture(params=[".npz", ".parquet", ".csv"])
def path(request, tmp_path):
    return tmp_path / f"trace{request.param}"


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces of a few rows: a file of some hundred rows has many."""
    monkeypatch.setattr(readers, "PIECE", 128)


@pytest.mark.parametrize("keys", [WORDS, INTS])
def test_every_format_gives_the_same_stream(path, keys):
    chunk = read(save(path, key=keys, time=TIMES, cost=COSTS))
    assert np.array_equal(chunk.keys, key_ids(keys))
    assert chunk.keys.dtype == np.int64
    assert chunk.times.tolist() == TIMES
    assert chunk.costs.tolist() == COSTS
    assert chunk.sources is None


def test_only_keys(path):
    workload = make_workload("trace", path=str(save(path, key=INTS)))
    assert workload.arrivals == "count"
    assert workload.n_tuples == 5
    (chunk,) = workload.chunks()
    assert chunk.times is None
    assert chunk.costs is None


def test_parameters(path):
    save(path, user=WORDS, time=TIMES, cost=COSTS)
    chunk = read(path, key="user", n_tuples=3, arrivals="constant", rate=2, cost_mean=7, n_sources=2)
    assert np.array_equal(chunk.keys, key_ids(WORDS[:3]))
    assert chunk.times.tolist() == [0.0, 0.5, 1.0]
    assert chunk.costs.tolist() == [7.0, 7.0, 7.0]
    assert chunk.sources.tolist() == [0, 1, 0]


def test_timestamps_become_seconds(tmp_path):
    times = np.array(["2024-01-01T00:00:00", "2024-01-01T00:00:01.5"], "datetime64[ms]")
    assert read(save(tmp_path / "t.parquet", key=[1, 2], time=times)).times.tolist() == [0.0, 1.5]
    assert read(save(tmp_path / "t.npz", key=[1, 2], time=times)).times.tolist() == [0.0, 1.5]


def test_dictionary_encoded_keys(tmp_path):
    pa = pytest.importorskip("pyarrow")
    keys = pa.array(WORDS).dictionary_encode()
    assert np.array_equal(read(save(tmp_path / "t.parquet", key=keys)).keys, key_ids(WORDS))


def test_a_reader_cannot_change_the_trace(tmp_path):
    workload = make_workload("trace", path=str(save(tmp_path / "t.npz", key=INTS)))
    next(workload.chunks()).keys[:] = 0
    assert next(workload.chunks()).keys.tolist() == INTS


def test_a_trace_inside_another_workload(tmp_path):
    inner = {"name": "trace", "path": str(save(tmp_path / "t.npz", key=INTS))}
    keys = next(make_workload("multi", sources=[inner, "zipf"], n_tuples=10).chunks()).keys
    assert keys[::2].tolist() == INTS
    with pytest.raises(ConfigError, match=r"sources\[0\].n_tuples = 5: expected at least 6"):
        make_workload("multi", sources=[inner, "zipf"], n_tuples=12)


def test_missing_file(path):
    fails(path, str(path), "no such file")


def test_a_folder_without_parts(path):
    path.mkdir()
    fails(path, "the folder has no .parquet file")


@pytest.fixture
def folder(tmp_path):
    """Rows 0 .. 599 in parts of several row groups, one of them empty, and files that are no parts."""
    folder = tmp_path / "stream"
    folder.mkdir()
    for number, low, high in ((9, 0, 250), (10, 250, 250), (99999, 250, 500), (100000, 500, 600)):
        rows = np.arange(low, high)
        path = folder / f"part-{number:05d}-3f.snappy.parquet"
        save(path, row_group_size=100, key=rows * 7, time=rows / 4, cost=rows % 3 * 1.0)
    save(folder / "_draft.parquet", key=[1])
    (folder / "_SUCCESS").touch()
    (folder / ".part-00009-3f.snappy.parquet.crc").write_bytes(b"crc")
    return folder


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_a_folder_is_replayed_part_after_part(folder, small_pieces, size):
    workload = make_workload("trace", path=str(folder))
    assert workload.n_tuples == 600
    chunks = list(workload.chunks(size))
    assert np.array_equal(np.concatenate([chunk.keys for chunk in chunks]), np.arange(600) * 7)
    assert np.array_equal(np.concatenate([chunk.times for chunk in chunks]), np.arange(600) / 4)
    assert np.array_equal(np.concatenate([chunk.costs for chunk in chunks]), np.arange(600) % 3)


@pytest.mark.parametrize("start", [0, 99, 100, 249, 250, 251, 499, 500, 599])
def test_a_folder_starts_anywhere(folder, start):
    file = readers.FORMATS[".parquet"](folder, "key")
    assert np.concatenate(list(file.pieces("key", start))).tolist() == [7 * i for i in range(start, 600)]


def test_time_may_not_fall_from_part_to_part(folder):
    save(folder / "part-100001-3f.parquet", key=[1], time=[0.0], cost=[1.0])
    fails(folder, "time decreases in row 600")


def test_parts_have_the_same_columns(folder):
    save(folder / "part-00011-3f.parquet", key=[1], cost=[1.0])
    fails(folder, "part-00011-3f.parquet has other columns than the parts before it")


def test_a_damaged_part(folder):
    (folder / "part-00011-3f.parquet").write_bytes(b"PAR1")
    fails(folder, str(folder), "cannot be read as a folder of .parquet files")


def test_unknown_format(tmp_path):
    fails(tmp_path / "t.json", "trace format = '.json'", ".parquet")


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_truncated_file(tmp_path, suffix, keep):
    path = save(tmp_path / f"t{suffix}", key=list(range(1_000)))
    raw = path.read_bytes()
    path.write_bytes(raw[: int(keep * len(raw))])
    fails(path, str(path))


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_garbage_is_unreadable(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    path.write_bytes(b"this is no such file\n" * 20)
    fails(path, "cannot be read as " + suffix)


def test_damaged_bytes_never_escape_as_another_error(tmp_path):
    raw = bytearray(save(tmp_path / "t.npz", key=np.arange(50), time=np.arange(50.0)).read_bytes())
    rng = np.random.default_rng(0)
    for _ in range(300):
        bad = bytearray(raw)
        for place in rng.integers(0, len(raw), 3):
            bad[place] = rng.integers(0, 256)
        (tmp_path / "bad.npz").write_bytes(bad)
        # Damage may go unnoticed by the format; any other error than ConfigError fails the test.
        with contextlib.suppress(ConfigError):
            make_workload("trace", path=str(tmp_path / "bad.npz"))


def test_pickled_objects_are_refused(tmp_path):
    np.savez(tmp_path / "t.npz", key=np.array([{"a": 1}], object))
    fails(tmp_path / "t.npz", "cannot be read")


def test_ragged_csv(tmp_path):
    (tmp_path / "t.csv").write_text("key,time\n1,2\n3\n")
    fails(tmp_path / "t.csv", "cannot be read as .csv")


def test_no_key(path):
    fails(save(path, user=INTS, time=TIMES), "no column 'key'", "user")


def test_lengths_differ(tmp_path):
    fails(save(tmp_path / "t.npz", key=INTS, time=TIMES[:4]), "differ in length", "key has 5", "time has 4")


def test_empty(tmp_path):
    fails(save(tmp_path / "t.npz", key=[]), "empty")
    (tmp_path / "t.csv").write_text("key,time\n")
    fails(tmp_path / "t.csv", "empty")
    (tmp_path / "t.csv").write_text("")
    fails(tmp_path / "t.csv", "empty")
    pa = pytest.importorskip("pyarrow")
    fails(save(tmp_path / "t.parquet", key=pa.array([], pa.string())), "empty")


def test_nan_time(path):
    fails(save(path, key=INTS, time=[0.0, 1.0, float("nan"), 3.0, 4.0]), "time = nan in row 2")


def test_decreasing_time(path):
    fails(save(path, key=INTS, time=[0.0, 1.0, 2.0, 1.5, 4.0]), "time decreases in row 3 (2 to 1.5)")


def test_bad_cost(path):
    fails(save(path, key=INTS, cost=[0.0, 1.0, 2.0, -1.5, 4.0]), "cost = -1.5 in row 3")


def test_time_of_words(path):
    fails(save(path, key=INTS, time=WORDS), "time has type", "expected numbers")


def test_missing_key(tmp_path):
    fails(save(tmp_path / "t.parquet", key=[1, None, 3]), "key is missing in row 1")


def test_keys_of_reals(path):
    fails(save(path, key=[0.5, 1.5]), str(path), "key has type")


def test_keys_of_two_dimensions(tmp_path):
    fails(save(tmp_path / "t.npz", key=[[1, 2], [3, 4]]), "key has 2 dimensions")


def test_too_few_rows(path):
    fails(save(path, key=INTS), "n_tuples = 6", "has 5 rows", n_tuples=6)


def test_no_times_to_replay(path):
    fails(save(path, key=INTS), "arrivals = 'trace'", "no column 'time'", arrivals="trace")


def test_without_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("key\n1\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    fails(tmp_path / "t.csv", 'pip install "dalton[data]"')


def test_npz_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert read(save(tmp_path / "t.npz", key=WORDS)).keys.tolist() == key_ids(WORDS).tolist()


def joined(chunks):
    return [None if c[0] is None else np.concatenate(c) for c in list(zip(*chunks, strict=True))[1:4]]


N_ROWS = 500


@pytest.mark.parametrize("kind", ["words", "ints"])
@pytest.mark.parametrize("clock", ["seconds", "timestamps"])
@pytest.mark.parametrize("name", [".npz", ".compressed.npz", ".parquet", ".csv"])
@pytest.mark.usefixtures("small_pieces")
def test_any_cut_gives_the_same_stream(tmp_path, kind, clock, name):
    path, compressed = tmp_path / f"t{name}", "compressed" in name
    ints = np.arange(N_ROWS) ** 2 % 37
    keys = ints if kind == "ints" else np.array([f"word{i}" for i in ints])
    times = np.arange(N_ROWS) // 3 / 4
    stamps = np.datetime64("2024-01-01", "ms") + (times * 1000).astype("timedelta64[ms]")
    time = times if clock == "seconds" else stamps
    save(path, row_group_size=70, compressed=compressed, key=keys, time=time, cost=ints + 0.5)
    workload = make_workload("trace", path=str(path))
    for size in (1, 7, 64, 1_000):
        for start, stop in ((0, N_ROWS), (69, 71), (70, 70), (333, N_ROWS)):
            chunks = list(workload.chunks(size, start, stop))
            assert [chunk.start for chunk in chunks] == list(range(start, stop, size))
            if chunks:
                found = joined(chunks)
                assert np.array_equal(found[0], key_ids(keys)[start:stop])
                assert np.array_equal(found[1], times[start:stop])
                assert np.array_equal(found[2], ints[start:stop] + 0.5)


@pytest.mark.usefixtures("small_pieces")
def test_iterations_side_by_side_do_not_disturb_each_other(path):
    save(path, key=np.arange(N_ROWS), time=np.arange(N_ROWS))
    workload = make_workload("trace", path=str(path))
    pairs = list(zip(workload.chunks(9), workload.chunks(9, 18), strict=False))
    assert all(a.keys[0] + 18 == b.keys[0] == b.times[0] for a, b in pairs)
    assert np.array_equal(joined(workload.chunks(9))[0], np.arange(N_ROWS))


@pytest.mark.usefixtures("small_pieces")
def test_a_trace_twice_inside_another_workload(path):
    inner = make_workload("trace", path=str(save(path, key=np.arange(N_ROWS))))
    outer = make_workload("multi", sources=[inner, inner], n_tuples=2 * N_ROWS)
    for _ in range(2):
        assert np.array_equal(joined(outer.chunks(33))[0], np.arange(2 * N_ROWS) // 2)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to count open files")
@pytest.mark.usefixtures("small_pieces")
def test_an_iteration_that_is_given_up_closes_its_files(path):
    workload = make_workload("trace", path=str(save(path, key=np.arange(N_ROWS), time=np.arange(N_ROWS))))

    def is_open():
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return any(os.readlink(link) == str(path) for link in links if os.path.islink(link))

    chunks = workload.chunks(10)
    next(chunks)
    del chunks
    # Arrow's CSV reader reads ahead in a thread, which lets go of the file when it is done.
    until = time.monotonic() + 10
    while is_open() and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_open()


@pytest.mark.usefixtures("small_pieces")
def test_a_pickle_has_no_rows_and_no_files(path):
    save(path, key=np.arange(N_ROWS), time=np.arange(N_ROWS))
    workload = make_workload("trace", path=str(path))
    whole = joined(workload.chunks())
    workload._keys(0, 10)  # as an outer workload does
    raw = pickle.dumps(workload)
    assert len(raw) < 2_000
    copy = pickle.loads(raw)
    assert copy.params == workload.params
    assert np.array_equal(joined(copy.chunks(10))[:2], whole[:2])


@pytest.mark.parametrize("row", [0, 1, 255, N_ROWS - 1])
@pytest.mark.usefixtures("small_pieces")
def test_mistakes_are_found_in_any_piece(path, row):
    times, costs = np.arange(N_ROWS, dtype=float), np.ones(N_ROWS)
    times[row], costs[row] = np.nan, -2
    fails(save(path, key=np.arange(N_ROWS), time=times), f"time = nan in row {row},")
    fails(save(path, key=np.arange(N_ROWS), cost=costs), f"cost = -2 in row {row},")
    if row:
        times[row] = row - 1.5
        fails(save(path, key=np.arange(N_ROWS), time=times), f"time decreases in row {row} ({row - 1} to")


@pytest.mark.usefixtures("small_pieces")
def test_only_the_rows_in_use_are_checked(path):
    times = [*range(N_ROWS - 1), 0]
    save(path, key=np.arange(N_ROWS), time=times)
    fails(path, "time decreases")
    assert make_workload("trace", path=str(path), n_tuples=N_ROWS - 1).n_tuples == N_ROWS - 1
    assert make_workload("trace", path=str(path), arrivals="count").n_tuples == N_ROWS


@pytest.mark.usefixtures("small_pieces")
class TestTypesOfCsv:
    """A type holds for the whole file, whichever block shows what it is."""

    def write(self, tmp_path, header, *rows):
        pytest.importorskip("pyarrow")
        (tmp_path / "t.csv").write_text("\n".join([header, *map(str, rows)]) + "\n")
        return tmp_path / "t.csv"

    @pytest.mark.parametrize("row", [0, 200, 399])
    @pytest.mark.parametrize("other", ["a", "", "NA", "true", "2024-01-01"])
    def test_one_word_makes_all_keys_strings(self, tmp_path, row, other):
        keys = [str(i % 10) for i in range(400)]
        keys[row], keys[300] = other, "word"
        path = self.write(tmp_path, "key,x", *(f"{key},1" for key in keys))
        assert read(path).keys.tolist() == key_ids(keys).tolist()

    @pytest.mark.parametrize("row", [0, 200, 399])
    def test_one_real_among_integers(self, tmp_path, row):
        keys = [*range(row), 0.5, *range(row + 1, 400)]
        fails(self.write(tmp_path, "key", *keys), "key has type double", "expected integers")

    @pytest.mark.parametrize("row", [0, 200, 399])
    def test_missing_integer(self, tmp_path, row):
        keys = [*range(row), "", *range(row + 1, 400)]
        fails(self.write(tmp_path, "key,x", *(f"{k},1" for k in keys)), f"key is missing in row {row}")

    def test_times_get_more_digits(self, tmp_path):
        times = [*range(300), 300.25]
        assert read(self.write(tmp_path, "key,time", *(f"1,{t}" for t in times))).times.tolist() == times

    def test_timestamps_get_more_digits_and_zones(self, tmp_path):
        for zone in ("", "Z"):
            rows = [f"1,2024-01-01 00:{i // 60:02}:{i % 60:02}{zone}" for i in range(300)]
            path = self.write(tmp_path, "key,time", *rows, f"1,2024-01-01 00:05:00.5{zone}")
            assert read(path).times.tolist() == [*range(300), 300.5]

    def test_a_word_among_times(self, tmp_path):
        rows = [*(f"1,{t}" for t in range(300)), "1,noon"]
        fails(self.write(tmp_path, "key,time", *rows), "cannot be read as .csv", "'noon'")

    def test_ragged_row_late_in_the_file(self, tmp_path):
        fails(self.write(tmp_path, "key,x", *["a,1"] * 300, "b"), "cannot be read as .csv", "Expected 2 col")


def test_object_arrays_say_what_to_do(tmp_path):
    np.savez(tmp_path / "t.npz", key=np.array(["a", "b"], object))
    fails(tmp_path / "t.npz", "cannot be read as .npz", "key holds Python objects", "fixed-width strings")


def test_columns_that_are_not_used_may_be_anything(tmp_path):
    np.savez(tmp_path / "t.npz", key=INTS, other=np.array([{}], object), table=np.ones((2, 2)))
    assert read(tmp_path / "t.npz").keys.tolist() == INTS


def test_npz_shorter_than_its_header(tmp_path):
    np.save(tmp_path / "key.npy", np.arange(1_000))
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("key.npy", (tmp_path / "key.npy").read_bytes()[:-8])
    fails(tmp_path / "t.npz", "cannot be read as .npz", "shorter than its header")


def test_damage_in_the_middle_of_a_column(tmp_path):
    path = save(tmp_path / "t.npz", key=np.arange(1_000))
    raw = bytearray(path.read_bytes())
    raw[4_000] ^= 1
    path.write_bytes(raw)
    fails(path, "cannot be read as .npz", "CRC")


def test_unsigned_keys(path):
    assert read(save(path, key=np.array([1, 2**63 - 1], np.uint64))).keys.tolist() == [1, 2**63 - 1]
    if path.suffix != ".csv":
        fails(save(path, key=np.array([1, 2**63], np.uint64)), str(path), "key = 9223372036854775808")


def test_bytes_in_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    raw = [b"ab", b"\xff\x00", b"ab"]
    for kind in (pa.binary(), pa.large_binary(), pa.binary(2)):
        chunk = read(save(tmp_path / "t.parquet", key=pa.array(raw, kind)))
        assert chunk.keys.tolist() == key_ids(raw).tolist()


def test_a_file_that_changes_after_it_was_checked(path):
    workload = make_workload("trace", path=str(save(path, key=np.arange(1_000))))
    save(path, key=np.arange(10))
    with pytest.raises(ConfigError, match="key ends after 10 rows, expected 1000"):
        list(workload.chunks())
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        list(workload.chunks())


# Prints by how many MiB the peak rises from a short file to a long one.
PEAK = """
import sys
from pathlib import Path
from dalton.envs import readers
from dalton.envs.workloads import make_workload

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024

readers.PIECE, peaks = 1 << 16, []
for path in sys.argv[1:]:
    workload = make_workload("trace", path=path)
    last = [chunk.keys[-1] for chunk in workload.chunks(1 << 14)]
    peaks.append(peak())
print(peaks[1] - peaks[0])
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc for the peak of a process")
def test_memory_does_not_grow_with_the_file(path):
    rng = np.random.default_rng(0)
    paths = []
    for n in (400_000, 4_000_000):
        keys, times = rng.integers(0, 2**62, n), np.cumsum(rng.random(n))
        paths.append(path.with_name(f"{n}{path.suffix}"))
        save(paths[-1], row_group_size=1 << 15, key=keys, time=times)
    code = [sys.executable, "-c", PEAK, *map(str, paths)]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    # The values of the longer file alone are 61 MiB.
    assert float(done.stdout) < 16, done.stderr
