"""From a config to its environment. Without torch, so that worker processes can do it too."""

from cclf.config import Config
from cclf.types import Env


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
