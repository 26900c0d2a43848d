"""The presets against the tables of the paper's appendix, value by value."""

import dataclasses
from dataclasses import replace
from itertools import combinations

import pytest
import torch

from cclf import presets
from cclf.algorithms.base import CONTROLS
from cclf.algorithms.rainbow.presets import METHODS as RAINBOW_METHODS
from cclf.algorithms.registry import algorithms
from cclf.algorithms.sac.presets import METHODS as SAC_METHODS
from cclf.algorithms.sac.sac import SAC
from cclf.commands.train import all_configs, train_config
from cclf.config import PIECES, MethodConfig
from cclf.envs.registry import known_tasks
from cclf.errors import ConfigError

DMC_TASKS = (
    "dmc/finger-spin",
    "dmc/cartpole-swingup",
    "dmc/reacher-easy",
    "dmc/cheetah-run",
    "dmc/walker-walk",
    "dmc/ball_in_cup-catch",
)

# Row of the paper's table, where the config has it, its value.
COMMON_SETTINGS = (
    ("Observation rendering", "env.frame_pixels", 100),
    ("Observation downsampling", "env.crop_pixels", 84),
    ("Replay buffer size", "algorithm.replay_capacity_transitions", 100_000),
    ("Initial steps", "algorithm.warmup_agent_steps", 1_000),
    ("Stacked frames", "env.frame_stack", 3),
    ("Hidden units (MLP)", "algorithm.hidden_dim", 1024),
    ("Evaluation episodes", "run.eval_episodes", 10),
    ("(beta1) -> alpha", "algorithm.temperature_beta1", 0.5),
    ("Learning rate (alpha)", "algorithm.temperature_learning_rate", 1e-4),
    ("Batch Size", "algorithm.batch_size", 512),
    ("Initial temperature", "algorithm.initial_temperature", 0.1),
    ("Q function EMA rate", "algorithm.q_ema_rate", 0.01),
    ("Critic target update frequency", "algorithm.target_every_updates", 2),
    ("Actor update frequency", "algorithm.actor_every_updates", 2),
    ("Actor log stddev bounds, lower", "algorithm.log_std_min", -10.0),
    ("Actor log stddev bounds, upper", "algorithm.log_std_max", 2.0),
    ("Convolutional layers", "algorithm.conv_layers", 4),
    ("Number of filters", "algorithm.conv_filters", 32),
    ("Encoder EMA rate", "algorithm.encoder_ema_rate", 0.05),
    ("Encoder feature dimension", "algorithm.feature_dim", 50),
    ("Discount factor", "algorithm.discount", 0.99),
    ("Environment steps", "run.env_steps", 100_000),
    ("Evaluation every", "run.eval_every_env_steps", 10_000),
)
CURIOSITY_SETTING = (
    ("[K, M]", "method.views", 5),
    ("Momentum coefficient for prioritization", "method.priority_momentum", 0.99),
    ("Intrinsic reward decay weight", "method.bonus_decay_per_env_step", 2e-5),
    ("Intrinsic reward temperature", "method.bonus_temperature", 0.2),
)
# 4 otherwise
ACTION_REPEAT = {"dmc/finger-spin": 2, "dmc/walker-walk": 2, "dmc/cartpole-swingup": 8}
LEARNING_RATE = {"dmc/cheetah-run": 2e-4}  # 1e-3 otherwise


def value_of(config, path):
    group, _, name = path.partition(".")
    return getattr(getattr(config, group), name)


@pytest.mark.parametrize("profile", ["paper", "released"])
@pytest.mark.parametrize("task", DMC_TASKS)
def test_dmc_settings_are_those_of_the_papers_tables(task, profile):
    config = presets.resolve(task, "cclf", profile=profile)
    ours = {row: value_of(config, path) for row, path, _ in (*COMMON_SETTINGS, *CURIOSITY_SETTING)}
    assert ours == {row: value for row, _, value in (*COMMON_SETTINGS, *CURIOSITY_SETTING)}
    assert config.env.action_repeat == ACTION_REPEAT.get(task, 4)
    assert config.algorithm.learning_rate == LEARNING_RATE.get(task, 1e-3)


@pytest.mark.parametrize("task", DMC_TASKS)
def test_common_settings_are_the_same_for_every_method(task):
    for method in SAC_METHODS:
        config = presets.resolve(task, method)
        assert all(value_of(config, path) == value for _, path, value in COMMON_SETTINGS)


