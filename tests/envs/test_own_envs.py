"""`cclf.train(make_env)`: a function that makes a Gymnasium environment, and Dict observations."""

import functools
from dataclasses import replace

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

import cclf as package  # noqa: E402
import own_envs  # noqa: E402
from cclf import presets  # noqa: E402
from cclf.config import EnvConfig  # noqa: E402
from cclf.envs import gymnasium_env  # noqa: E402
from cclf.envs.make import make_env  # noqa: E402
from cclf.envs.registry import task_note  # noqa: E402
from cclf.errors import ConfigError  # noqa: E402
from test_cli import assert_refused, cclf  # noqa: E402
from tiny_runs import tables, tiny_config, tiny_options  # noqa: E402

TINY = {"env_steps": 40, "batch_size": 4, "hidden_dim": 8, "warmup_agent_steps": 10}
TINY |= {"eval_every_env_steps": 20, "eval_episodes": 1, "video": False, "tensorboard": False}
TINY |= {"device": "cpu", "threads": 1}


def train(task, out, **changes):
    return package.train(task, "rad", out=out, observe="state", **TINY | changes)


# --- a function that makes an environment


def test_a_function_is_trained_stopped_and_resumed_from_either_interface(tmp_path):
    whole = train(own_envs.numbers, tmp_path / "whole")
    assert whole.finished
    assert whole.config.task == "gym/own_envs:numbers"

    def stop(info):
        if info.env_steps == 23:
            raise package.StopRun

    assert not train(own_envs.numbers, tmp_path / "cut", on_step=stop).finished
    words = tiny_options(whole.config)
    code, stdout, err = cclf("train", *words, "--out", tmp_path / "cut")
    assert code == 0, err
    assert "resuming at 23 env steps" in err
    assert stdout.strip() == str(tmp_path / "cut" / whole.config.run_name())
    assert tables(tmp_path / "cut" / whole.config.run_name()) == tables(whole.folder)
    assert whole.agent().evaluate(2).returns == [7.0, 7.0]
    with pytest.raises(ConfigError, match="add --trust-imports"):
        package.load(whole.folder)


@pytest.mark.parametrize(
    ("function", "name"),
    [(own_envs.game, "own_envs:game"), (own_envs.Maker.make, "own_envs:Maker.make")],
)
def test_the_environment_decides_the_algorithm_of_a_function(function, name):
    config = presets.resolve(f"gym/{name}")
    assert config.base == ("rainbow" if function is own_envs.game else "sac")
    assert task_note(config.task, EnvConfig()).endswith("imports the Python module own_envs")


def closure():
    def inner():
        return own_envs.numbers()

    return inner


REFUSED = [
    (lambda: own_envs.numbers(), "is a lambda, or defined inside a function.*write it with `def`"),
    (closure(), "is a lambda, or defined inside a function.*write it with `def`"),
    (functools.partial(own_envs.numbers), "is an object"),
    (own_envs.numbers(), r"an environment \(Countdown\).*cclf.train\(make_env\)"),
    (gymnasium.make("CartPole-v1"), r"or its id: cclf.train\('gym/CartPole-v1'\)"),
    (own_envs.Registered, "registered environment Registered-v0: pass its id, 'gym/own_envs:Reg"),
    (own_envs.shared, r"own_envs:shared\(\) returned the same environment twice"),
    (own_envs.nothing, r"own_envs:nothing\(\) returned NoneType, not a gymnasium.Env"),
    ("gym/own_envs:number", "the module own_envs has no number; did you mean numbers"),
    ("gym/own_envs:Numbers-v0", "unknown Gymnasium environment 'own_envs:Numbers-v0'"),
]


@pytest.mark.parametrize(("task", "message"), REFUSED, ids=[row[1] for row in REFUSED])
def test_function_that_another_process_cannot_import_is_refused(task, message, tmp_path):
    gymnasium_env.inspect_env.cache_clear()
    with pytest.raises(ConfigError, match=message) as caught:
        train(task, tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("checkpoint"))


# --- Dict observations


def test_one_key_of_a_dict_is_observed():
    env = make_env(_config("image_and_numbers", "state", observe_key="joints"), 1)
    assert env.spec.frame_shape == (3,)
    state = env.reset()
    expected, _ = own_envs.image_and_numbers().reset(seed=env._recorder.episode_seed)
    assert np.array_equal(state, expected["joints"])

    image = _config("image_and_numbers", "pixels", observe_key="camera")
    frame = make_env(image, 1).reset(5)
    expected, _ = own_envs.image_and_numbers().reset(seed=5)
    assert np.array_equal(frame, expected["camera"].transpose(2, 0, 1))
    note = task_note(image.task, image.env)
    assert note.startswith("learning from the observation 'camera'; imports")


def _config(name, observe, **env):
    return tiny_config(
        f"gym/own_envs:{name}",
        "rad",
        observe=observe,
        env={"frame_pixels": 12, "crop_pixels": 12} | env,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("image_and_numbers", "keys camera, joints: choose an image with --observe-key"),
        ("image_and_numbers --observe state", "choose one key with --observe-key: joints, or"),
        ("image_and_numbers --observe-key camra", "did you mean camera?"),
        ("image_and_numbers --observe-key joints", "add --observe state"),
        ("image_and_numbers --observe state --observe-key camera", "remove --observe state"),
        ("image --observe-key camera", "whose observations are Box, not Dict: remove it"),
        ("parts --observe state", "gymnasium.wrappers.TransformObservation"),
        ("buttons --observe state", "gymnasium.wrappers.TransformAction"),
    ],
)
def test_unsupported_observations_and_actions_are_refused_with_a_remedy(words, message):
    assert_refused(cclf("train", *f"gym/own_envs:{words} --dry-run".split()), message)


def test_the_option_is_refused_where_there_is_no_dict():
    assert_refused(
        cclf("train", "toy/reach", "--observe-key", "x", "--dry-run"), "has no Dict observations"
    )


def test_the_key_is_part_of_the_run_folder_only_if_it_is_set(tmp_path):
    config = presets.resolve("gym/Pendulum-v1", "rad", observe="state")
    assert config.run_name() == "gym/Pendulum-v1/rad/seed-1-29569945", (
        "as before the option existed"
    )
    run = train(own_envs.image_and_numbers, tmp_path, observe_key="joints")
    assert run.finished
    other = replace(run.config, env=replace(run.config.env, observe_key="camera"))
    assert other.run_name() != run.config.run_name()
