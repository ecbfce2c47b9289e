"""The design's limits as tests: who may import what and when, sizes, names, docstrings, flags.

Reads the syntax trees only, but for the two tests that look at what a fresh process loads.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_tpu_unified.core import flags

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch_tpu_unified", "cloud_backend", "litert_export", "cli")
FOLDERS = (*PACKAGES, "tests", "examples", "benchmarks")
LONGEST_FILE, LONGEST_FUNCTION = 500, 60
HEAVY = ("jax", "transformers", "ai_edge_litert", "onnx", "sklearn", "matplotlib", "marimo")

# (files, what they never import, whether at module level only)
Rule = tuple[str, tuple[str, ...], bool]
HALVES = ("cloud_backend", "litert_export")
RULES: tuple[Rule, ...] = (
    (
        "torch_tpu_unified/core/*",
        ("jax", "flatbuffers", "click", "rich", "cli", *HALVES),
        False,
    ),
    ("torch_tpu_unified/core/flags.py", ("torch", "numpy"), False),
    ("torch_tpu_unified/core/errors.py", ("torch", "numpy"), False),
    # The face is light: the halves come with the first use of a name.
    ("torch_tpu_unified/__init__.py", ("torch", "numpy", "click", *HALVES), True),
    ("torch_tpu_unified/autoload.py", ("torch", "numpy", *HALVES), True),
    ("torch_tpu_unified/*", ("click", "rich", "torch_tpu_unified.cli", "cli"), False),
    ("cloud_backend/*", ("litert_export", "cli", "click", "rich", "flatbuffers"), False),
    ("cloud_backend/*", ("ai_edge_litert",), False),
    (
        "cloud_backend/ops/*",
        ("cloud_backend.dispatch", "cloud_backend.tensor", "cloud_backend.device"),
        False,
    ),
    ("litert_export/*", ("jax", "cloud_backend", "cli", "click", "rich"), False),
    ("litert_export/*", HEAVY, True),
    (
        "litert_export/ops/*",
        ("litert_export.emit", "litert_export.passes", "litert_export.writer"),
        False,
    ),
    ("litert_export/passes/*", ("torch.fx", "litert_export.emit", "litert_export.writer"), False),
    ("litert_export/writer.py", ("torch",), False),
    ("litert_export/reader.py", ("torch",), False),
    ("cli/*", ("torch", "jax", "numpy", *HALVES), True),
    ("cli/main.py", ("rich",), True),
)
# Where the face's own modules may be imported from a half: nowhere but `core`.
DYNAMIC_IMPORTS = {
    "torch_tpu_unified/__init__.py",
    "torch_tpu_unified/factories.py",
    "cloud_backend/ops/__init__.py",
    "litert_export/ops/__init__.py",
}


def sources(*folders: str) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), name(path))


def statements(module: ast.Module, top_only: bool) -> Iterator[ast.AST]:
    """All nodes, or those that run on import; blocks for type checkers never run."""
    left: list[ast.AST] = [module]
    while left:
        node = left.pop()
        yield node
        for child in ast.iter_child_nodes(node):
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            if not checking and not (top_only and function):
                left.append(child)


def imports(path: Path, top_only: bool) -> set[str]:
    """Dotted names that a file imports."""
    found = set()
    for node in statements(tree(path), top_only):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def matches(path: Path, pattern: str) -> bool:
    if pattern.endswith("/*"):
        return name(path).startswith(pattern[:-1])
    return name(path) == pattern


@pytest.mark.parametrize("path", sources(*PACKAGES), ids=name)
def test_import_rules(path: Path) -> None:
    for pattern, banned, top_only in RULES:
        if matches(path, pattern):
            for module in imports(path, top_only):
                for ban in banned:
                    assert module != ban and not module.startswith(ban + "."), (
                        f"{name(path)} imports {module}; {pattern} never imports {ban}"
                        + (" at module level" if top_only else "")
                    )


@pytest.mark.parametrize("path", sources(*HALVES), ids=name)
def test_halves_know_the_core_only(path: Path) -> None:
    for module in imports(path, top_only=False):
        if module.startswith("torch_tpu_unified"):
            assert module.startswith("torch_tpu_unified.core"), f"{name(path)} imports {module}"


@pytest.mark.parametrize("path", sources(*PACKAGES), ids=name)
def test_no_hidden_imports_prints_or_swallowed_errors(path: Path) -> None:
    for node in ast.walk(tree(path)):
        where = f"{name(path)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("importlib.import_module", "__import__"):
                assert name(path) in DYNAMIC_IMPORTS, f"{where}: dynamic import"
            if called == "print":
                to_stderr = any(k.arg == "file" for k in node.keywords)
                assert to_stderr, f"{where}: print"
            assert called != "breakpoint", where
        if isinstance(node, ast.ExceptHandler):
            silent = len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
            assert not silent, f"{where}: an error is swallowed"


@pytest.mark.parametrize("path", sources(*FOLDERS), ids=name)
def test_sizes_names_and_docstrings(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= LONGEST_FILE, f"{name(path)} has {text.count(chr(10))} lines"
    assert path.stem not in ("utils", "helpers", "misc", "common"), name(path)
    module = tree(path)
    notebook = "marimo.App" in text
    assert ast.get_docstring(module) or notebook or not text, (
        f"{name(path)} lacks its opening docstring"
    )
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            documented = len((ast.get_docstring(node) or "").splitlines())
            assert length - documented <= LONGEST_FUNCTION, (
                f"{name(path)}:{node.lineno}: {node.name} has {length} lines"
            )


# Rows of tables say what they are by their name and their table.
PUBLIC = [p for p in sources(*PACKAGES) if "/ops/" not in name(p) and "_rules" not in p.stem]


@pytest.mark.parametrize("path", PUBLIC, ids=name)
def test_public_names_are_documented(path: Path) -> None:
    for node in tree(path).body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
            continue
        if not node.decorator_list or isinstance(node, ast.ClassDef):
            assert ast.get_docstring(node), f"{name(path)}:{node.lineno}: {node.name}"


def test_every_flag_is_declared_and_used() -> None:
    written = set()
    for path in sources(*PACKAGES):
        text = path.read_text(encoding="utf-8")
        written |= set(re.findall(r"\bTTU_[A-Z_]+\b", text))
        if name(path) != "torch_tpu_unified/core/flags.py":
            assert "environ" not in text or not re.search(r"environ\W+(get\()?\W*TTU_", text), (
                f"{name(path)} reads a flag from the environment; ask core.flags"
            )
    assert written == set(flags.REGISTRY)
    for flag in flags.REGISTRY.values():
        constant = flag.name.removeprefix("TTU_")
        used = [p for p in sources(*PACKAGES) if f"flags.{constant}" in p.read_text("utf-8")]
        assert used, f"{flag.name} is declared, but nothing asks for it"


def test_packages_are_all_listed() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(config["tool"]["setuptools"]["packages"])
    found = {
        name(path.parent).replace("/", ".")
        for package in PACKAGES
        for path in sources(package)
        if path.name == "__init__.py"
    }
    found = {"torch_tpu_unified." + f if f.split(".")[0] == "cli" else f for f in found}
    assert listed == found


def fresh(script: str, **environment: str) -> str:
    """What a new Python prints."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


LOADED = "import sys; print(*sorted({m.split('.')[0] for m in sys.modules}))"


def test_the_face_and_the_command_line_load_nothing_heavy() -> None:
    loaded = fresh(f"import torch_tpu_unified, torch_tpu_unified.cli.main; {LOADED}").split()
    assert not {"torch", "numpy", "rich", *HEAVY} & set(loaded)


@pytest.mark.parametrize("autoload", ["0", "1"])
@pytest.mark.parametrize("order", ["torch, torch_tpu_unified", "torch_tpu_unified, torch"])
def test_the_device_is_there_without_jax(order: str, autoload: str) -> None:
    script = f"import {order}; print(torch.device('tpu').type, hasattr(torch, 'tpu')); {LOADED}"
    first, loaded = fresh(script, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload).splitlines()
    assert first == "tpu True"
    assert not set(HEAVY) & set(loaded.split())
