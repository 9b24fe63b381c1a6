"""Figures of real simulations: what is drawn is what was measured."""

import io
import math
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from dalton import make, make_workload, simulate
from dalton.experiments import drawing, plots
from dalton.experiments.drawing import GREY, Style, colour_of, spread, style
from dalton.experiments.records import Record, bound, interval
from dalton.experiments.registry import ready_names

SHIFTS = (1000, 2000)
ONE = {
    "time": plots.imbalance_over_time,
    "plane": plots.balance_plane,
    "heat": plots.load_heatmap,
    "bars": plots.throughput_bars,
    "change": plots.adaptivity,
}


def run(name, n=4, seed=0, label="swap 1.4", **more):
    stream = make_workload("swap", n_tuples=3000, n_keys=90, exponent=1.4, every=1000, seed=seed)
    result = simulate(
        make(name, n_workers=n, seed=seed),
        stream,
        window={"size": 400, "slide": 100},
        show_progress=False,
    )
    more = {"throughput": 1e6 * (2 + len(name) + seed), "shifts": SHIFTS} | more
    return Record.of(result, partitioner=name, workload=label, seed=seed, **more)


@pytest.fixture(scope="module")
def few():
    return [run(name, seed=seed) for name in ("kg", "pkg", "dalton", "oracle") for seed in range(3)]


@pytest.fixture(scope="module")
def many():
    names = ready_names()
    names += [f"variant {i}" for i in range(20 - len(names))]
    base = {name: run(name if name in ready_names() else "pkg") for name in names}
    return [
        Record(name, r.workload, r.n_workers, 0, r.summary, r.slides, r.loads, r.shifts)
        for name, r in base.items()
    ]


def of(records, name):
    return [record for record in records if record.partitioner == name]


def lines(figure):
    return {line.get_label(): line for line in figure.axes[0].get_lines() if line.get_label()[0] != "_"}


def column(records, name="max_over_mean"):
    return np.array([record.slides[name] for record in records], np.float64)


def test_time_line_is_the_mean_in_its_band(few):
    figure = plots.imbalance_over_time(few)
    drawn = lines(figure)
    assert set(drawn) == {"kg", "pkg", "dalton", "oracle"}
    for name, line in drawn.items():
        assert line.get_ydata() == pytest.approx(column(of(few, name)).mean(0))
        assert line.get_xdata() == pytest.approx(np.arange(100, 3001, 100))
    axes = figure.axes[0]
    bands = {tuple(np.round(band.get_facecolor()[0][:3], 3)): band for band in axes.collections}
    colour = tuple(np.round([int(style("pkg").colour[i : i + 2], 16) / 255 for i in (1, 3, 5)], 3))
    corners = bands[colour].get_paths()[0].vertices
    values = column(of(few, "pkg"))
    for x, low, high in zip(range(100, 3001, 100), values.min(0), values.max(0), strict=True):
        at = corners[corners[:, 0] == x][:, 1]
        assert (at.min(), at.max()) == pytest.approx((low, high))
    assert axes.get_ylim()[0] == 1
    dashed = [line.get_xdata()[0] for line in axes.get_lines() if line.get_label()[0] == "_"]
    assert dashed == list(SHIFTS)


def test_wide_range_is_logarithmic_and_narrow_is_not(few):
    assert plots.imbalance_over_time(few).axes[0].get_yscale() == "log"
    assert plots.imbalance_over_time(of(few, "oracle")).axes[0].get_yscale() == "linear"


def test_plane_points_and_whiskers(few):
    figure = plots.balance_plane(few)
    axes = figure.axes[0]
    assert len(axes.containers) == 4
    for bars in axes.containers:
        same = of(few, bars.get_label())
        for data, whisker, metric in zip(
            (bars.lines[0].get_xdata(), bars.lines[0].get_ydata()),
            bars.lines[2],
            ("replication", "max_over_mean"),
            strict=True,
        ):
            mean, half = interval(record.summary[metric] for record in same)
            assert list(data) == pytest.approx([mean])
            at = 0 if metric == "replication" else 1
            ends = whisker.get_segments()[0][:, at]
            assert list(ends) == pytest.approx([mean - half, mean + half])
    edge = next(line for line in axes.get_lines() if line.get_linewidth() == 4)
    load, pairs = bound(few)
    assert list(edge.get_xdata()) == pytest.approx([1, pairs])
    assert list(edge.get_ydata()) == pytest.approx([load, load])
    assert "impossible" in figure.legends[0].get_texts()[0].get_text()


def test_heat_map_is_load_over_mean_of_the_first_seed(few):
    figure = plots.load_heatmap(few)
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_images()}
    assert set(panels) == {"kg", "pkg", "dalton", "oracle"}
    for name, axes in panels.items():
        loads = of(few, name)[0].loads
        image = axes.get_images()[0]
        assert np.asarray(image.get_array()) == pytest.approx(
            np.maximum((loads / loads.mean(1, keepdims=True)).T, 1e-3)
        )
        assert image.norm(1.0) == pytest.approx(0.5)
    assert (
        len({(axes.get_images()[0].norm.vmin, axes.get_images()[0].norm.vmax) for axes in panels.values()})
        == 1
    )


