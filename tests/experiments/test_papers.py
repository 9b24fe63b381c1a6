import pytest

from dalton.experiments.papers import experiment_of, experiments, figures
from dalton.experiments.registry import options


def test_every_experiment_says_what_it_is():
    assert [one.name for one in experiments()] == options("experiment")
    assert all(one.title for one in experiments())


def test_a_list_of_figures_names_each():
    found = figures()
    assert found["Dalton Fig. 9a"].name == found["Dalton Fig. 9d"].name == "adaptivity"
    assert found["Dalton Fig. 7"].name == "scalability"


@pytest.mark.parametrize("figure", ["Dalton Fig. 9a", "dalton 9a", "dalton9A", "dalton-fig-9a"])
def test_figures_may_be_written_shortly(figure):
    assert experiment_of(figure).name == "adaptivity"


def test_an_unknown_figure_is_answered_with_the_known_ones(refused):
    line = refused(experiment_of, "Dalton Fig. 77")
    assert line.startswith("figure = 'Dalton Fig. 77': unknown (did you mean 'Dalton Fig. 7'?); known: ")


def test_every_figure_is_found_by_its_own_name():
    for name, experiment in figures().items():
        assert experiment_of(name) is not None
        assert experiment_of(name).name == experiment.name


def test_the_command_lists_and_runs_them(place):
    listed = place.here("reproduce")
    assert listed.code == 0
    assert all(name in listed.out for name in figures())
    done = place.process("reproduce", "dalton7", "testing=true", "tracking=none", "jobs=1")
    assert done.code == 0, done.err
    assert "high skew (Zipf 1.5), 16 workers" in done.out


def test_the_command_refuses_in_one_line(place):
    done = place.here("reproduce", "nothing")
    assert done.code == 2
    assert done.err.startswith("Error: figure = 'nothing': unknown")
    assert len(done.err.strip().splitlines()) == 1
