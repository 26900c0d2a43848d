"""Rules on the sources, read from their syntax trees: no module is run, so nothing hides in a
function."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cclf

SOURCE = Path(cclf.__file__).parent
FILES = {
    path.relative_to(SOURCE).with_suffix("").as_posix(): path
    for path in sorted(SOURCE.rglob("*.py"))
}
ALGORITHMS = sorted(
    name.split("/")[1] for name in FILES if re.fullmatch(r"algorithms/\w+/config", name)
)
# What a command line is read with: names, settings, methods, tasks. No torch, no numpy.
LIGHT = {
    *("console", "errors", "validation", "config", "plugins", "presets", "__init__"),
    *("algorithms/__init__", "algorithms/base", "algorithms/registry"),
    *("envs/__init__", "envs/registry", "envs/atari_games", "envs/make", "envs/env_errors"),
    "training/signals",
    *(
        f"algorithms/{name}/{part}"
        for name in ALGORITHMS
        for part in ("__init__", "config", "presets")
    ),
    *("algorithms/common/off_policy_base", "analysis/__init__", "analysis/experiments"),
}
# Each layer and those that it may import, apart from itself and the light modules.
MAY_IMPORT = {
    "equations": set(),
    "types": set(),
    "storage": {"types"},
    "data": {"equations", "types", "storage"},
    "kernels": {"equations", "data"},
    "curiosity": {"equations"},
    "framework": {"equations", "curiosity", "data"},
    "envs/frame_stack": {"types", "storage"},
    # protocols: objects are passed in
    "training": {"types", "data", "storage", "kernels", "envs/frame_stack"},
    "envs": {"types", "storage", "training", "envs/frame_stack"},
    "inspection": {"types", "equations", "data", "storage", "framework", "analysis"},
    "algorithms": {
        *(
            "equations",
            "types",
            "data",
            "kernels",
            "curiosity",
            "framework",
            "inspection",
            "storage",
            "training",
        ),
        "envs/frame_stack",
    },
    "training/trainer": {"types", "storage", "training", "envs"},
    "sweep": {"storage", "training"},
    "analysis": {"types", "storage", "envs"},
    "share": {"storage", "training", "analysis"},
    "export": {"types", "storage", "training"},
    "benchmark": {"types", "storage", "training", "envs", "analysis", "algorithms"},
    "doctor": {"storage", "training", "training/trainer", "envs"},
    "agents": {"storage", "share"},
    "callbacks": {"storage", "training", "share"},
    "trained_agent": {"types", "storage", "training", "envs/frame_stack"},
    "commands": {
        *("types", "storage", "training", "training/trainer", "envs", "analysis", "inspection"),
        *("sweep", "export", "share", "benchmark", "doctor", "agents"),
    },
    "cli": {"commands"},
    "api": {
        *("storage", "training", "training/trainer", "analysis", "commands", "trained_agent"),
        "agents",
    },
    "__main__": {"cli"},
}
# Only this file may use a compiler or a graph.
COMPILERS = {"training/cuda_graphs"}


@cache
def tree(name):
    return ast.parse(FILES[name].read_text(), name)


@cache
def all_nodes(name):
    return list(ast.walk(tree(name)))


def imported(node) -> list[str]:
    """Dotted names of the modules that one statement imports; with `from`, of submodules, too."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        module = node.module or ""
        inner = [f"{module}.{alias.name}" for alias in node.names]
        is_module = [name.removeprefix("cclf.").replace(".", "/") in FILES for name in inner]
        if module == "cclf":
            return inner
        return [name if known else module for name, known in zip(inner, is_module, strict=True)]
    return []


@cache
def imports(name, top_level_only=False):
    nodes = tree(name).body if top_level_only else all_nodes(name)
    if top_level_only:  # under an `if` or a `try`, too, but for those of type checkers
        nodes = [inner for node in nodes if not is_type_checking(node) for inner in outside(node)]
    return {module for node in nodes for module in imported(node)}


def is_type_checking(node):
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def outside(node) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from outside(child)


def layer(name):
    if {name, f"{name}/__init__"} & LIGHT:
        return "light"
    return name if name in MAY_IMPORT else name.split("/")[0]


def own_imports(name, **kwargs):
    """Modules of this package that a file imports, as paths."""
    modules = (module.split(".") for module in imports(name, **kwargs))
    return {"/".join(parts[1:]) for parts in modules if parts[0] == "cclf"} - {"__version__", ""}


def layers(name, **kwargs):
    return {layer(module) for module in own_imports(name, **kwargs)}


def other_imports(name, **kwargs):
    return {module.split(".")[0] for module in imports(name, **kwargs)} - {"cclf"}


def nodes(*kinds):
    """All nodes of these kinds in the sources, each with its place."""
    for name in FILES:
        for node in all_nodes(name):
            if isinstance(node, kinds):
                yield f"{name}:{getattr(node, 'lineno', 0)}", node


def test_slow_tests_name_a_default_test_that_stands_for_them():
    tests = Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        for named in re.findall(r"mark\.slow\(\s*\"([\w/.:]+)\"", path.read_text()):
            file, _, name = named.rpartition("::")
            text = (tests / file if file else path).read_text()
            (marks,) = re.findall(rf"((?:^(?:@.*|[ )\]].*)\n)*)def {name}\(", text, re.MULTILINE)
            assert "mark.slow" not in marks, f"{path.name}: {named}"


