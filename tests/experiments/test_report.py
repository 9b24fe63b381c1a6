"""The report as a reader opens it: one file, numbers as measured, nothing from elsewhere."""

import base64
import math
import re
from html.parser import HTMLParser

import pytest

from dalton import make, make_workload, simulate
from dalton.experiments import drawing
from dalton.experiments.records import Record, bound, interval, paired
from dalton.experiments.report import write_report

VOID = {"meta", "img", "br", "link"}


class Page(HTMLParser):
    """Collects the tables, links and images of a page, and checks that its tags are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.images, self.links, self.ids = [], [], [], [], []
        self.tables, self.bold, self.styles = [], set(), {}
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.ids.append(given.get("id"))
        for name, value in attrs:
            if name == "src":
                self.images.append(value)
            if name == "href":
                self.links.append(value)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
            self.styles[len(self.tables) - 1, len(self.tables[-1]) - 1] = given.get("class") or ""
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data
            if "b" in self.open:
                at = (len(self.tables) - 1, len(self.tables[-1]) - 1, len(self.tables[-1][-1]) - 1)
                self.bold.add(at)


def run(name, n=4, seed=0, label="zipf 1.4", throughput=1e6, **more):
    result = simulate(
        make(name, n_workers=n, seed=seed),
        make_workload("zipf", n_tuples=2000, n_keys=100, exponent=1.4, seed=seed),
        window={"size": 500, "slide": 250},
        show_progress=False,
    )
    return Record.of(result, partitioner=name, workload=label, seed=seed, throughput=throughput, **more)


NAMES = ("kg", "pkg", "sg", "dalton", "oracle")


@pytest.fixture(scope="module")
def records():
    return [run(name, seed=seed, throughput=1e6 * len(name)) for name in NAMES for seed in range(3)]


def written(folder, records, **given):
    path = folder / "report.html"
    settings = {"title": "A title", "command": "dalton compare", **given}
    pictures = write_report(path, records, **settings)
    return Page(path.read_text(encoding="utf-8")), pictures


@pytest.fixture(scope="module")
def made(records, tmp_path_factory):
    return written(tmp_path_factory.mktemp("report"), records)


def test_needs_nothing_from_elsewhere(made, tmp_path):
    page, pictures = made
    assert all(source.startswith("data:image/png;base64,") for source in page.images)
    assert page.links == []
    assert not {"script", "link", "iframe"} & set(page.tags)
    text = (pictures[0].parent.parent / "report.html").read_text(encoding="utf-8")
    assert "http" not in text
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text


def test_figures_are_also_files_with_stable_names(made):
    page, pictures = made
    kinds = ["plane", "time", "heat", "throughput"]
    assert [path.name for path in pictures] == [f"zipf-1.4-n4-{kind}.png" for kind in kinds]
    assert all(path.parent.name == "figures" for path in pictures)
    embedded = [base64.b64decode(source.partition(",")[2]) for source in page.images]
    assert embedded == [path.read_bytes() for path in pictures]


def test_table_is_what_was_measured(made, records):
    page, _ = made
    (table,) = page.tables
    head, *rows = table
    assert [row[0] for row in rows[-2:]] == ["oracle", "lower bound"]
    assert {row[0] for row in rows} == {"pkg", "sg", "dalton", "kg (to beat)", "oracle", "lower bound"}
    assert head[:4] == ["partitioner", "max/mean load", "minus kg’s", "pairs per key"]
    for row in rows[:-1]:
        same = [r for r in records if r.partitioner == row[0].removesuffix(" (to beat)")]
        mean, half = interval(r.summary["max_over_mean"] for r in same)
        assert row[1] == f"{mean:.3f} ± {half:.3f}"
        mean, half = interval(r.summary["throughput"] for r in same)
        assert row[head.index("M tuples/s")] == f"{mean / 1e6:.2f} ± {half / 1e6:.2f}"
    gaps = paired(records, "max_over_mean", "kg").set_index("partitioner").loc["pkg"]
    pkg = next(row for row in rows if row[0] == "pkg")
    assert pkg[2] == f"{gaps['difference']:+.3f} ± {gaps['difference_ci']:.3f}".replace("-", "−", 1)
    load, pairs = bound(records)
    assert [rows[-1][1], rows[-1][3]] == [f"{load:.3f}", f"{pairs:.3f}"]


def test_bold_is_the_best_that_is_no_bound(made, records):
    page, _ = made
    (table,) = page.tables
    for column, label in enumerate(table[0]):
        if column in (0, 2):
            assert not any(at[2] == column for at in page.bold)
            continue
        values = {
            row: float(re.sub(r"[,%]", "", table[row][column].split(" ±")[0]))
            for row in range(1, len(table) - 2)
        }
        best = max(values.values()) if label == "M tuples/s" else min(values.values())
        bold = {row for _, row, at in page.bold if at == column}
        assert bold == {row for row, value in values.items() if value == best}


def test_rows_to_beat_and_bounds_are_marked(made):
    page, _ = made
    marks = {page.tables[0][row][0]: css for (_, row), css in page.styles.items()}
    assert marks["kg (to beat)"] == "beat"
    assert marks["oracle"] == "bound first"
    assert marks["lower bound"] == "bound"
    assert marks["dalton"] == ""


def test_user_text_is_escaped(tmp_path):
    evil = '<script>alert("1")</script> & \' {{ 7 * 7 }}'
    page, _ = written(
        tmp_path, [run("kg", label=f"w{evil}")], title=f"t{evil}", command=f"c{evil}", notes=[f"n{evil}"]
    )
    assert "script" not in page.tags
    for start in "tcnw":
        assert start + evil in page.text


def test_one_record(tmp_path):
    page, _ = written(tmp_path, [run("pkg", throughput=None)])
    (table,) = page.tables
    assert [row[0] for row in table] == ["partitioner", "pkg", "lower bound"]
    assert "minus kg’s" not in table[0]
    assert "M tuples/s" not in table[0]
    assert "±" not in "".join(table[1])
    assert len(page.images) == 3


def test_only_the_oracle(tmp_path):
    page, _ = written(tmp_path, [run("oracle")])
    assert page.bold == set()
    assert len(page.tables[0]) == 3


def test_what_was_not_measured_is_a_dash(tmp_path):
    records = [run("kg", throughput=math.nan), run("pkg", throughput=2e6)]
    page, _ = written(tmp_path, records)
    (table,) = page.tables
    cells = {row[0]: row[table[0].index("M tuples/s")] for row in table[1:]}
    assert cells == {"kg (to beat)": "–", "pkg": "2.00", "lower bound": "–"}


def test_settings_shifts_and_scaling(tmp_path):
    records = [
        run(name, n=n, label=label, shifts=(1000,))
        for name in ("kg", "dalton")
        for n in (8, 2)
        for label in ("Zipf: 1/4", "zipf 1 4")
    ]
    page, pictures = written(tmp_path, records)
    assert len(page.tables) == 4
    names = [path.name for path in pictures]
    assert len(set(names)) == len(names) == 4 * 5 + 3
    assert {"zipf-1-4-n2-change.png", "zipf-1-4-2-n8-change.png", "scaling-max_over_mean.png"} <= set(names)
    assert {link.removeprefix("#") for link in page.links} == {at for at in page.ids if at}
    again, same = written(tmp_path, records)
    assert (again.text, same) == (page.text, pictures)


def test_no_records(tmp_path, refused):
    assert "at least one" in refused(write_report, tmp_path / "r.html", [], title="t", command="c")
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_the_old_report(tmp_path, monkeypatch):
    records = [run("kg")]
    written(tmp_path, records)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(drawing.os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        written(tmp_path, records, title="Another")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