def test_idle_workers_have_a_colour():
    record = run("kg", n=64)
    assert (record.loads == 0).any()
    image = plots.load_heatmap([record]).axes[0].get_images()[0]
    assert not np.ma.getmaskarray(image.norm(image.get_array())).any()


def test_bars_are_sorted_means_with_whiskers(few):
    axes = plots.throughput_bars(few).axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["oracle", "dalton", "pkg", "kg"] or names == ["dalton", "oracle", "pkg", "kg"]
    for name, bar in zip(names, axes.patches, strict=True):
        mean, _ = interval(r.summary["throughput"] for r in of(few, name))
        assert bar.get_width() == pytest.approx(mean / 1e6)
    whiskers = next(part for part in axes.collections).get_segments()
    for name, ends in zip(names, whiskers, strict=True):
        mean, half = interval(r.summary["throughput"] for r in of(few, name))
        assert list(ends[:, 0]) == pytest.approx([(mean - half) / 1e6, (mean + half) / 1e6])
    assert axes.get_xlim()[0] == 0


def test_adaptivity_averages_changes_and_seeds(few):
    figure = plots.adaptivity(few)
    for name, line in lines(figure).items():
        # Slides are of 100 tuples: the changes are before rows 10 and 20, and each lasts 10 slides.
        load = column(of(few, name))
        around = [row[at - 5 : at + 10] for row in load for at in (10, 20)]
        assert line.get_ydata() == pytest.approx(np.mean(around, 0))
        assert list(line.get_xdata()) == list(range(-5, 10))


def test_adaptivity_leaves_out_a_change_without_its_time(few):
    cut = [
        Record(
            r.partitioner, r.workload, r.n_workers, r.seed, r.summary, r.slides, r.loads, (1050, 2000, 2900)
        )
        for r in few
    ]
    for name, line in lines(plots.adaptivity(cut)).items():
        # Tuple 1050 is in row 10. The distributions last 10, 9 and 1 slides, of which 9 is the median.
        load = column(of(cut, name))
        around = [row[at - 5 : at + 9] for row in load for at in (10, 20)]
        assert line.get_ydata() == pytest.approx(np.mean(around, 0))


def test_no_adaptivity_without_a_change():
    assert plots.adaptivity([run("kg", shifts=())]) is None
    assert plots.adaptivity([run("kg", shifts=(0, 3000, 9999))]) is None


def test_scaling_lines(few):
    records = [
        run(name, n, seed, label)
        for name in ("kg", "pkg")
        for n in (2, 4, 8)
        for seed in (0, 1)
        for label in "ab"
    ]
    figure = plots.scaling(records, "throughput")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["a", "b"]
    for bars in figure.axes[1].containers:
        rate = interval(r.summary["throughput"] for r in of(records, bars.get_label()) if r.workload == "b")[
            0
        ]
        assert list(bars.lines[0].get_xdata()) == [2, 4, 8]
        assert list(bars.lines[0].get_ydata()) == pytest.approx([rate / 1e6] * 3)
    balance = plots.scaling(records).axes[0].containers[0]
    same = [r for r in of(records, balance.get_label()) if r.workload == "a" and r.n_workers == 8]
    mean, half = interval(r.summary["max_over_mean"] for r in same)
    assert list(balance.lines[2][0].get_segments()[2][:, 1]) == pytest.approx([mean - half, mean + half])
    assert plots.scaling(few).axes[0].get_title(loc="left") == "swap 1.4"


def test_scaling_refuses(few, refused):
    assert "metric = 'balance': unknown" in refused(plots.scaling, few, "balance")
    assert "at least one" in refused(plots.scaling, [])


@pytest.mark.parametrize("kind", ONE)
def test_axes_say_what_they_show(kind, few):
    figure = ONE[kind](few)
    words = " ".join(
        [text.get_text() for text in figure.findobj(Text)]
        + [axes.get_xlabel() + axes.get_ylabel() for axes in figure.axes]
    )
    expected = {
        "time": ("stream (tuples)", "max/mean load"),
        "plane": ("pairs per key", "max/mean load"),
        "heat": ("slide (number)", "worker (number)", "load / mean load"),
        "bars": ("M tuples/s",),
        "change": ("slides since", "max/mean load"),
    }
    assert all(part in words for part in (*expected[kind], "swap 1.4, 4 workers"))


@pytest.mark.parametrize("kind", ONE)
def test_twenty_partitioners(kind, many):
    figure = ONE[kind](many)
    plots.png(figure)
    words = [text.get_text() for text in figure.findobj(Text)]
    assert len({r.partitioner for r in many}) >= 20
    assert all(record.partitioner in words for record in many)
    assert all(text.get_fontsize() >= 8 for text in figure.findobj(Text) if text.get_text())
    assert figure.get_size_inches()[0] * drawing.DPI == 1200


