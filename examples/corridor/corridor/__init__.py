from cclf.envs.registry import Suite, Task

SUITE = Suite(
    name="corridor",
    kind="discrete",
    factory="corridor.game:make",
    tasks=(Task("corridor/short", "walk right to the end"),),
    env={"frame_pixels": 32, "crop_pixels": 32, "frame_stack": 1, "action_repeat": 1},
    run={"env_steps": 2_000, "eval_every_env_steps": 500, "eval_episodes": 5, "video": False},
    repeats_actions=False,
)
