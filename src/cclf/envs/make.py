"""From a config to its environment. Without torch, so that worker processes can do it too."""

from cclf.config import Config, RainbowConfig
from cclf.types import Env, Game


def make_env(config: Config, seed: int) -> Env:
    suite, _, name = config.task.partition("/")
    env = config.env
    if suite == "dmc":
        from cclf.envs.dmc import make_dmc

        return make_dmc(name, env.frame_pixels, env.action_repeat, seed)
    if suite == "gym":
        from cclf.envs.gym import GymnasiumPixels

        return GymnasiumPixels(name, env.frame_pixels, env.action_repeat, seed)
    from cclf.envs.toy import make_toy

    return make_toy(name, env.frame_pixels, env.crop_pixels, env.action_repeat, seed)


def make_any(config: Config, seed: int) -> Env | Game:
    return make_game(config, seed) if isinstance(config.algorithm, RainbowConfig) else make_env(config, seed)


def make_game(config: Config, seed: int, evaluation: bool = False) -> Game:
    """A game with discrete actions. In evaluation rewards are not clipped and losing a life ends nothing."""
    suite, _, name = config.task.partition("/")
    if suite == "toy":
        from cclf.envs.toy import Catch

        return Catch(config.env.frame_pixels, config.env.frame_stack, seed)
    from cclf.envs.atari import AtariGame

    return AtariGame(
        name,
        seed,
        clip_reward=not evaluation,
        life_loss_terminates=not evaluation,
        frame_pixels=config.env.frame_pixels,
        action_repeat=config.env.action_repeat,
        frame_stack=config.env.frame_stack,
    )
