"""`cclf runs`, the choice of a run in a folder with several, and where commands write by default."""

import json
import os
import shutil

import pytest

from cclf.cli import main
from cclf.commands import runs
from test_cli import assert_refused, cclf
from tiny_runs import tiny_config, tiny_options

FIRST = tiny_config(method="drq", seed=1)
VARIANT = tiny_config(method="drq", seed=2, algorithm={"learning_rate": 0.5})
OTHER = tiny_config(method="rad", seed=3)
CURIOUS = tiny_config(env_steps=30)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    for config in (FIRST, CURIOUS):
        assert main(["train", *tiny_options(config), "--out", str(out)]) == 0
    return out


@pytest.fixture
def several(trained, tmp_path):
    """Three runs, of which the second one trained last."""
    for config, trained_at in ((FIRST, 2), (VARIANT, 3), (OTHER, 1)):
        folder = tmp_path / config.run_name()
        shutil.copytree(trained / FIRST.run_name(), folder)
        (folder / "config.json").write_text(json.dumps(config.to_dict()))
        for name in ("config.json", "train.csv"):
            os.utime(folder / name, (trained_at, trained_at))
    return tmp_path


def test_runs_are_listed_with_what_differs_and_the_last_return(several):
    code, out, err = cclf("runs", several)
    assert (code, err) == (0, "")
    infos = json.loads(cclf("runs", several, "--json")[1])
    assert [info["run"] for info in infos] == [
        str(several / config.run_name()) for config in (OTHER, FIRST, VARIANT)
    ]
    assert [info["settings"] for info in infos] == ["", "", "learning_rate=0.5"]
    assert {info["env_steps"] for info in infos} == {60}
    value = f"return {infos[0]['return_mean']:.4g} at 60 env steps"
    assert out.splitlines() == [
        *(f"toy/reach-1d  rad  seed 3  {value}", f"    {several / OTHER.run_name()}"),
        *(f"toy/reach-1d  drq  seed 1  {value}", f"    {several / FIRST.run_name()}"),
        *(f"toy/reach-1d  drq  learning_rate=0.5  seed 2  {value}",),
        f"    {several / VARIANT.run_name()}",
    ]


def test_runs_of_a_folder_without_any_are_refused(tmp_path):
    assert_refused(cclf("runs", tmp_path), "contains no runs")


@pytest.mark.parametrize("command", ["evaluate", "play", "inspect", "export"])
def test_commands_on_several_runs_list_them(several, command):
    code, out, err = cclf(command, several)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{several} contains 3 runs: name one of them, or add --last" in err
    assert out == cclf("runs", several)[1]


def test_last_takes_the_run_that_trained_last(several):
    code, out, _ = cclf("evaluate", several, "--last", "--episodes", "1", "--json")
    assert code == 0
    assert json.loads(out)["run"] == str(several / VARIANT.run_name())
    assert cclf("evaluate", several, "--json")[1] == ""


@pytest.mark.usefixtures("several")
def test_run_whose_config_cannot_be_read_is_listed_by_its_folder(tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    assert f"?  ?  not evaluated yet\n    {tmp_path / 'broken'}\n" in cclf("runs", tmp_path)[1]


def test_folder_with_one_run_stands_for_it(trained, tmp_path):
    one = tmp_path / "toy" / "one"
    shutil.copytree(trained / FIRST.run_name(), one)
    assert runs.select_run(tmp_path, last=False) == one
    for inner in ("failure", "shared"):  # of a failure, and of an exported agent: no other runs
        shutil.copytree(trained / FIRST.run_name(), one / inner)
    assert runs.select_run(tmp_path, last=False) == one


@pytest.mark.quick("play-episode.mp4", "export --card-agent")
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("play", "episode.mp4"),
        ("inspect --samples 8", "curiosity.html"),
        ("export", "policy.pt2"),
        ("export --card", "agent"),
    ],
)
def test_output_goes_into_the_run_folder_and_says_what_it_replaced(
    trained, tmp_path, command, name
):
    run = tmp_path / "run"
    shutil.copytree(trained / CURIOUS.run_name(), run)
    word, *options = command.split()
    code, out, err = cclf(word, run, *options)
    assert (code, err) == (0, ""), err
    assert out.splitlines()[-1] == str(run / name)
    assert (run / name).exists()
    if name != "agent":
        assert cclf(word, run, *options)[2] == f"replaced {run / name}\n"
    assert runs.find_runs(tmp_path) == [run], "the exported agent is no further run"