def test_imports_point_one_way():
    assert not [name for name in FILES if layer(name) not in MAY_IMPORT | {"light": 0}]
    wrong = {
        name: sorted(layers(name) - {layer(name), "light"} - MAY_IMPORT[layer(name)])
        for name in set(FILES) - LIGHT
    }
    assert {name: found for name, found in wrong.items() if found} == {}


def test_modules_that_read_a_command_line_are_light():
    for name in sorted(LIGHT):
        # What torch is needed for is imported by the methods that need it.
        top_level = {"top_level_only": True}
        assert other_imports(name, **top_level) <= set(sys.stdlib_module_names), name
        assert layers(name, **top_level) <= {"light"}, name


def test_commands_import_nothing_slow_before_they_need_it():
    for name in FILES:
        if name.split("/")[0] in ("cli", "commands", "api", "__main__"):
            other = other_imports(name, top_level_only=True) - set(sys.stdlib_module_names)
            assert other <= ({"tyro"} if name.startswith("commands/") else set()), name
            assert layers(name, top_level_only=True) <= {"light", "commands"}, name


def test_only_an_algorithm_package_names_its_algorithm():
    """Neither by import nor by the names of its classes; the registry lists packages as text."""
    for name in FILES:
        words = {n.id for n in all_nodes(name) if isinstance(n, ast.Name)}
        modules = own_imports(name)
        for algorithm in ALGORITHMS:
            prefix = f"algorithms/{algorithm}/"
            if not name.startswith(prefix):
                assert not [m for m in modules if f"{m}/".startswith(prefix)], name
                assert f"{algorithm.capitalize()}Config" not in words, name


def test_private_names_are_used_in_their_own_module_alone():
    libraries = ("torch.", "hashlib.", "self._env._")  # without a public way to what is used
    for name in FILES:
        code = all_nodes(name)
        own = {node.name for node in code if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        own |= {n.id for n in code if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        own |= {
            n.attr for n in code if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
        }
        for node in code:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cclf"):
                private = [alias.name for alias in node.names if is_private(alias.name)]
                assert not private, f"{name}:{node.lineno}"
            if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
                assert ast.unparse(node).startswith(libraries), f"{name}:{node.lineno}"


def is_private(word):
    of_named_tuples = {"_replace", "_asdict", "_fields"}
    return re.match(r"_[^_]", word) and word not in of_named_tuples


def test_reports_import_neither_torch_nor_ray():
    need_more = {"share", "sweep/ray_backend"}
    for name in FILES:
        if name.split("/")[0] in ("analysis", "sweep") and name not in need_more:
            assert not other_imports(name) & {"torch", "ray"}, name


def test_equations_import_torch_alone():
    assert other_imports("equations") == {"torch"}


def test_one_module_uses_compilers():
    for place, node in nodes(ast.Attribute, ast.Name, ast.Import, ast.ImportFrom):
        if place.split(":")[0] in COMPILERS:
            continue
        word = getattr(node, "attr", getattr(node, "id", None))
        assert word not in {"CUDAGraph", "make_graphed_callables"}, place
        assert not isinstance(node, ast.Attribute) or ast.unparse(node) != "torch.compile", place
        assert not {"torch.compiler", "torch._dynamo", "torch._inductor"} & set(imported(node)), (
            place
        )


def test_no_bare_except_and_no_assert_without_a_message():
    for place, node in nodes(ast.ExceptHandler, ast.Assert):
        assert getattr(node, "type", True) is not None, place
        assert getattr(node, "msg", True) is not None, place


def test_no_file_that_is_loaded_can_run_code():
    """No pickle, and no torch.save or torch.load, which are pickle."""
    pickles = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for name in FILES:
        assert not other_imports(name) & pickles, name
    for place, node in nodes(ast.Attribute):
        assert ast.unparse(node) not in {"torch.save", "torch.load"}, place


def test_imports_of_the_package_name_modules_that_exist():
    """mypy ignores missing modules, and a function's import on a GPU runs in no test on a CPU."""
    for name in FILES:
        for module in own_imports(name):
            assert {module, f"{module}/__init__"} & set(FILES), f"{name} imports {module}"


def test_no_module_has_a_catch_all_name():
    assert not {Path(name).name for name in FILES} & {"utils", "util", "helpers", "misc", "common"}


def test_classes_inherit_from_records_interfaces_errors_and_options_only():
    """Interfaces are protocols, abstract classes, and a few classes whose methods have defaults."""
    allowed = {
        *("nn.Module", "torch.autograd.Function", "NamedTuple", "TypedDict", "Generic"),
        *("MachineInfo", "machine.MachineInfo", "RendererInfo", "Facts"),  # keys of dicts
        *(
            "Protocol",
            "ABC",
            "CuriosityMeasure",
            "AbsoluteMeasure",
            "ReplaySettings",
            "OffPolicySettings",
            "OffPolicyBase",
            "ReplayBase",
            "Pool",
        ),
    }
    bases_of = {
        (place, node.name): {ast.unparse(base).partition("[")[0] for base in node.bases}
        for place, node in nodes(ast.ClassDef)
    }
    allowed |= {name for (_, name), bases in bases_of.items() if bases & {"Protocol", "ABC"}}
    for (place, name), bases in bases_of.items():
        others = {base for base in bases - allowed if not base.endswith(("Error", "Options"))}
        assert not others, f"{place}: {name}"
