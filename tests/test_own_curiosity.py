"""Curiosity measures of other packages, with examples/curiosity_candidates as the package: its numbers
worked out by hand, and how a command line, a run folder and Python name a measure."""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import cclf
from cclf import cli
from cclf.curiosity import CuriosityMeasure
from cclf.errors import ConfigError
from test_curiosity import close
from tiny_runs import tiny_config, tiny_options

EXAMPLE = Path(__file__).parents[1] / "examples" / "curiosity_candidates"
NAMES = ("Ranks", "Debiased", "Cancelled", "Particles")


@pytest.fixture(autouse=True)
def example_on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(EXAMPLE)
    yield
    sys.modules.pop("curiosity_candidates", None)


def measure(name: str) -> Any:
    import curiosity_candidates

    return getattr(curiosity_candidates, name)()


def test_ranks_by_hand() -> None:
    # The largest of four has 3 of 3 below it; each of the two equal ones has 1 below it, and the
    # other counts as a half.
    c = torch.tensor([0.2, 0.7, 0.7, 0.9])
    ranks = measure("Ranks")
    close(ranks.view_weight(c), [0.25, 0.5, 0.5, 0.75])
    close(ranks.priority(c), [0.5, 0.75, 0.75, 1.0])
    # mean 0.625, variance (0.180625 + 2 0.005625 + 0.075625) / 4 = 0.066875
    sigma = math.sqrt(0.066875)
    expected = [0.0, 0.075 / sigma, 0.075 / sigma, 0.275 / sigma]
    close(ranks.bonus_signal(c, c[:, None]), expected)
    close(ranks.priority(torch.tensor([0.4])), [0.5])


def test_bonus_by_rank_is_at_most_two_standard_deviations() -> None:
    c = torch.tensor([0.0] * 99 + [1.0])
    assert measure("Ranks").bonus_signal(c, c[:, None]).max() == 2.0
    assert not measure("Ranks").bonus_signal(torch.full((5,), 0.3), c[:5, None]).any()


def beliefs_of(made: CuriosityMeasure, query: list[list[float]], keys: list[list[float]]) -> Tensor:
    features = (torch.tensor(query), torch.tensor([keys]))
    return made.beliefs(*features, torch.eye(len(query[0])), None)[0]


def test_debiased_belief_by_hand() -> None:
    # Four keys around the origin, t = 1/10. The queries are turned by a right angle: each has
    # cosine 0 with its own key, so p = 1, and 1, 0, -1 with the others: e^10, 1 and e^-10. Of
    # three negatives a tenth is false: 0.3 p is subtracted.
    keys = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]
    turned = [keys[1], keys[2], keys[3], keys[0]]
    rest = (math.exp(10) + 1.0 + math.exp(-10) - 0.3) / 0.9
    close(beliefs_of(measure("Debiased"), turned, keys), [1.0 / (1.0 + rest)] * 4)
    # Unturned, 0.3 e^10 is more than all negatives together: the minimum 3 e^-10 counts.
    own, minimum = math.exp(10), 3.0 * math.exp(-10)
    close(beliefs_of(measure("Debiased"), keys, keys), [own / (own + minimum)] * 4)
    # Neither lengths nor a common part of all features change it.
    moved = [[5.0 + 3.0 * x, 7.0 + 3.0 * y] for x, y in keys]
    close(beliefs_of(measure("Debiased"), turned, moved), [1.0 / (1.0 + rest)] * 4)


def test_cancelled_belief_by_hand() -> None:
    # Logits of query 0: own 1, others 2 and 0. The 2 is cancelled: e / (e + 1). Query 1: own 2,
    # others 1 and 0. Query 2: own 0, others 0 and 0, as similar as the own: no negative remains.
    query = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    keys = [[1.0, 0.0], [2.0, 0.0], [0.0, 0.0]]
    e, e2 = math.e, math.exp(2)
    close(beliefs_of(measure("Cancelled"), query, keys), [e / (e + 1), e2 / (e2 + e + 1), 1.0])


def test_particles_reward_the_rare_and_count_twelve_neighbors() -> None:
    features = torch.zeros(30, 2)
    features[0] = torch.tensor([3.0, 4.0])
    signal = measure("Particles").bonus_signal(torch.zeros(30), features)
    assert (signal[1:] == 0.0).all()  # their twelve nearest are copies
    assert signal[0] == pytest.approx(30.0)  # all of a mean of 1
    assert not measure("Particles").bonus_signal(torch.zeros(5), torch.ones(5, 2)).any()
    one = measure("Particles").bonus_signal(torch.zeros(1), torch.ones(1, 2))
    assert one.isfinite().all()


