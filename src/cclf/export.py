"""A trained policy as one file for other programs, a `torch.export` program (.pt2) or ONNX: uint8
frames in, action out, including cropping and scaling.

The file is loaded and compared with the policy on observations of its task, and removed if they differ.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import NamedTuple, TypedDict

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
from cclf.types import StateDict

TOLERANCE = 1e-4
CHECKED_AGENT_STEPS = 24
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
METADATA_FILE = "metadata.json"  # inside a .pt2 archive; ONNX has properties of its own
CPU = torch.device("cpu")

# (B, ...) observations -> (B, ...) actions or action values
Policy = Callable[[np.ndarray], np.ndarray]


class TensorSpec(TypedDict):
    name: str
    dtype: str
    shape: list[str | int]  # the first is "batch"


class Metadata(TypedDict, total=False):
    """What a program needs to know to use the file."""

    cclf: str
    task: str
    method: str
    env_steps: int
    input: TensorSpec
    output: TensorSpec
    # not for grid tasks
    frame_stack: int  # oldest first; before the first frame copies of it, in games zeros
    action_repeat: int
    # only for pixels
    frame_pixels: int
    crop_pixels: int
    config: StateDict


class Exported(NamedTuple):
    path: Path
    largest_difference: float
    frames: int  # compared with the policy
    metadata: Metadata


def export(folder: Path, out: Path, seed: int = 0, trust_imports: bool = False) -> Exported:
    """Write the policy of a run folder to `out`; the suffix selects the format. If its outputs differ from
    those of the policy, no file remains and ConfigError is raised."""
    formats = {".pt2": (write_pt2, read_pt2), ".onnx": (write_onnx, read_onnx)}
    if out.suffix not in formats:
        raise ConfigError(
            f"cannot tell the format of {out}: end its name in .pt2 (torch.export) or .onnx"
        )
    missing = [name for name in ONNX_PACKAGES if util.find_spec(name) is None]
    if missing and out.suffix == ".onnx":
        raise ConfigError(
            f"ONNX needs the packages {', '.join(missing)}: pip install 'cclf[export]', or export "
            "to a .pt2"
        )
    if not out.parent.is_dir():
        raise ConfigError(f"cannot write {out}: there is no folder {out.parent}")
    agent, config, env_steps = load_agent(folder, CPU, 1, trust_imports=trust_imports)
    agent.close()
    policy, observations, expected, output_name = algorithm_of(config).export_policy(
        agent.policy, config, make_env, derive(seed, "export"), CHECKED_AGENT_STEPS
    )
    metadata = describe(config, env_steps, observations, expected, output_name)
    write, read = formats[out.suffix]
    advice = (
        "an encoder of your own must take any number of images: flatten(1), not view(len(x), -1)"
        if "encoder" in config.imported_modules
        else ""
    )
    with output_file(out) as temporary:
        with data_error_context(f"cannot write {out}", advice):
            write(policy, observations[:2], metadata, temporary)
            exported = read(temporary)
            # Also one by one, which finds a program with a fixed batch size.
            one_by_one = np.concatenate([exported(one[None]) for one in observations])
            outputs = [exported(observations), one_by_one]
        difference = max(float(np.abs(output - expected).max()) for output in outputs)
        if not difference <= TOLERANCE:  # True also for NaN
            raise ConfigError(
                f"the exported policy differs by {difference:.2g} from {folder}, above "
                f"{TOLERANCE:g}: no file is written"
            )
    return Exported(out, difference, len(observations), metadata)


def describe(
    config: Config, env_steps: int, observations: np.ndarray, outputs: np.ndarray, output_name: str
) -> Metadata:
    env = config.env
    metadata: Metadata = {
        "cclf": __version__,
        "task": config.task,
        "method": config.method_name,
        "env_steps": env_steps,
        "input": {
            "name": "observation",
            "dtype": str(observations.dtype),
            "shape": ["batch", *observations.shape[1:]],
        },
        "output": {"name": output_name, "dtype": "float32", "shape": ["batch", *outputs.shape[1:]]},
    }
    if task_kind(config.task) != "grid":
        metadata["frame_stack"] = env.frame_stack
        if env.observe == "pixels":
            metadata |= {"frame_pixels": env.frame_pixels, "crop_pixels": env.crop_pixels}
        metadata["action_repeat"] = env.action_repeat
    metadata["config"] = config.to_dict()
    return metadata


def write_pt2(policy: nn.Module, example: np.ndarray, metadata: Metadata, path: Path) -> None:
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        batch = torch.export.Dim("batch")
        program = torch.export.export(
            policy, (torch.from_numpy(example),), dynamic_shapes=({0: batch},)
        )
        # To memory first: the writer of PyTorch aborts the process if the disk is full.
        archive = io.BytesIO()
        torch.export.save(program, archive, extra_files={METADATA_FILE: json.dumps(metadata)})
    path.write_bytes(archive.getvalue())


def read_pt2(path: Path) -> Policy:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = torch.export.load(path).module()

    def act(observations: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            output: torch.Tensor = policy(torch.from_numpy(observations))
        return output.numpy()

    return act


def write_onnx(policy: nn.Module, example: np.ndarray, metadata: Metadata, path: Path) -> None:
    import onnx

    # It warns about packages that no policy needs.
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


def read_onnx(path: Path) -> Policy:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda observations: np.asarray(session.run(None, {name: observations})[0])
