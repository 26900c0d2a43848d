"""Imports point one way, read off the syntax trees: no module is run, so nothing hides in a function."""

import ast
import sys
from pathlib import Path

import pytest

import cclf

SOURCE = Path(cclf.__file__).parent
FILES = {path.relative_to(SOURCE).with_suffix("").as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}

# Each layer and those below it that it may see. `config`, `presets`, `types` and `atari_games` are words everyone shares, and
# `from_disk` reads what others may have written: everyone must do it in the same careful way.
WORDS = {"config", "presets", "types", "atari_games", "from_disk"}
PARTS = {"equations", "nets", "nets_rainbow", "augment", "replay", "replay_nstep", "counter_random", "kernels"}
MAY_SEE = {
    "fields": set(),
    "config": {"fields"},
    "idle_options": {"config"},
    "atari_games": set(),
    "from_disk": {"config"},
    "presets": {"config", "atari_games"},
    "extras": {"config"},  # which packages may be missing
    "equations": set(),
    "types": {"config"},
    "nets": WORDS | {"equations", "augment", "kernels"},
    "nets_rainbow": WORDS | {"equations", "kernels"},
    "augment": WORDS | {"equations"},
    "transfer": set(),
    "replay": WORDS | {"equations", "transfer"},
    "replay_nstep": WORDS | {"equations"},
    "counter_random": set(),
    "kernels": WORDS | {"equations", "augment", "kernels"},
    "framework": WORDS | PARTS,
    "algorithms": WORDS | PARTS | {"framework"},
    "envs": WORDS | {"machine"},
    "runtime": WORDS | {"replay", "replay_nstep", "transfer", "runtime"},  # protocols only: things are handed in
    "machine": WORDS,  # facts that both the doctor and every manifest carry
    "devices": WORDS | {"machine"},
    "build": WORDS | PARTS | {"framework", "algorithms", "envs", "runtime", "devices", "episode_player"},
    "episode_player": WORDS | {"build"},  # what `build` sends to other processes
    "run_folder": WORDS | {"build", "runtime", "machine"},  # what a run leaves behind, and what is made of it again
    "bench": WORDS
    | {"build", "devices", "run_folder", "algorithms", "runtime"},  # compares an algorithm's fast update with its plain one
    "bench_parity": WORDS | {"equations", "build", "devices", "bench", "run_folder", "algorithms", "runtime"},
    "bench_rainbow": WORDS | {"build", "devices", "bench", "envs", "runtime"},
    "probe": WORDS | {"envs", "runtime"},  # runs in processes of its own
    "doctor": WORDS | {"extras", "build", "envs", "runtime", "machine", "probe"},
    "export": WORDS | {"build", "run_folder", "algorithms", "envs", "nets", "runtime"},  # rewrites a policy for other programs
    # one file per base algorithm: its checkpoint becomes pictures and plain numbers for a page
    "gallery": WORDS | PARTS | {"framework", "algorithms", "envs", "runtime", "build", "run_folder", "analysis", "gallery"},
    "demo": WORDS | {"run_folder", "runtime", "sweep", "analysis"},
    "paper_tables": WORDS,  # the paper's experiments as runs
    "run_end": {"from_disk"},  # read off files alone
    "sweep": WORDS | {"runtime", "machine", "sweep", "run_end"},
    "cost": WORDS | {"build", "devices", "bench", "runtime", "analysis"},
    "reproduce": WORDS | {"paper_tables", "build", "devices", "runtime", "sweep", "analysis"},
    "analysis": {"config", "presets", "from_disk", "analysis", "run_end"},  # reads files
    "commands": WORDS
    | {
        "commands",
        "idle_options",
        "build",
        "devices",
        "run_folder",
        "runtime",
        "bench",
        "bench_parity",
        "bench_rainbow",
        "demo",
        "doctor",
        "export",
        "extras",
        "gallery",
        "sweep",
    }
    | {"analysis", "paper_tables", "reproduce", "cost"},
    "cli": WORDS | {"commands"},
    "__init__": set(),
    "__main__": {"cli"},
}
# Files of one layer do not know each other, but for a file and the parts it is made of.
MADE_OF = {
    "algorithms/a2c": {"algorithms/re3", "algorithms/optimisers"},
    "algorithms/rainbow_stack": {"algorithms/rainbow"},
    "algorithms/sac": {"algorithms/optimisers"},
    "algorithms/sac_lean": {"algorithms/sac"},
    "envs/make": {"envs/atari", "envs/dmc", "envs/gym", "envs/toy"},
    "envs/minigrid": {"envs/minigrid_rules"},
}
# Only these may use a compiler or a graph; only these may stay without torch and numpy.
COMPILERS = {"runtime/compile"}
STANDARD_LIBRARY_ONLY = {"config", "presets", "atari_games", "paper_tables", "extras", "__init__"}


def tree(path):
    return ast.parse(path.read_text(), str(path))