# Through the public interface


def train(curiosity: str, out: Path, *words: str) -> int:
    config = tiny_config("toy/reach-1d", "cclf", env_steps=30)
    return cli.main(
        ["train", *tiny_options(config), "--curiosity", curiosity, "--out", str(out), *words]
    )


def only_run(out: Path) -> Path:
    (folder,) = (path.parent for path in out.rglob("config.json"))
    return folder


def test_command_line_trains_with_a_measure_of_a_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("belief", "curiosity_candidates:Ranks")):
        assert train(name, tmp_path / str(number)) == 0
    printed = capsys.readouterr().err
    assert "curiosity_candidates:Ranks imports the Python module curiosity_candidates" in printed
    paper, ranks = (only_run(tmp_path / name) for name in "01")
    recorded = json.loads((ranks / "config.json").read_text())
    assert recorded["method"]["curiosity"] == "curiosity_candidates:Ranks"
    assert paper.name != ranks.name, "another curiosity is another run"
    assert (paper / "train.csv").read_bytes() != (ranks / "train.csv").read_bytes()
    evaluate = ["evaluate", str(ranks), "--episodes", "1", "--device", "cpu"]
    assert cli.main(evaluate) == 2
    assert "--trust-imports" in capsys.readouterr().err
    assert cli.main([*evaluate, "--trust-imports"]) == 0


def test_entry_points_name_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = tmp_path / "site" / "curiosity_candidates-0.1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: curiosity-candidates\n")
    points = "[cclf.curiosities]\nranks = curiosity_candidates:Ranks\nlost = nowhere:Lost\n"
    (facts / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert train("ranks", tmp_path) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", str(only_run(tmp_path)), "--episodes", "1"]) == 0, (
        "it is installed"
    )
    capsys.readouterr()
    assert train("rank", tmp_path) == 2
    assert "did you mean ranks?: use one of belief, shuffled, even" in capsys.readouterr().err
    assert train("lost", tmp_path) == 2
    assert "adds nowhere:Lost to cclf.curiosities" in capsys.readouterr().err


@pytest.mark.slow("test_entry_points_name_measures")
def test_results_of_a_curiosity_that_is_not_installed_are_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # `cclf results` writes below the working directory
    assert train("belief", tmp_path) == 0
    run = only_run(tmp_path)
    config = json.loads((run / "config.json").read_text())
    config |= {"method_name": "cclf-ranks", "method": config["method"] | {"curiosity": "ranks"}}
    (run / "config.json").write_text(json.dumps(config))
    for words in (["results"], ["report", "--out", str(tmp_path / "report.html")]):
        assert cli.main([words[0], str(tmp_path), *words[1:]]) == 0
    assert "cclf-ranks" in (tmp_path / "report.html").read_text()
    assert "cclf-ranks" in capsys.readouterr().out
    assert cli.main(["evaluate", str(run), "--episodes", "1"]) == 2
    assert "curiosity=ranks is unknown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ranks", "curiosity=ranks is unknown"),
        ("curiosity_candidates.py:Ranks", "must name a module as `import` does"),
        ("nowhere:Ranks", "Python finds no module 'nowhere'"),
        ("curiosity_candidates:Rank", "has no Rank; did you mean Ranks?"),
        ("curiosity_candidates:rank", "is no cclf.curiosity.CuriosityMeasure but function"),
        ("fractions:Fraction", "is no cclf.curiosity.CuriosityMeasure but Fraction"),
        ("types:SimpleNamespace.__init__", "is no cclf.curiosity.CuriosityMeasure"),
        ("zipfile:ZipFile", "curiosity=zipfile:ZipFile cannot be made: TypeError"),
    ],
)
def test_unusable_names_are_refused_in_one_line(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(name, tmp_path) == 2
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[-1]
    assert lines[-1].startswith("cclf: ")
    assert not list(tmp_path.rglob("config.json")), "no run folder is begun"


def test_curiosity_of_a_notebook_cannot_be_named(tmp_path: Path) -> None:
    class Local(CuriosityMeasure):
        pass

    with pytest.raises(ConfigError, match="defined inside a function"):
        cclf.train("toy/reach-1d", "cclf", curiosity=Local, out=tmp_path)
