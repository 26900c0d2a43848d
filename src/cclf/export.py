"""A trained policy as one file for other programs, TorchScript or ONNX: uint8 frames in, action
out, crop and scaling inside.

No file is left behind that was not read back and held against the policy on frames of its own task.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from cclf import __version__
from cclf.algorithms.registry import algorithm_of
from cclf.config import Config
from cclf.envs.make import make_env
from cclf.envs.registry import task_kind
from cclf.errors import ConfigError
from cclf.storage.atomic_files import output_file
from cclf.storage.safe_loading import data_error_context
from cclf.training.agent import load_agent
from cclf.training.seeding import derive
from cclf.types import ExportedPolicy

TOLERANCE = 1e-4
CHECKED_AGENT_STEPS = 24
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
METADATA_FILE = "metadata.json"  # inside a TorchScript archive; ONNX has properties of its own
CPU = torch.device("cpu")


class Exported(NamedTuple):
    path: Path
    largest_difference: float
    frames: int  # on which it was held against the policy
    metadata: dict[str, Any]


def export(folder: Path, out: Path, seed: int = 0, trust_imports: bool = False) -> Exported:
    """Write the policy of a run folder to `out`, by its suffix, checked on a rollout; nothing is
    left where the check fails."""
    kinds = {".pt": (write_torchscript, read_torchscript), ".onnx": (write_onnx, read_onnx)}
    if out.suffix not in kinds:
        raise ConfigError(
            f"cannot tell the format of {out}: end its name in .pt (TorchScript) or .onnx"
        )
    missing = (
        [name for name in ONNX_PACKAGES if util.find_spec(name) is None]
        if out.suffix == ".onnx"
        else []
    )
    if missing:
        raise ConfigError(
            f"ONNX needs the packages {', '.join(missing)}: pip install 'cclf[export]', or export "
            "to a .pt"
        )
    if not out.parent.is_dir():
        raise ConfigError(f"cannot write {out}: there is no folder {out.parent}")
    agent, config, env_steps = load_agent(folder, CPU, 1, trust_imports=trust_imports)
    agent.close()
    policy, observations, expected, answer = answers_of(
        agent.policy, config, derive(seed, "export")
    )
    metadata = describe(config, env_steps, observations, expected, answer)
    write, read = kinds[out.suffix]
    of_own = (
        "an encoder of your own must take any number of images: flatten(1), not view(len(x), -1)"
        if "encoder" in config.imported_modules
        else ""
    )
    with output_file(out) as temporary:
        with data_error_context(f"cannot write {out}", of_own):
            write(policy, observations[:2], metadata, temporary)
            found = read(temporary)
            # One by one as well as together: a graph that has frozen its batch size must not pass.
            one_by_one = np.concatenate([found(one[None]) for one in observations])
            answers = [found(observations), one_by_one]
        difference = max(float(np.abs(answer - expected).max()) for answer in answers)
        if not difference <= TOLERANCE:  # so that not-a-number fails too
            raise ConfigError(
                f"the exported policy differs by {difference:.2g} from {folder}, above "
                f"{TOLERANCE:g}: no file is left"
            )
    return Exported(out, difference, len(observations), metadata)


def answers_of(policy: Any, config: Config, seed: int) -> ExportedPolicy:
    """The policy as a module, observations of a short rollout, and what it answers to them, by the
    run's own code."""
    return algorithm_of(config).export_policy(policy, config, make_env, seed, CHECKED_AGENT_STEPS)


def describe(
    config: Config, env_steps: int, observations: np.ndarray, answers: np.ndarray, answer: str
) -> dict[str, Any]:
    """What a program must know to use the file."""
    on_grids = task_kind(config.task) == "grid"
    of_pixels = {
        "frame_pixels": config.env.frame_pixels,
        "crop_pixels": config.env.crop_pixels,
    }
    seen = {
        # oldest first; before the first frame stand copies of it, on games blanks
        "frame_stack": config.env.frame_stack,
        **(of_pixels if config.env.observe == "pixels" else {}),
        "action_repeat": config.env.action_repeat,
    }
    return {
        "cclf": __version__,
        "task": config.task,
        "method": config.method_name,
        "env_steps": env_steps,
        "input": {
            "name": "observation",
            "dtype": str(observations.dtype),
            "shape": ["batch", *observations.shape[1:]],
        },
        "output": {"name": answer, "dtype": "float32", "shape": ["batch", *answers.shape[1:]]},
        **({} if on_grids else seen),
        "config": config.to_dict(),
    }


Answer = Callable[[np.ndarray], np.ndarray]


def write_torchscript(
    policy: nn.Module, example: np.ndarray, metadata: dict[str, Any], path: Path
) -> None:
    with warnings.catch_warnings(), torch.inference_mode():
        # PyTorch calls its script format old; C++ programs load no other as easily
        warnings.simplefilter("ignore")
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


def write_onnx(
    policy: nn.Module, example: np.ndarray, metadata: dict[str, Any], path: Path
) -> None:
    import onnx

    # it warns of packages that no policy needs
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
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
