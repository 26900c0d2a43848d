"""A trained policy as one file for other programs, a `torch.export` program (.pt2) or ONNX: uint8
frames in, action out, including cropping and scaling.

The file is loaded and compared with the policy on observations of its task, and removed if they differ.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from cclf import __version__
from cclf.algorithms.registry import algorithm_of
from cclf.config import Config
from cclf.envs.make import make_env
from cclf.envs.registry import task_kind
from cclf.errors import ConfigError, require_extras
from cclf.storage.atomic_files import output_file
from cclf.storage.safe_loading import data_error_context
from cclf.training.agent import load_agent
from cclf.training.seeding import derive
from cclf.types import StateDict

TOLERANCE = 1e-4  # largest accepted difference of an output from that of the policy
CHECKED_AGENT_STEPS = 24  # whose observations are compared
INPUT_NAME = "observation"
METADATA_FILE = "metadata.json"  # inside a .pt2 archive; ONNX has properties of its own
CPU = torch.device("cpu")

# (B, ...) observations -> (B, ...) actions or action values
ExportedPolicy = Callable[[np.ndarray], np.ndarray]


class TensorSpec(NamedTuple):
    name: str
    dtype: str
    shape: list[str | int]  # the first is "batch"

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} ({', '.join(map(str, self.shape))})"


class Exported(NamedTuple):
    path: Path
    input: TensorSpec
    output: TensorSpec
    largest_difference: float
    frames: int  # number of compared observations
    metadata: StateDict  # what a program needs to know to use the file; see docs/usage.md


def export(folder: Path, out: Path, seed: int = 0, trust_imports: bool = False) -> Exported:
    """Write the policy of a run folder to `out`; the suffix selects the format. If its outputs differ from
    those of the policy, no file remains and ConfigError is raised."""
    formats = {".pt2": (write_pt2, read_pt2), ".onnx": (write_onnx, read_onnx)}
    if out.suffix not in formats:
        raise ConfigError(
            f"cannot tell the format of {out}: end its name in .pt2 (torch.export) or .onnx"
        )
    if out.suffix == ".onnx":
        require_extras("ONNX, unlike .pt2,", ["export"])
    if not out.parent.is_dir():
        raise ConfigError(f"cannot write {out}: there is no folder {out.parent}")
    agent, config, env_steps = load_agent(folder, CPU, 1, trust_imports=trust_imports)
    agent.close()
    policy, observations, expected, output_name = algorithm_of(config).export_policy(
        agent.policy, config, make_env, derive(seed, "export"), CHECKED_AGENT_STEPS
    )
    input_spec, output_spec = (
        TensorSpec(name, str(array.dtype), ["batch", *array.shape[1:]])
        for name, array in ((INPUT_NAME, observations), (output_name, expected))
    )
    metadata = describe(config, env_steps, input_spec, output_spec)
    write, read = formats[out.suffix]
    advice = (
        "an encoder of your own must take any number of images: flatten(1), not view(len(x), -1)"
        if "encoder" in config.imported_modules
        else ""
    )
    with output_file(out) as temporary:
        with data_error_context(f"cannot write {out}", advice):
            write(policy, torch.from_numpy(observations[:2]), metadata, temporary)
            exported = read(temporary)
            # Also in batches of one: a program exported with a fixed batch size fails there.
            one_by_one = np.concatenate([exported(one[None]) for one in observations])
            outputs = [exported(observations), one_by_one]
        difference = max(float(np.abs(output - expected).max()) for output in outputs)
        if not difference <= TOLERANCE:  # True also for NaN
            raise ConfigError(
                f"the exported policy differs by {difference:.2g} from {folder}, above "
                f"{TOLERANCE:g}: no file is written"
            )
    return Exported(out, input_spec, output_spec, difference, len(observations), metadata)


def describe(
    config: Config, env_steps: int, input_spec: TensorSpec, output_spec: TensorSpec
) -> StateDict:
    metadata: StateDict = {
        "cclf": __version__,
        "task": config.task,
        "method": config.method_name,
        "env_steps": env_steps,
        "input": input_spec._asdict(),
        "output": output_spec._asdict(),
    }
    fields = ["frame_stack", "frame_pixels", "crop_pixels", "action_repeat"]
    if config.env.observe == "state":
        fields = ["frame_stack", "action_repeat"]
    if task_kind(config.task) != "grid":
        metadata |= {name: vars(config.env)[name] for name in fields}
    return metadata | {"config": config.to_dict()}


def write_pt2(policy: nn.Module, example: torch.Tensor, metadata: StateDict, path: Path) -> None:
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        batch = torch.export.Dim("batch")
        program = torch.export.export(policy, (example,), dynamic_shapes=({0: batch},))
        # To memory first: the writer of PyTorch aborts the process if the disk is full.
        archive = io.BytesIO()
        torch.export.save(program, archive, extra_files={METADATA_FILE: json.dumps(metadata)})
    path.write_bytes(archive.getvalue())


def read_pt2(path: Path) -> ExportedPolicy:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = torch.export.load(path).module()

    def act(observations: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            output: torch.Tensor = policy(torch.from_numpy(observations))
        return output.numpy()

    return act


def write_onnx(policy: nn.Module, example: torch.Tensor, metadata: StateDict, path: Path) -> None:
    import onnx

    # torch.onnx warns about packages that no policy needs.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            policy,
            (example,),
            str(path),
            input_names=[INPUT_NAME],
            output_names=[metadata["output"]["name"]],
            dynamic_shapes=({0: "batch"},),
            external_data=False,
            verbose=False,
        )
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {"cclf": json.dumps(metadata)})
    onnx.save(model, str(path))


def read_onnx(path: Path) -> ExportedPolicy:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda observations: np.asarray(session.run(None, {INPUT_NAME: observations})[0])