def imported(node):
    """Dotted names that one import statement brings in; `from cclf import a` brings in cclf.a."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        module = node.module or ""
        return [f"{module}.{alias.name}" for alias in node.names] if module == "cclf" else [module]
    return []


def imports(path, top_level_only=False):
    nodes = tree(path).body if top_level_only else ast.walk(tree(path))
    if top_level_only:  # also what stands under an `if` or a `try` there, but for type checkers' own
        nodes = [inner for node in nodes if not _is_type_checking(node) for inner in _outside_functions(node)]
    return {name for node in nodes for name in imported(node)}


def _is_type_checking(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _outside_functions(node):
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _outside_functions(child)


def layer(name):
    return name.split("/")[0]


def inner_imports(path, **kwargs):
    """Modules of this package that a file imports, as paths."""
    names = {name.replace(".", "/").removeprefix("cclf/") for name in imports(path, **kwargs) if name.split(".")[0] == "cclf"}
    return names - {"__version__"}


def layers_seen(path, **kwargs):
    return {layer(name) for name in inner_imports(path, **kwargs)}


def outer_imports(path, **kwargs):
    return {name.split(".")[0] for name in imports(path, **kwargs)} - {"cclf"}


def test_there_is_something_to_look_at():
    assert {"config", "equations", "framework", "algorithms/sac", "envs/dmc", "runtime/loop", "build", "cli"} <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_imports_point_one_way(name):
    assert layer(name) in MAY_SEE, f"say in MAY_SEE where {name} stands"
    seen = {layer(other) for other in inner_imports(FILES[name]) - MADE_OF.get(name, set())}
    assert seen <= MAY_SEE[layer(name)], f"{name} must not import {sorted(seen - MAY_SEE[layer(name)])}"


@pytest.mark.parametrize("name", [name for name in FILES if layer(name) == "analysis"])
def test_analysis_needs_neither_torch_nor_ray(name):
    assert not outer_imports(FILES[name]) & {"torch", "ray"}


@pytest.mark.parametrize("name", sorted(STANDARD_LIBRARY_ONLY))
def test_configuration_needs_the_standard_library_alone(name):
    assert outer_imports(FILES[name]) <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", [name for name in FILES if layer(name) in ("cli", "commands")])
def test_the_command_line_imports_nothing_slow_before_a_command_needs_it(name):
    outside = outer_imports(FILES[name], top_level_only=True)
    assert outside <= set(sys.stdlib_module_names), f"import {outside - set(sys.stdlib_module_names)} inside the function"
    light = {"config", "presets", "idle_options", "extras", "paper_tables", "commands"}
    assert layers_seen(FILES[name], top_level_only=True) <= light


def test_the_equations_see_torch_and_nothing_else():
    assert outer_imports(FILES["equations"]) == {"torch"}


@pytest.mark.parametrize("name", FILES)
def test_only_one_file_speaks_to_compilers(name):
    if name in COMPILERS:
        return
    for node in ast.walk(tree(FILES[name])):
        words = {node.attr} if isinstance(node, ast.Attribute) else {node.id} if isinstance(node, ast.Name) else set()
        is_torch_compile = isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.compile"
        assert not is_torch_compile, f"{name}:{node.lineno} says torch.compile"
        assert not words & {"CUDAGraph", "make_graphed_callables"}, f"{name}:{node.lineno} says {words}"
        assert not {"torch.compiler", "torch._dynamo", "torch._inductor"} & set(imported(node))


def test_no_drawer_for_odds_and_ends():
    assert not {Path(name).name for name in FILES} & {"utils", "util", "helpers", "misc", "common"}


@pytest.mark.parametrize("name", FILES)
def test_only_modules_namedtuples_and_protocols_are_inherited_from(name):
    allowed = {"nn.Module", "torch.autograd.Function", "NamedTuple", "Protocol", "ValueError", "Stateful", "Policy"}
    for node in ast.walk(tree(FILES[name])):
        if isinstance(node, ast.ClassDef):
            assert {ast.unparse(base) for base in node.bases} <= allowed, f"{name}: class {node.name}"


@pytest.mark.parametrize("name", FILES)
def test_no_bare_except_and_no_silent_assert(name):
    for node in ast.walk(tree(FILES[name])):
        assert not (isinstance(node, ast.ExceptHandler) and node.type is None), f"{name}:{node.lineno}"
        assert not (isinstance(node, ast.Assert) and node.msg is None), f"{name}:{node.lineno}: an assert needs a message"


@pytest.mark.parametrize("name", FILES)
def test_nothing_can_run_code_from_a_file(name):
    """No pickle, and no torch.save or torch.load, which are pickle."""
    assert not outer_imports(FILES[name]) & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    said = {ast.unparse(node) for node in ast.walk(tree(FILES[name])) if isinstance(node, ast.Attribute)}
    assert not said & {"torch.save", "torch.load"}
