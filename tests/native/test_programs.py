"""The native test programs, built with the kernels of every tier and run on those that this machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "native-tests"
PROGRAMS = sorted(path.stem for path in (ROOT / "native" / "tests").glob("test_*.cpp"))


@pytest.fixture(scope="module")
def build() -> Path:
    """Configure and build, or rebuild what has changed."""
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(BUILD), "-DGRISTMILL_MODULE=OFF", "-DGRISTMILL_TESTS=ON"]
    for command in (configure, ["cmake", "--build", str(BUILD)]):
        result = subprocess.run(command, env=tools, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
    return BUILD


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_passes_on_every_tier_of_this_machine(program: str, build: Path) -> None:
    environment = {**os.environ, "GRISTMILL_TEST_BRIEF": "1"}
    result = subprocess.run([build / program], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