@pytest.mark.parametrize("kind", ["time", "change"])
def test_labels_do_not_cover_each_other(kind, many):
    figure = ONE[kind](many)
    plots.png(figure)
    names = {record.partitioner for record in many}
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts if text.get_text() in names]
    heights = sorted((box.y0 + box.y1) / 2 for box in boxes)
    assert len(heights) == len(names)
    assert np.diff(heights).min() >= drawing.SMALL * drawing.DPI / 72
    assert max(box.x1 for box in boxes) <= 1200


@pytest.mark.parametrize("kind", ONE)
def test_one_record_and_odd_names(kind):
    record = run("kg", seed=3, label="a $x_ workload")
    odd = Record("$kg_{", *(getattr(record, f) for f in list(Record.__dataclass_fields__)[1:]))
    assert plots.png(ONE[kind]([record]))
    assert plots.png(ONE[kind]([odd]))


def test_one_slide():
    result = simulate(
        make("kg", n_workers=1),
        make_workload("zipf", n_tuples=10),
        window={"size": 10, "slide": 10},
        show_progress=False,
    )
    record = Record.of(result, partitioner="kg", workload="w", seed=0)
    for draw in ONE.values():
        figure = draw([record])
        assert figure is None or plots.png(figure)


def test_what_was_not_measured_has_no_bar(few):
    records = [*of(few, "kg"), run("pkg", throughput=math.nan), run("sg", throughput=None)]
    figure = plots.throughput_bars(records)
    plots.png(figure)
    axes = figure.axes[0]
    assert next(label.get_text() for label in axes.get_yticklabels()) == "kg"
    assert [bar.get_width() for bar in axes.patches][1:] == [0, 0]
    assert [text.get_text() for text in axes.texts][1:] == ["not measured"] * 2


def test_point_without_a_value_is_left_out(few):
    unknown = run("sg")
    unknown.summary["replication"] = math.nan
    figure = plots.balance_plane([*few, unknown])
    assert "sg" not in [bars.get_label() for bars in figure.axes[0].containers]


def test_style_is_of_the_name_alone(few):
    first, second = plots.imbalance_over_time(few), plots.imbalance_over_time(of(few, "pkg"))
    assert lines(first)["pkg"].get_color() == lines(second)["pkg"].get_color() == style("pkg").colour
    bars = plots.throughput_bars(of(few, "pkg")).axes[0].patches[0].get_facecolor()
    assert "#{:02X}{:02X}{:02X}".format(*(round(255 * part) for part in bars[:3])) == style("pkg").colour
    main = [style(name).colour for name in drawing.MAIN]
    assert len(set(main)) == len(main) == 7
    # Pinned: what is drawn from the name is the same in every process and version.
    assert style("cg") == Style("#E69F00", (0, (5, 1, 1, 1)), "<")
    literature = [
        "cam",
        "cg",
        "ch",
        "cm",
        "d_choices",
        "dagreedy",
        "dkg",
        "off_greedy",
        "on_greedy",
        "porc",
        "potc",
        "prompt",
        "w_choices",
    ]
    assert len({style(name) for name in [*literature, *drawing.MAIN]}) == 20


def test_many_partitioners_are_grey_but_for_those_one_looks_for():
    assert colour_of("cam", 8) != GREY
    assert colour_of("cam", 9) == GREY
    for name in ("dalton", "dalton_share", "dalton_new", "oracle", "kg", "pkg"):
        assert colour_of(name, 20) == style(name).colour != GREY


def test_spread_keeps_order_and_gap():
    assert spread([0.2, 0.8], 0.1).tolist() == [0.2, 0.8]
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert spread([0, 0, 0], 0.1) == pytest.approx([0, 0.1, 0.2])
    assert spread([1, 1], 0.1) == pytest.approx([0.9, 1])
    assert spread([0.3], 0.1).tolist() == [0.3]
    crowd = spread([0.5] * 30, 0.1)
    assert (crowd[0], crowd[-1]) == pytest.approx((0, 1))


def test_saved_png_is_150_dpi_and_always_the_same(few, tmp_path):
    path = tmp_path / "new" / "time.png"
    plots.save(plots.imbalance_over_time(few), path)
    first = path.read_bytes()
    assert imread(io.BytesIO(first)).shape[1] == 1200
    plots.save(plots.imbalance_over_time(few), path)
    assert path.read_bytes() == first
    assert b"Software" not in first
    assert b"tIME" not in first
    assert [file.name for file in path.parent.iterdir()] == ["time.png"]


def test_failed_write_leaves_the_old_file(few, tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def full(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(drawing.os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        plots.save(plots.throughput_bars(few), path)
    monkeypatch.undo()
    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="disk full"):
        plots.save(plots.throughput_bars(few), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_works_in_threads_without_pyplot(few):
    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(lambda _: plots.png(plots.balance_plane(few)), range(4)))
    assert len(set(images)) == 1
    assert "matplotlib.pyplot" not in sys.modules
