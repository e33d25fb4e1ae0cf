"""Who may import whom. A part that knows only what it must can be changed alone."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dali_pipes"
MODULES = sorted(PACKAGE.rglob("*.py"))

# library: the only modules that may import it
LIBRARIES = {
    "nvidia": {
        *{f"backends/dali/{name}.py" for name in ("backend", "augment", "feed", "graph")},
        "backends/reference/dali.py",
        "data/scanning/decoders.py",  # whether the decoders of all loaders accept an image
        # in a process of their own: whether these libraries work at all
        *{"tools/doctor/decode.py", "tools/doctor/software.py"},
    },
    # a program that is diagnosed has imported it itself
    "tensorflow": {
        "backends/tfdata.py",
        "tools/diagnosis/tfdata_program.py",
        "tools/diagnosis/watched.py",
    },
    "fsspec": {"data/shards/remote.py"},
    "pycocotools": {"data/outlines.py"},
    "cupy": {"loader/mixing.py", "tools/doctor/software.py"},
    "hydra": {f"cli/{name}.py" for name in ("hydra", "conf", "explain", "help", "sweep")},
    "omegaconf": {
        "system/files.py",
        *(f"cli/{name}.py" for name in ("hydra", "conf", "explain", "help", "spelling")),
    },
    "lightning": {"training/launch.py", "adapters/lightning.py"},
    "accelerate": {"adapters/accelerate.py"},
    "transformers": {"adapters/transformers.py"},
    "timm": {"adapters/from_torch/samples.py", "training/recipe.py"},
    "ray": {"tools/preparation/on_ray.py"},
}
# The floors of the house, the lowest first: a module imports from its own floor and from those
# below.
FLOORS = [
    "errors",
    "system",
    "data",
    "plan",
    "backends",
    "loader",
    "training",
    "adapters",
    "measure",
    "tools",
    "cli",
]


def name(module: Path) -> str:
    return str(module.relative_to(PACKAGE))


def imports(module: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(module)}: relative import"
            found.append(node.module)
    return found


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_libraries_stay_in_their_place(module):
    for imported in imports(module):
        library = imported.split(".")[0]
        assert name(module) in LIBRARIES.get(library, {name(module)}), (
            f"{name(module)} imports {imported}"
        )


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_imports_only_go_down(module):
    floor = module.relative_to(PACKAGE).with_suffix("").parts[0]
    if floor == "__init__":
        return
    below = FLOORS[: FLOORS.index(floor) + 1]
    for imported in imports(module):
        if imported.startswith("dali_pipes."):
            assert imported.split(".")[1] in below, f"{name(module)} imports {imported}"


def test_no_imports_go_in_circles():
    """Those inside functions included, which would hide one."""
    modules = [module for module in MODULES if module.stem != "__init__"]
    graph = {
        name(module).removesuffix(".py").replace("/", "."): imports(module) for module in modules
    }
    TopologicalSorter(
        {f"dali_pipes.{module}": imported for module, imported in graph.items()}
    ).prepare()


@pytest.mark.parametrize("module", sorted((PACKAGE / "tools").rglob("*.py")), ids=name)
def test_tools_do_not_know_each_other(module):
    own = module.relative_to(PACKAGE / "tools").with_suffix("").parts[0]
    for imported in imports(module):
        if imported.startswith("dali_pipes.tools."):
            assert imported.split(".")[2] == own, f"{name(module)} imports {imported}"


def test_the_house_has_few_rooms():
    entries = {each.name for each in PACKAGE.iterdir()} - {"__pycache__"}
    assert entries == {"__init__.py", "py.typed", "errors.py", *FLOORS[1:]}


def test_importing_the_package_loads_no_tool():
    """What a training program does not use costs it no time and cannot break it."""
    code = (
        "import sys; import dali_pipes; print(*sys.modules); import torch, torchvision; before "
        "= set(sys.modules); "
    )
    code += "dali_pipes.build_loader; print(*sys.modules.keys() - before)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    at_once, loaded = map(str.split, done.splitlines())
    assert (
        "torch" not in at_once and "numpy" not in at_once and "dali_pipes.loader.loader" in loaded
    )
    heavy = ("matplotlib", "pynvml", "hydra", "lightning", "nvidia.dali", "tensorflow", "cupy")
    assert not [
        each
        for each in loaded
        if each.startswith((*heavy, "dali_pipes.tools", "dali_pipes.measure"))
    ]


def test_files_of_tests_have_a_name_each():
    names = [file.name for file in (PACKAGE.parent / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


def test_scripts_are_for_a_checkout():
    """What a user runs is a job of dali-pipes."""
    shell = {f"{name}.sh" for name in ("setup", "quickstart", "test", "lock", "gpu_check")}
    scripts = {each.name for each in (PACKAGE.parent / "scripts").iterdir()} - {"__pycache__"}
    assert scripts == {*shell, "gpu_check", "container"}


def test_the_table_of_contents_is_complete():
    import dali_pipes

    assert sorted(dali_pipes.__all__) == dali_pipes.__all__
    assert all(hasattr(dali_pipes, each) for each in dali_pipes.__all__)
