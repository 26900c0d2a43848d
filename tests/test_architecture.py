"""Imports point one way, read off the syntax trees: no module is run, so nothing hides in a
function."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

import cclf

SOURCE = Path(cclf.__file__).parent
FILES = {
    path.relative_to(SOURCE).with_suffix("").as_posix(): path
    for path in sorted(SOURCE.rglob("*.py"))
}

BASES = sorted(name.split("/")[1] for name in FILES if re.fullmatch(r"bases/\w+/__init__", name))
# What a command line is read with: names, settings, methods, tasks. No torch, no numpy.
LIGHT = {
    "console",
    *("errors", "fields", "rules", "config", "plugins", "presets", "extras", "__init__"),
    *(
        "bases/__init__",
        "algorithms/base",
        "algorithms/registry",
        "envs/__init__",
        "envs/registry",
        "envs/atari_games",
    ),
    *(f"bases/{base}/{part}" for base in BASES for part in ("__init__", "config", "methods")),
    *("algorithms/rainbow/coefficients", "study/__init__", "analysis/experiments"),
}
# Each layer and those that it may see beside itself and the light ones: imports point one way.
MAY_SEE = {
    "equations": set(),
    "data": {"equations"},
    "kernels": {"equations", "data"},
    "curiosity": {"equations"},
    "framework": {"equations", "curiosity", "data"},
    "gallery": {"equations", "data", "framework"},
    "runtime": {"data"},  # protocols only: things are handed in
    "envs": {"data", "runtime"},
    "bases": {"equations", "data", "kernels", "framework", "gallery", "runtime"},
    "build": {"data", "runtime", "envs"},
    "measure": {"data", "runtime", "envs", "build", "study"},
    "study": {"data", "gallery", "runtime", "envs", "build", "measure"},
    "training": {"data", "runtime", "envs", "build"},
    "commands": {"data", "runtime", "envs", "build", "training", "measure", "study"},
    "cli": {"commands"},
    "trained_agent": {"data", "runtime", "build"},
    "api": {"runtime", "study", "commands", "training", "trained_agent"},
    "__main__": {"cli"},
}
# Only this file may use a compiler or a graph.
COMPILERS = {"training/cuda_graphs"}


@cache
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
    # also what stands under an `if` or a `try` there, but for type checkers' own
    if top_level_only:
        nodes = [
            inner
            for node in nodes
            if not _is_type_checking(node)
            for inner in _outside_functions(node)
        ]
    return {name for node in nodes for name in imported(node)}


def _is_type_checking(node):
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def _outside_functions(node):
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _outside_functions(child)


def layer(name):
    """The folder or file at the top that a module belongs to; a package is named by itself, not by
    its __init__."""
    return "light" if {name, f"{name}/__init__"} & LIGHT else name.split("/")[0]


def inner_imports(path, **kwargs):
    """Modules of this package that a file imports, as paths."""
    names = {
        name.replace(".", "/").removeprefix("cclf/")
        for name in imports(path, **kwargs)
        if name.split(".")[0] == "cclf"
    }
    return names - {"__version__"}


def layers_seen(path, **kwargs):
    return {layer(name) for name in inner_imports(path, **kwargs)}


def outer_imports(path, **kwargs):
    return {name.split(".")[0] for name in imports(path, **kwargs)} - {"cclf"}


def test_there_is_something_to_look_at():
    assert {
        "config",
        "equations",
        "framework",
        "algorithms/sac/sac",
        "envs/dmc",
        "training/loop",
        "build",
        "cli",
    } <= set(FILES)


@pytest.mark.parametrize("name", sorted(set(FILES) - LIGHT))
def test_imports_point_one_way(name):
    own = name.split("/")[0]
    assert own in MAY_SEE, f"say in MAY_SEE where {name} stands"
    seen = layers_seen(FILES[name]) - {own, "light"}
    assert seen <= MAY_SEE[own], f"{name} must not import {sorted(seen - MAY_SEE[own])}"


@pytest.mark.parametrize("name", sorted(LIGHT))
def test_what_reads_a_command_line_is_light(name):
    # the package's own names are shown to type checkers, and loaded when they are used
    at_once = {"top_level_only": True} if name == "__init__" else {}
    assert outer_imports(FILES[name]) <= set(sys.stdlib_module_names)
    assert layers_seen(FILES[name], **at_once) <= {"light"}


@pytest.mark.parametrize("name", FILES)
def test_nobody_outside_a_room_names_its_base(name):
    """Neither by import nor by the names of its classes; the registry lists rooms as text."""
    for base in BASES:
        if name.startswith(f"bases/{base}/"):
            continue
        rooms = {other for other in inner_imports(FILES[name]) if other.startswith(f"bases/{base}")}
        assert not rooms, f"{name} imports {sorted(rooms)}"
        words = {node.id for node in ast.walk(tree(FILES[name])) if isinstance(node, ast.Name)}
        assert f"{base.capitalize()}Config" not in words, f"{name} asks for the settings of {base}"


@pytest.mark.parametrize("name", FILES)
def test_no_private_of_another_module_is_touched(name):
    """A name that begins with one underscore belongs to the file that defines it."""
    code = tree(FILES[name])
    own = {
        node.name for node in ast.walk(code) if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    own |= {
        node.id
        for node in ast.walk(code)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    own |= {
        node.attr
        for node in ast.walk(code)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cclf"):
            assert not [alias.name for alias in node.names if is_private(alias.name)], (
                f"{name}:{node.lineno}"
            )
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            assert ast.unparse(node).startswith(OUTSIDE), (
                f"{name}:{node.lineno}: {ast.unparse(node)}"
            )


OUTSIDE = ("torch.", "hashlib.", "self._env._")  # libraries that have no public way to what is used
OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields"}


def is_private(word):
    return (
        word.startswith("_")
        and not word.startswith("__")
        and word != "_"
        and word not in OF_NAMED_TUPLES
    )


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("study/")])
def test_reports_need_neither_torch_nor_ray(name):
    needs_more = {
        "sweep/ray_backend",
        "export",
        "analysis/share",
        "inspection/load",
        "analysis/reproduce",
        "analysis/demo",
    }
    if name not in needs_more:
        assert not outer_imports(FILES[name]) & {"torch", "ray"}


@pytest.mark.parametrize(
    "name", [name for name in FILES if name.split("/")[0] in ("cli", "commands", "api")]
)
def test_the_command_line_imports_nothing_slow_before_a_command_needs_it(name):
    outside = outer_imports(FILES[name], top_level_only=True) - set(sys.stdlib_module_names)
    assert outside <= ({"tyro"} if name.startswith("commands/") else set()), (
        f"import {outside} inside the function"
    )
    assert layers_seen(FILES[name], top_level_only=True) <= {"light", "commands"}


def test_the_equations_see_torch_and_nothing_else():
    assert outer_imports(FILES["equations"]) == {"torch"}


@pytest.mark.parametrize("name", FILES)
def test_only_one_file_speaks_to_compilers(name):
    if name in COMPILERS:
        return
    for node in ast.walk(tree(FILES[name])):
        words = (
            {node.attr}
            if isinstance(node, ast.Attribute)
            else {node.id}
            if isinstance(node, ast.Name)
            else set()
        )
        is_torch_compile = isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.compile"
        assert not is_torch_compile, f"{name}:{node.lineno} says torch.compile"
        assert not words & {"CUDAGraph", "make_graphed_callables"}, (
            f"{name}:{node.lineno} says {words}"
        )
        assert not {"torch.compiler", "torch._dynamo", "torch._inductor"} & set(imported(node))


def test_no_drawer_for_odds_and_ends():
    assert not {Path(name).name for name in FILES} & {"utils", "util", "helpers", "misc", "common"}


@pytest.mark.parametrize("name", FILES)
def test_only_modules_namedtuples_and_protocols_are_inherited_from(name):
    allowed = {
        "nn.Module",
        "torch.autograd.Function",
        "NamedTuple",
        "Protocol",
        "ValueError",
        "Stateful",
        "Policy",
    }
    for node in ast.walk(tree(FILES[name])):
        if isinstance(node, ast.ClassDef):
            assert {ast.unparse(base) for base in node.bases} <= allowed, (
                f"{name}: class {node.name}"
            )


@pytest.mark.parametrize("name", FILES)
def test_no_bare_except_and_no_silent_assert(name):
    for node in ast.walk(tree(FILES[name])):
        assert not (isinstance(node, ast.ExceptHandler) and node.type is None), (
            f"{name}:{node.lineno}"
        )
        assert not (isinstance(node, ast.Assert) and node.msg is None), (
            f"{name}:{node.lineno}: an assert needs a message"
        )


@pytest.mark.parametrize("name", FILES)
def test_nothing_can_run_code_from_a_file(name):
    """No pickle, and no torch.save or torch.load, which are pickle."""
    assert not outer_imports(FILES[name]) & {
        "pickle",
        "cloudpickle",
        "dill",
        "joblib",
        "shelve",
        "marshal",
    }
    said = {
        ast.unparse(node) for node in ast.walk(tree(FILES[name])) if isinstance(node, ast.Attribute)
    }
    assert not said & {"torch.save", "torch.load"}