def test_adam_moments_are_those_of_the_papers_table():
    """(.9, .999) for encoder, actor and critic, (.5, .999) for the temperature; the rates of
    each."""
    config = presets.resolve("dmc/cheetah-run", "cclf", profile="paper")
    small = replace(
        config,
        env=replace(config.env, crop_pixels=16),
        algorithm=replace(config.algorithm, hidden_dim=8),
    )
    sac = SAC(small, 6, torch.device("cpu"))
    rates = {name: optimizer.lr for name, optimizer in sac.optimizers.items()}
    betas = {name: optimizer.betas for name, optimizer in sac.optimizers.items()}
    assert rates == {"critic": 2e-4, "actor": 2e-4, "contrastive": 2e-4, "temperature": 1e-4}
    assert betas.pop("temperature") == (0.5, 0.999)
    assert set(betas.values()) == {(0.9, 0.999)}


# augmentation, views made, views in the losses, how they are chosen, contrastive, pieces
METHODS = {
    "sac-pixel": ("centre-crop", 1, 1, "all", False, []),
    "rad": ("random-crop", 1, 1, "all", False, []),
    "curl": ("random-crop", 2, 1, "all", True, []),  # one crop and one key
    "drq": ("random-crop", 2, 2, "all", False, []),
    "drq-5": ("random-crop", 5, 5, "all", False, []),
    "curl+": ("random-crop", 2, 2, "all", True, []),
    "curl++": ("random-crop", 5, 5, "all", True, []),
    "select": ("random-crop", 5, 2, "overlap", True, []),
    "select+": ("random-crop", 5, 2, "curiosity", True, ["selection"]),
    "cclf": ("random-crop", 5, 2, "curiosity", True, list(PIECES)),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_sac_are_those_of_the_paper(name):
    config = presets.resolve("dmc/cartpole-swingup", name).method
    facts = (
        config.augmentation,
        config.num_augmented_views,
        config.num_loss_views,
        config.selection,
        config.contrastive,
    )
    assert (
        *facts,
        presets.method_config(SAC_METHODS[name], algorithms()["sac"]).active_pieces,
    ) == METHODS[name]
    assert (config.prioritisation, config.regularisation, config.reward) == (name == "cclf",) * 3


def subsets(items, smallest):
    return {
        frozenset(subset)
        for count in range(smallest, len(items) + 1)
        for subset in combinations(items, count)
    }


OF_CURIOSITY = [f"cclf-{measure}" for measure in CONTROLS]
SAC_ABLATIONS = [name for name in SAC_METHODS if name not in (*METHODS, *OF_CURIOSITY)]


def test_fourteen_ablations_and_cclf_are_all_subsets_of_the_pieces():
    ablations = SAC_ABLATIONS
    assert len(ablations) == 14
    assert {frozenset(name.split("+")) for name in ablations} == subsets(PIECES, 1) - {
        frozenset(PIECES)
    }
    found = [
        frozenset(presets.method_config(SAC_METHODS[name], algorithms()["sac"]).active_pieces)
        for name in (*ablations, "cclf")
    ]
    assert len(set(found)) == len(found) == 15
    assert set(found) == subsets(PIECES, 1)
    assert len(SAC_METHODS) == 24 + len(OF_CURIOSITY)


@pytest.mark.parametrize("name", SAC_ABLATIONS)
def test_ablation_is_cclf_without_the_pieces_it_does_not_name(name):
    pieces = name.split("+")
    config = presets.resolve("dmc/cartpole-swingup", name).method
    cclf = presets.resolve("dmc/cartpole-swingup", "cclf").method
    without = {piece: False for piece in PIECES[1:] if piece not in pieces}
    if "selection" not in pieces:
        without |= {"selection": "all", "views": 2}  # two random crops
    assert config == replace(cclf, **without)
    assert config.contrastive
    assert config.num_loss_views == 2


# Where paper and released code disagree, in the paper's and the released reading; the rate differs
# on cheetah alone.
DISAGREEMENTS = {
    "algorithm.encoder_tanh": (True, False),
    "algorithm.contrastive_encoder_steps": (1, 2),
    "algorithm.last_crop_offset": (True, False),
    "algorithm.collection_view": ("random-crop", "centre-crop"),
    "method.contrastive_reduction": ("sum", "weighted-mean"),
    "method.bonus_maxima": ("of-curiosity", "of-paid-bonus"),
}


@pytest.mark.parametrize("task", DMC_TASKS)
def test_profiles_differ_only_in_the_listed_fields(task):
    paper, released = (
        presets.resolve(task, "cclf", profile=profile).hashed_fields()
        for profile in ("paper", "released")
    )
    differing = {key: (paper[key], released[key]) for key in paper if paper[key] != released[key]}
    expected = dict(DISAGREEMENTS)
    if task == "dmc/cheetah-run":
        expected["algorithm.contrastive_learning_rate"] = (2e-4, 1e-3)
    assert differing == expected


def test_released_is_the_default_profile():
    assert set(algorithms()["sac"].profiles) == {"paper", "released"}
    assert presets.resolve("dmc/walker-walk") == presets.resolve(
        "dmc/walker-walk", profile="released"
    )
    assert presets.resolve("dmc/walker-walk", profile="paper").profile == "paper"


@pytest.mark.parametrize("base", algorithms())
def test_differences_from_cclf_are_those_from_the_default_method(base):
    """That is CCLF, or the first method where none is called so."""
    default = algorithms()[base].default_method
    for name, method in algorithms()[base].methods.items():
        differences = presets.differences_from_cclf(method, algorithms()[base])
        assert (differences == {}) == (name == default.name)
        fields = {f.name for f in dataclasses.fields(MethodConfig)}
        ours = {key: value for key, value in differences.items() if key in fields}
        assert replace(
            presets.method_config(default, algorithms()[base]), **ours
        ) == presets.method_config(method, algorithms()[base])


@pytest.mark.quick(
    "dmc/cartpole-swingup", "minigrid/DoorKey-6x6", "toy/reach", "toy/catch", "atari/Pong"
)
@pytest.mark.parametrize("task", known_tasks())
def test_every_task_resolves_with_every_method_of_its_base(task):
    base = presets.select_algorithm(task).name
    for method in algorithms()[base].methods:
        for profile in algorithms()[base].profiles:
            config = presets.resolve(task, method, seed=3, profile=profile)
            assert (config.task, config.method_name, config.seed, config.profile) == (
                task,
                method,
                3,
                profile,
            )


@pytest.mark.parametrize(
    ("task", "method", "profile", "message"),
    [
        ("dmc/cartpole-swingup", "cclff", "paper", "unknown method 'cclff'; did you mean cclf"),
        (
            "dmc/cartpole-swingup",
            "re3",
            "paper",
            "unknown method 're3': it is a method of a2c, and this task is learned with sac",
        ),
        ("dmc/cartpole-swingup", "cclf", "papre", "unknown profile 'papre'; did you mean paper"),
        ("toy/raech", "cclf", "paper", "unknown task 'toy/raech'; did you mean toy/reach"),
        (
            "cartpole-swingup",
            "cclf",
            "paper",
            "unknown task 'cartpole-swingup'; did you mean dmc/cartpole-swingup",
        ),
        ("Acrobot-v1", None, "paper", "unknown task 'Acrobot-v1'; did you mean gym/Acrobot-v1?"),
        ("my_envs:make", None, "paper", "did you mean gym/my_envs:make?"),
        ("MiniGrid-DoorKey-6x6-v0", None, "paper", "did you mean minigrid/DoorKey-6x6?"),
        ("dmc/", "cclf", "paper", "unknown task 'dmc/'"),
        ("zzz", "cclf", "paper", "unknown task 'zzz' "),
    ],
)
def test_unknown_names_suggest_the_nearest(task, method, profile, message):
    with pytest.raises(ConfigError) as caught:
        presets.resolve(task, method, profile=profile)
    assert message in str(caught.value)


def test_suites_with_open_names_accept_unlisted_tasks():
    assert presets.resolve("dmc/hopper-stand").env.action_repeat == 4
    assert presets.resolve("gym/Pendulum-v1", make_env=False).env.action_repeat == 1


# Rainbow: rows of the sheet (CURL's code), where the config has them, and the value.
RAINBOW_SETTINGS = (
    ("env.frame_pixels", 84),
    ("env.crop_pixels", 84),
    ("env.frame_stack", 4),
    ("env.action_repeat", 4),
    ("algorithm.batch_size", 32),
    ("algorithm.learn_start_agent_steps", 1_600),
    ("algorithm.replay_capacity_transitions", 100_000),
    ("algorithm.discount", 0.99),
    ("algorithm.n_steps", 20),
    ("algorithm.n_step_bug", False),
    ("algorithm.priority_exponent", 0.5),
    ("algorithm.importance_beta", 0.4),
    ("algorithm.importance_beta_agent_steps", 98_400),
    ("algorithm.learning_rate", 1e-4),
    ("algorithm.adam_epsilon", 1.5e-4),
    ("algorithm.max_gradient_norm", 10.0),
    ("algorithm.target_every_agent_steps", 2_000),
    ("algorithm.key_ema_rate", 0.001),
    ("algorithm.hidden_dim", 256),
    ("algorithm.atoms", 51),
    ("algorithm.value_max", 10.0),
    ("algorithm.noisy_sigma", 0.1),
    ("algorithm.epsilon_train", 0.0),
    ("algorithm.epsilon_eval", 0.001),
    ("algorithm.contrastive_hidden_dim", 256),
    ("algorithm.contrastive_dim", 128),
    ("algorithm.logit_scale", 0.1),
    ("run.env_steps", 400_000),
    ("run.eval_every_env_steps", 40_000),
    ("run.eval_episodes", 10),
    ("run.final_eval_episodes", 100),
)
_SAME_BASE = [
    name for name in RAINBOW_METHODS if not name.startswith(("drq", "efficient", "otrainbow"))
]


@pytest.mark.parametrize("method", _SAME_BASE)
def test_rainbow_settings_are_those_of_the_table(method):
    config = presets.resolve("atari/Seaquest", method)
    assert {path: value_of(config, path) for path, _ in RAINBOW_SETTINGS} == dict(RAINBOW_SETTINGS)


def test_cclf_on_rainbow_has_the_settings_of_the_paper():
    config = presets.resolve("atari/Pong", "cclf")
    method = config.method
    assert (method.views, method.priority_momentum, method.bonus_temperature) == (5, 0.99, 2e-4)
    assert (method.bonus_decay_per_env_step, method.bonus_maxima) == (2e-5, "of-curiosity")
    assert not config.algorithm.importance_sampling
    assert config.algorithm.q_observations == "views"


# augmentation, views drawn and learned, contrastive, curiosity's priorities, TD priorities,
# importance weights, what Q sees
RAINBOW_METHODS = {
    "rainbow": ("none", 1, 1, False, False, "td-error", True, "original"),
    "rainbow-uniform": ("none", 1, 1, False, False, "uniform", False, "original"),
    "rainbow-shift-1": ("crop-pad-crop", 1, 1, False, False, "td-error", True, "views"),
    "rainbow-shift-2": ("crop-pad-crop", 2, 2, False, False, "td-error", True, "views"),
    "otrainbow": ("none", 1, 1, False, False, "td-error", True, "original"),
    "efficient-dqn": ("none", 1, 1, False, False, "uniform", False, "original"),
    "drq": ("shift", 1, 1, False, False, "uniform", False, "views"),
    "curl": ("crop-pad-crop", 2, 1, True, False, "td-error", True, "original"),
    "cclf": ("crop-pad-crop", 5, 2, True, True, "td-error", False, "views"),
    "selection": ("crop-pad-crop", 5, 2, True, False, "td-error", True, "views"),
    "regularisation+reward": ("crop-pad-crop", 2, 2, True, False, "td-error", True, "views"),
}


@pytest.mark.parametrize("name", RAINBOW_METHODS)
def test_methods_of_rainbow(name):
    config = presets.resolve("atari/Pong", name)
    method, rainbow = config.method, config.algorithm
    facts = (
        method.augmentation,
        method.num_augmented_views,
        method.num_loss_views,
        method.contrastive,
        method.prioritisation,
    )
    assert (
        *facts,
        rainbow.base_replay,
        rainbow.importance_sampling,
        rainbow.q_observations,
    ) == RAINBOW_METHODS[name]


def test_rainbow_has_all_fifteen_combinations_of_pieces():
    base = algorithms()["rainbow"]
    found = {
        frozenset(presets.method_config(method, base).active_pieces)
        for method in base.methods.values()
    }
    assert found == subsets(PIECES, 1) | {frozenset()}


def test_efficient_dqn_drq_and_otrainbow_have_their_own_settings():
    drq = presets.resolve("atari/Pong", "drq").algorithm
    assert (drq.noisy, drq.distributional, drq.dueling, drq.double_q, drq.n_steps) == (
        False,
        False,
        True,
        True,
        10,
    )
    assert (
        drq.target_every_agent_steps,
        drq.epsilon_train,
        drq.epsilon_eval,
        drq.intensity_scale,
    ) == (1, 0.1, 0.05, 0.05)
    assert presets.resolve("atari/Pong", "efficient-dqn").algorithm == replace(
        drq, intensity_scale=0.0, q_observations="original"
    )
    ot = presets.resolve("atari/Pong", "otrainbow").algorithm
    assert (
        ot.updates_per_agent_step,
        ot.n_steps,
        ot.learn_start_agent_steps,
        ot.dueling,
        ot.double_q,
    ) == (
        8,
        3,
        20_000,
        False,
        False,
    )
    assert presets.resolve("atari/Pong", "otrainbow").planned_updates == 8 * 80_001


@pytest.mark.parametrize(
    ("game", "curl", "cclf"),
    [("Pong", 0.01, 1e-4), ("Alien", 1.0, 1.0), ("Krull", 1.0, 1e-4), ("SpaceInvaders", 1.0, 1e-4)],
)
def test_contrastive_coefficients_per_game_and_list(game, curl, cclf):
    found = {
        name: presets.resolve(f"atari/{game}", name).algorithm.contrastive_coefficient
        for name in algorithms()["rainbow"].methods
    }
    assert (found["curl"], found["cclf-curl-list"]) == (curl, curl)
    assert (found["cclf"], found["curl-cclf-list"]) == (cclf, cclf)


def test_profiles_of_rainbow_differ_in_two_fields():
    paper, released = (
        presets.resolve("atari/Pong", profile=profile).hashed_fields()
        for profile in ("paper", "released")
    )
    differing = {key: (paper[key], released[key]) for key in paper if paper[key] != released[key]}
    assert differing == {
        "algorithm.warmup_policy": ("uniform", "noisy-net"),
        "method.contrastive_reduction": ("sum", "weighted-mean"),
    }


def test_names_of_a_game_resolve_to_one_name():
    names = {
        presets.resolve(f"atari/{name}").task for name in ("MsPacman", "ms_pacman", "mspacman")
    }
    assert names == {"atari/MsPacman"}
    assert (
        presets.resolve("atari/ms_pacman").run_name()
        == presets.resolve("atari/MsPacman").run_name()
    )


# --- sizes


@pytest.mark.parametrize(
    ("task", "base"),
    [
        ("dmc/cartpole-swingup", "sac"),
        ("dmc/walker-walk", "drqv2"),
        ("atari/Pong", "rainbow"),
    ],
)
def test_size_is_smaller_in_every_field_that_it_changes(task, base):
    whole = presets.resolve(task, base_name=base)
    small = presets.resolve(task, base_name=base, size="small")
    before, after = whole.hashed_fields(), small.hashed_fields()
    changed = {name for name in before if before[name] != after[name]}
    assert {"env.frame_pixels", "algorithm.hidden_dim"} <= changed
    assert all(after[name] < before[name] for name in changed)
    assert small.run_name() != whole.run_name()
    assert small.run == whole.run
    assert presets.from_dict(small.to_dict()) == small


def test_every_method_of_rainbow_has_the_small_size():
    for method in algorithms()["rainbow"].methods:
        assert presets.resolve("atari/Pong", method, size="small").env.frame_pixels == 50


@pytest.mark.parametrize(
    ("task", "size", "line"),
    [
        ("dmc/walker-walk", "smal", "unknown size 'smal'; did you mean small"),
        ("minigrid/Empty-16x16", "small", "--size small conflicts with a2c, which has one size"),
        ("toy/reach", "small", "smaller already: frame_pixels is 20, not 50; remove it"),
        ("toy/catch", "small", "smaller already: hidden_dim is 64, not 128"),
    ],
)
def test_unknown_or_larger_size_is_refused(task, size, line):
    with pytest.raises(ConfigError, match=line):
        presets.resolve(task, size=size)


def test_options_of_the_command_line_override_the_size():
    words = [
        "dmc/walker-walk",
        "--size",
        "small",
        "--hidden-dim",
        "99",
        "--with-tasks",
        "dmc/cheetah-run",
    ]
    asked = train_config(words)
    first, second = all_configs(asked, words)
    for config in (first, second):
        assert (config.algorithm.hidden_dim, config.algorithm.batch_size) == (99, 64)
        assert config.env.crop_pixels == 42


@pytest.mark.parametrize("base", ["drqv2", "mrq"])
def test_frame_size_of_algorithms_without_crops_is_set_by_both_options(base: str) -> None:
    def resolved(**sizes: int) -> tuple[int, int]:
        defaults = presets.resolve("dmc/cartpole-swingup", base_name=base)
        env = presets.with_changes(defaults, sizes).env
        return env.frame_pixels, env.crop_pixels

    assert resolved(frame_pixels=64, crop_pixels=64) == (64, 64)
    with pytest.raises(ConfigError, match="crop_pixels=64 conflicts with frame_pixels=84"):
        resolved(crop_pixels=64)
