"""A trained policy as one file for other programs, TorchScript or ONNX: uint8 frames in, action out, crop and scaling inside.

No file is left behind that was not read back and held against the policy on frames of its own task.
"""

import io
import json
import logging
import os
import warnings
from collections import deque
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cclf import __version__, build
from cclf.algorithms.a2c import A2c
from cclf.algorithms.rainbow_stack import StackedRun
from cclf.algorithms.sac import Sac
from cclf.config import Config, ConfigError, RainbowConfig
from cclf.envs.make import make_env, make_game
from cclf.nets import GRID_WINDOWS, grid_windows, plain_convolutions
from cclf.run_folder import load_agent
from cclf.runtime.seeding import derive

TOLERANCE = 1e-4
CHECKED_AGENT_STEPS = 24
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
METADATA_FILE = "metadata.json"  # inside a TorchScript archive; ONNX has properties of its own
CPU = torch.device("cpu")


class PixelPolicy(nn.Module):
    """SAC's mean action (B, A), each in [-1, 1], for stacks of whole uint8 frames (B, C, H, W)."""

    def __init__(self, sac: Sac):
        super().__init__()
        self.convolutions, self.head, self.trunk = sac.critic.encoder.convolutions, sac.actor.head, sac.actor.trunk
        self.first, self.crop_pixels = (sac.frame_pixels - sac.crop_pixels) // 2, sac.crop_pixels

    def forward(self, frames: Tensor) -> Tensor:
        last = self.first + self.crop_pixels
        centre = frames[:, :, self.first : last, self.first : last]
        mean = self.trunk(self.head(self.convolutions(centre))).chunk(2, dim=1)[0]
        return torch.tanh(mean)


class GridLogits(nn.Module):
    """A2C's action logits (B, A) for uint8 grids (B, 7, 7, 3)."""

    windows: Tensor

    def __init__(self, a2c: A2c):
        super().__init__()
        self.encoder, self.actor = a2c.policy.encoder, a2c.policy.actor
        self.register_buffer("windows", torch.from_numpy(GRID_WINDOWS).flatten(), persistent=False)

    def forward(self, grids: Tensor) -> Tensor:
        windows = grids.flatten(1).index_select(1, self.windows).to(torch.float32).view(-1, *GRID_WINDOWS.shape)
        logits: Tensor = self.actor(self.encoder(windows))
        return logits


class GameValues(nn.Module):
    """Rainbow's Q values (B, A) for stacks of uint8 frames (B, F, H, W), without noise."""

    def __init__(self, run: StackedRun, config: Config):
        super().__init__()
        self.online = build.make_rainbow(config, run.num_actions).online
        self.online.load_state_dict({name.removeprefix("online."): p for name, p in run.parameters().items()}, strict=False)
        self.register_buffer("valid", torch.ones(run.num_actions), persistent=False)

    def forward(self, frames: Tensor) -> Tensor:
        values: Tensor = self.online.q_values(self.online.head(self.online.encoder(frames), (), self.valid))
        return values


class Exported(NamedTuple):
    path: Path
    largest_difference: float
    frames: int  # on which it was held against the policy
    metadata: dict[str, Any]


def export(folder: Path, out: Path, seed: int = 0, trust_imports: bool = False) -> Exported:
    """Write the policy of a run folder to `out`, by its suffix, checked on a rollout; nothing is left where the check fails."""
    kinds = {".pt": (write_torchscript, read_torchscript), ".onnx": (write_onnx, read_onnx)}
    if out.suffix not in kinds:
        raise ConfigError(f"cannot tell the format of {out}: end its name in .pt (TorchScript) or .onnx")
    missing = [name for name in ONNX_PACKAGES if util.find_spec(name) is None] if out.suffix == ".onnx" else []
    if missing:
        raise ConfigError(f"ONNX needs the packages {', '.join(missing)}: pip install 'cclf[export]', or export to a .pt")
    if not out.parent.is_dir():
        raise ConfigError(f"cannot write {out}: there is no folder {out.parent}")
    agent, config, env_steps = load_agent(folder, CPU, 1, trust_imports=trust_imports)
    agent.close()
    policy, observations, expected = reference(agent.policy, config, seed)
    metadata = describe(config, env_steps, observations, expected)
    write, read = kinds[out.suffix]
    temporary = out.with_name(f".{out.stem}.tmp{out.suffix}")
    try:
        write(policy, observations[:2], metadata, temporary)
        found = read(temporary)
        # One by one as well as together: a graph that has frozen its batch size must not pass.
        answers = [found(observations), np.concatenate([found(one[None]) for one in observations])]
        difference = max(float(np.abs(answer - expected).max()) for answer in answers)
        if not difference <= TOLERANCE:  # so that not-a-number fails too
            raise ConfigError(
                f"the exported policy differs by {difference:.2g} from {folder}, above {TOLERANCE:g}: no file is left"
            )
        os.replace(temporary, out)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(out, difference, len(observations), metadata)


