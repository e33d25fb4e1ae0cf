"""Who may import whom. A part that knows only what it must can be changed alone."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from dali_pipes.backends.registry import list_backends

PACKAGE = Path(__file__).parents[1] / "dali_pipes"
MODULES = sorted(PACKAGE.rglob("*.py"))

# library: the only modules that may import it
LIBRARIES = {
    "nvidia": {
        *{f"backends/dali/{name}.py" for name in ("backend", "augment", "feed", "graph")},
        *{f"measure/arms/{name}.py" for name in ("native_loader", "decoding_backend")},
        "data/image_files/decoders.py",  # whether the decoders of all loaders accept an image
        # in a process of their own: whether these libraries work at all
        *{"tools/doctor/decode.py", "tools/doctor/software.py"},
    },
    # a program that is diagnosed has imported it itself
    "tensorflow": {
        "tools/diagnosis/programs/tfdata.py",
        "tools/diagnosis/watching/tensorflow_hooks.py",
    },
    "fsspec": {"data/shards/store_requests.py"},
    "pycocotools": {"data/outlines.py"},
    "cupy": {"loader/mixing_kernels.py", "tools/doctor/software.py"},
    "hydra": {
        f"cli/{name}.py"
        for name in ("hydra", "conf", "explain", "named_options", "option_groups", "sweep")
    },
    "omegaconf": {
        "system/files.py",
        *(
            f"cli/{name}.py"
            for name in ("hydra", "conf", "explain", "help", "option_groups", "spelling")
        ),
    },
    "lightning": {"training/launch.py", "training/log/loggers.py", "adapters/lightning.py"},
    "accelerate": {"adapters/accelerate.py"},
    "transformers": {"adapters/transformers.py", "training/network/hugging_face.py"},
    "timm": {
        "training/network/names.py",
        "training/network/build.py",
        "training/optimizing/recipe.py",
        "training/network/weights.py",
    },
    "ray": {"tools/preparation/on_ray.py"},
}
# The floors of the house, the lowest first: a module imports from its own floor and from those
# below.
FLOORS = [
    "errors",
    "checks",
    "options",
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


# The only modules that import what a string names, and why. The strings themselves count as imports
# of the modules that hold them.
IMPORTERS = {
    "__init__.py": "a public name is imported when it is first used",
    "adapters/lazy/steps/step.py": "a row of the table names the library that has the function, "
    "which is imported only if the program has it",
    "backends/registry.py": "a backend's libraries are imported when a loader is built with it; "
    "other packages add backends",
    "measure/workload.py": "the name of a user's function is tried before another process needs it",
    "system/functions.py": "users name their functions",
    "system/child.py": "another process runs a function that its caller names",
}


def name(module: Path) -> str:
    return str(module.relative_to(PACKAGE))


def dotted(module: Path) -> str:
    """As an import statement has it; that of an `__init__.py` is its folder."""
    path = module.relative_to(PACKAGE.parent).with_suffix("")
    return ".".join(path.parts[:-1] if path.name == "__init__" else path.parts)


KNOWN = {dotted(module) for module in MODULES}
# a module, or "module:name", or a program that imports from it
PATH = re.compile(r"(?:from )?([\w.]+?)(?:(:\w+)|( import .*))?")


@cache
def imports(module: Path) -> list[str]:
    """What a module imports, also inside functions, for types alone, and by strings."""
    tree, found = ast.parse(module.read_text()), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(module)}: relative import"
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            # `from package import module`
            found += [each if each in KNOWN else node.module for each in parts]
    return found + modules_in_strings(tree, dotted(module), module.stem == "__init__")


def modules_in_strings(tree: ast.Module, own: str, is_package: bool = False) -> list[str]:
    """The modules of the package that strings name: in full, or as "module:name" from the package
    or from the module's own folder on.
    """
    values = {"__name__": own}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            values |= {each.id: node.value.value for each in node.targets if hasattr(each, "id")}

    folder, found = own if is_package else own.rpartition(".")[0], []
    for node in ast.walk(tree):
        match = PATH.fullmatch(text_of(node, values))
        if match:
            within = (f"dali_pipes.{match[1]}", f"{folder}.{match[1]}") if match[2] else ()
            found += [each for each in (match[1], *within) if each in KNOWN - {own, "dali_pipes"}]
    return found


def text_of(node: ast.AST, values: dict[str, object]) -> str:
    """The text of a string, with constants of the module in the place of their names; "" if it is
    none, or has parts that are known only at run time.
    """
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else ""
    if isinstance(node, ast.FormattedValue):
        return str(values.get(getattr(node.value, "id", ""), ""))
    if isinstance(node, ast.JoinedStr):
        parts = [text_of(each, values) for each in node.values]
        return "".join(parts) if all(parts) else ""
    return ""


def floor_of(imported: str) -> str:
    return imported.split(".")[1]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('run("dali_pipes.checks:describe_value")', ["dali_pipes.checks"]),
        ('hooks = {"dali_pipes.loader.loader": 1}', ["dali_pipes.loader.loader"]),
        ('HERE = "dali_pipes.system"\nrun(f"{HERE}.child:call")', ["dali_pipes.system.child"]),
        ('add("backend:DaliBackend")', ["dali_pipes.backends.dali.backend"]),
        ('add("dali.backend:DaliBackend")', []),
        ('add("loader.work:Work")', ["dali_pipes.loader.work"]),
        (
            'START = "from dali_pipes.checks import describe; describe_value()"',
            ["dali_pipes.checks"],
        ),
        ('run(f"{__name__}:main")', []),
        ('run(f"dali_pipes.errors:{what}")', []),
        ('log("dali_pipes"), add("column:label"), error("see dali_pipes.errors")', []),
    ],
)
def test_strings_that_name_modules_are_seen(code, found):
    tree = ast.parse(code)
    names = modules_in_strings(tree, "dali_pipes.backends.dali.graph")
    assert [each for each in names if each != "dali_pipes.system"] == found


def test_only_a_few_modules_import_what_a_string_names():
    for module in MODULES:
        if name(module) in IMPORTERS:
            continue
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call):
                function = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if function in ("import_module", "resolve_name", "__import__"):
                    (path,) = node.args
                    assert isinstance(path, ast.Constant), (
                        f"{name(module)}: {ast.unparse(node)}; name the module, or add a reason"
                    )


def test_no_class_of_the_package_is_hidden_as_any():
    for module in MODULES:
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, ast.Assign) and getattr(node.value, "id", "") == "Any":
                hidden = {each.id for each in node.targets if isinstance(each, ast.Name)}
                assert not hidden, (
                    f"{name(module)}: {hidden} stand for classes, which hides an import"
                )


def test_libraries_stay_in_their_place():
    for module in MODULES:
        for imported in imports(module):
            library = imported.split(".")[0]
            assert name(module) in LIBRARIES.get(library, {name(module)}), (
                f"{name(module)} imports {imported}"
            )


def test_imports_only_go_down():
    for module in MODULES:
        floor = module.relative_to(PACKAGE).with_suffix("").parts[0]
        if floor == "__init__":
            continue
        below = FLOORS[: FLOORS.index(floor) + 1]
        for imported in imports(module):
            # the package's own table imports from all floors
            assert imported != "dali_pipes", f"{name(module)} imports the whole package"
            if imported.startswith("dali_pipes."):
                assert floor_of(imported) in below, f"{name(module)} imports {imported}"


def test_no_imports_go_in_circles():
    """Those inside functions and by strings included, which would hide one.

    A config names its backend, which needs the config, by a string; only the registry imports it.
    """
    graph = {dotted(module): imports(module) for module in MODULES}
    del graph["dali_pipes"]
    for config in list_backends().values():
        named = config.backend.partition(":")[0]
        graph[config.__module__].remove(named)
    TopologicalSorter(graph).prepare()


def test_the_plan_starts_no_threads():
    for module in sorted((PACKAGE / "plan").rglob("*.py")):
        assert not {"threading", "concurrent.futures", "multiprocessing"} & {*imports(module)}


def test_tools_do_not_know_each_other():
    """They all know `drawing`, which makes their pages, and `explain`, which know none of them."""
    for module in sorted((PACKAGE / "tools").rglob("*.py")):
        own = module.relative_to(PACKAGE / "tools").with_suffix("").parts[0]
        for imported in imports(module):
            if imported.startswith("dali_pipes.tools."):
                known = imported.split(".")[2]
                assert known in {own, "drawing", "explain"}, f"{name(module)} imports {imported}"


def test_the_house_has_few_rooms():
    entries = {each.name for each in PACKAGE.iterdir()} - {"__pycache__"}
    files = {"__init__.py", "py.typed", "errors.py", "checks.py", "options.py"}
    assert entries == {*files, *FLOORS[3:]}


@pytest.mark.slow
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


@pytest.mark.slow
def test_help_imports_no_library_that_only_a_job_uses():
    code = "import sys; import dali_pipes.cli.command; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torchvision", "matplotlib", "lightning", "torchmetrics", "nvidia.dali", "cupy"}
    assert not heavy & {*done.stdout.split()}


def test_files_of_tests_have_a_name_each():
    names = [file.name for file in (PACKAGE.parent / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


def test_scripts_are_for_a_checkout():
    """What a user runs is a job of dali-pipes."""
    shell = {f"{name}.sh" for name in ("setup", "quickstart", "test", "lock", "gpu_check")}
    scripts = {each.name for each in (PACKAGE.parent / "scripts").iterdir()} - {"__pycache__"}
    assert scripts == {*shell, "gpu_check", "gpu_day", "container"}


def test_the_table_of_contents_is_complete():
    import dali_pipes

    assert sorted(dali_pipes.__all__) == dali_pipes.__all__
    assert all(hasattr(dali_pipes, each) for each in dali_pipes.__all__)


def test_pages_that_a_folder_names_are_there():
    pages = [page for page in MODULES if page.name == "__init__.py"]
    docstrings = [ast.get_docstring(ast.parse(page.read_text())) or "" for page in pages]
    named = {name for text in docstrings for name in re.findall(r"`([\w/]+\.py)`", text)}
    assert [name for name in sorted(named) if not [*PACKAGE.rglob(name)]] == []


@pytest.mark.slow
def test_no_two_classes_of_the_package_have_one_name():
    """One word has one meaning (a name is read without its module)."""
    names = Counter(
        node.name
        for file in (Path(__file__).parents[1] / "dali_pipes").rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.slow
def test_no_name_of_a_page_is_given_twice():
    """The second one would be read where the first is meant."""
    for module in MODULES:
        names: Counter[str] = Counter()
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names[node.name] += 1
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                each = [name for target in targets for name in ast.walk(target)]
                names.update(
                    name.id
                    for name in each
                    # An attribute's owner is read here and not given a value.
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
                )
        assert [name for name, count in names.items() if count > 1] == [], module
