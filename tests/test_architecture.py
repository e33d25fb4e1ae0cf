"""Who may import whom. A part that knows only what it must can be changed alone."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dali_pipes"
MODULES = sorted(PACKAGE.rglob("*.py"))

# library: the only modules that may import it
LIBRARIES = {
    "nvidia": {
        *{f"backends/{name}.py" for name in ("dali", "dali_augment", "dali_feed", "dali_graph", "dali_native", "dali_planning")},
        *{"doctor/decode.py", "doctor/nvimagecodec.py"},  # run in a process of their own: whether these libraries work at all
    },
    "tensorflow": {"backends/tfdata.py"},
    "fsspec": {"storage/remote.py"},
    "cupy": {"mixing.py", "doctor/kernels.py"},  # the doctor's in a process of its own: whether CuPy works at all
    "hydra": {"jobs.py"},
    "omegaconf": {"jobs.py"},
    "lightning": {"training/launch.py"},
}
# part of the package: what it may import from the package
ALLOWED = {
    "errors": set(),
    "cpus": set(),
    "models": {"errors"},
    "progress": set(),
    "nvml": set(),
    "telemetry": {"cpus", "nvml"},
    "philox": set(),
    "augment": {"augment", "config", "errors", "philox"},
    "headers": {"errors"},
    "geometry": {"philox"},
    "targets": {"errors"},
    "sources": {"errors", "headers", "progress", "targets"},
    "storage": {"errors", "headers", "progress", "sources", "storage", "targets"},
    "manifest_table": {"headers", "storage", "targets"},
    "names": set(),
    "manifest_file": {"errors", "manifest_table"},
    "manifest": {"errors", "headers", "manifest_file", "manifest_table", "names", "sources", "storage", "targets"},
    "plan": {"augment", "errors", "geometry", "manifest", "philox"},
    "config": {"errors"},
    "transforms": {"augment", "config", "errors", "geometry", "philox"},
    "images": {"config", "demo", "manifest", "progress", "storage"},
    "jobs": {
        *{"benchmark", "config", "diagnosis", "doctor", "gpu_check", "headers", "preparation", "training", "transforms", "tuning"},
    },
    "readback": set(),
    "memory": {"backends", "transforms", "config", "cpus", "errors"},
    "provenance": {"cpus", "manifest"},
    "batch": {"philox", "plan"},
    "lookup": {"batch", "manifest"},
    "blame": {"batch", "cpus", "headers", "manifest", "plan"},
    "backends": {
        "transforms",
        "augment",
        "backends",
        "batch",
        "config",
        "cpus",
        "errors",
        "geometry",
        "headers",
        "manifest",
        "plan",
        "storage",
    },
    "child": set(),
    "decode_probe": {"child", "config", "manifest"},
    "decode_compare": {"config", "decode_probe", "loader", "manifest", "nvml", "transforms"},
    "doctor": {
        *{
            "backends",
            "benchmark",
            "child",
            "errors",
            "config",
            "cpus",
            "decode_probe",
            "demo",
            "doctor",
            "images",
            "manifest",
            "memory",
            "nvml",
            "progress",
            "storage",
            "telemetry",
            "transforms",
        },
    },
    "mixing": {"batch", "config", "errors", "manifest", "philox"},
    "preparation": {
        "storage",
        "transforms",
        *{"benchmark", "config", "cpus", "errors", "headers", "images", "loader", "manifest", "preparation", "progress"},
        "provenance",
    },
    "fingerprint": {"batch", "plan", "transforms"},
    "loader": {
        "fingerprint",
        "transforms",
        "backends",
        "batch",
        "blame",
        "config",
        "decode_probe",
        "errors",
        "lookup",
        "manifest",
        "mixing",
        "philox",
        "plan",
    },
}


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
        assert name(module) in LIBRARIES.get(library, {name(module)}), f"{name(module)} imports {imported}"


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_parts_know_only_what_they_must(module):
    part = module.relative_to(PACKAGE).with_suffix("").parts[0]
    if part not in ALLOWED:
        return
    inside = {imported.split(".")[1] for imported in imports(module) if imported.startswith("dali_pipes.")}
    assert inside <= ALLOWED[part], f"{name(module)} imports {inside - ALLOWED[part]}"


def test_files_of_tests_have_a_name_each():
    names = [file.name for file in (PACKAGE.parent / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


def test_scripts_hold_no_logic():
    for script in (PACKAGE.parent / "scripts").glob("[!_]*.py"):
        assert len(script.read_text().splitlines()) <= 30, script.name


def test_the_table_of_contents_is_complete():
    import dali_pipes

    assert sorted(dali_pipes.__all__) == dali_pipes.__all__
    assert all(hasattr(dali_pipes, each) for each in dali_pipes.__all__)