def reference(policy: Any, config: Config, seed: int) -> tuple[nn.Module, np.ndarray, np.ndarray]:
    """The policy as a module, observations of a short rollout, and what it answers to them, by the run's own code."""
    random = np.random.default_rng(derive(seed, "act"))
    if isinstance(policy, A2c):
        grids = build.make_grids(config, 1, derive(seed, "export"))
        observation, seen = grids.reset([derive(seed, "export")]), []
        for _ in range(CHECKED_AGENT_STEPS):
            seen.append(observation[0].astype(np.uint8))
            observation = grids.step(policy.act(observation, random.random((1, grids.num_actions)))).observation
        grids.close()
        observations = np.stack(seen)
        with torch.inference_mode():
            logits = policy.policy.actor(policy.policy.encoder(torch.from_numpy(grid_windows(observations)))).numpy()
        return GridLogits(policy).eval(), observations, logits
    if isinstance(policy, StackedRun):
        game, seen = make_game(config, derive(seed, "export"), evaluation=True), []
        game.reset(derive(seed, "export"))
        for _ in range(CHECKED_AGENT_STEPS):
            seen.append(game.stack.copy())
            if game.step(int(random.integers(policy.num_actions))).terminated:
                game.reset()
        game.close()
        return (
            GameValues(policy, config).eval(),
            np.stack(seen),
            policy.evaluation_values(torch.from_numpy(np.stack(seen))).numpy(),
        )
    if not isinstance(policy, Sac):
        raise ConfigError(f"cclf export knows SAC, A2C and Rainbow, not the {type(policy).__name__} of {config.task}")
    # Weights are float32 whatever a GPU computed with: that is what other programs get, and what they are checked against.
    policy.critic.encoder.convolutions.kernel = plain_convolutions
    env = make_env(config, derive(seed, "export"))
    frames, stacks, actions = deque([env.reset(derive(seed, "export"))] * config.env.frame_stack, config.env.frame_stack), [], []
    for _ in range(CHECKED_AGENT_STEPS):
        stacks.append(np.concatenate(frames))
        actions.append(policy.evaluation_action(torch.from_numpy(stacks[-1])[None])[0].numpy())
        # Random moves: a policy that stands still would be checked on one frame alone.
        step = env.step(random.uniform(-1.0, 1.0, env.spec.action_dim).astype(np.float32))
        frames.append(step.frame)
        if step.terminated or step.truncated:
            break
    env.close()
    return PixelPolicy(policy).eval(), np.stack(stacks), np.stack(actions)


def describe(config: Config, env_steps: int, observations: np.ndarray, answers: np.ndarray) -> dict[str, Any]:
    """What a program must know to use the file."""
    on_grids = observations.shape[1:] == (7, 7, 3)
    answer = "logits" if on_grids else "q_values" if isinstance(config.algorithm, RainbowConfig) else "action"
    pixels = {
        "frame_stack": config.env.frame_stack,  # oldest first; before the first frame stand copies of it, on games blanks
        "frame_pixels": config.env.frame_pixels,
        "crop_pixels": config.env.crop_pixels,
        "action_repeat": config.env.action_repeat,
    }
    return {
        "cclf": __version__,
        "task": config.task,
        "method": config.method_name,
        "env_steps": env_steps,
        "input": {"name": "observation", "dtype": "uint8", "shape": ["batch", *observations.shape[1:]]},
        "output": {"name": answer, "dtype": "float32", "shape": ["batch", *answers.shape[1:]]},
        **({} if on_grids else pixels),
        "config": config.to_dict(),
    }


Answer = Callable[[np.ndarray], np.ndarray]


def write_torchscript(policy: nn.Module, example: np.ndarray, metadata: dict[str, Any], path: Path) -> None:
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # PyTorch calls its script format old; C++ programs load no other as easily
        traced = torch.jit.trace(policy, torch.from_numpy(example), check_trace=False)  # type: ignore[no-untyped-call]
        # First to memory: PyTorch's own writer ends the process where the disk is full.
        whole = io.BytesIO()
        torch.jit.save(traced, whole, _extra_files={METADATA_FILE: json.dumps(metadata).encode()})
    path.write_bytes(whole.getvalue())


def read_torchscript(path: Path) -> Answer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]

    def answer(observations: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return policy(torch.from_numpy(observations)).numpy()  # type: ignore[no-any-return]

    return answer


def write_onnx(policy: nn.Module, example: np.ndarray, metadata: dict[str, Any], path: Path) -> None:
    import onnx

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of packages that no policy needs
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            policy,
            (torch.from_numpy(example),),
            str(path),
            input_names=[metadata["input"]["name"]],
            output_names=[metadata["output"]["name"]],
            dynamic_shapes=({0: "batch"},),
            external_data=False,
            verbose=False,
        )
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {"cclf": json.dumps(metadata)})
    onnx.save(model, str(path))


def read_onnx(path: Path) -> Answer:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda observations: session.run(None, {name: observations})[0]  # type: ignore[no-any-return]
