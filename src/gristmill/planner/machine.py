"""What this machine has: memory and cores, cgroups included."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory that a new process may take now, and the cores that compute threads should use."""

    memory_total_bytes: int
    memory_available_bytes: int
    num_usable_cores: int


def measure_machine(root: Path = Path("/")) -> Machine:
    """Read the kernel's files under `root`; a cgroup's limit counts if it is lower than the machine's."""
    meminfo = _read_meminfo(root)
    limit, used = _cgroup_memory(root)
    total = min(meminfo["MemTotal"], limit)
    available = min(meminfo["MemAvailable"], max(limit - used, 0))
    return Machine(total, available, _usable_cores(root))


def _read_meminfo(root: Path) -> dict[str, int]:
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}


def _cgroup_memory(root: Path) -> tuple[int, int]:
    """Return (limit, used without reclaimable file cache); limit is 2^60 if there is none."""
    group = _own_cgroup(root)
    limit, used = _NO_LIMIT, 0
    for folder in (group, *group.parents):
        bound = _read_number(folder / "memory.max")
        if bound is not None and bound < limit:
            cache = _stat_value(folder / "memory.stat", "inactive_file")
            limit, used = bound, max((_read_number(folder / "memory.current") or 0) - cache, 0)
    v1 = root / "sys/fs/cgroup/memory"
    bound = _read_number(v1 / "memory.limit_in_bytes")
    if bound is not None and bound < limit:
        cache = _stat_value(v1 / "memory.stat", "total_inactive_file")
        limit, used = bound, max((_read_number(v1 / "memory.usage_in_bytes") or 0) - cache, 0)
    return limit, used


def _own_cgroup(root: Path) -> Path:
    base = root / _CGROUP.relative_to("/")
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return base
    unified = [line.split("::", 1)[1] for line in lines if line.startswith("0::")]
    return base / unified[0].lstrip("/") if unified else base


def _usable_cores(root: Path) -> int:
    """Physical cores in the affinity mask, no more than the cgroup's quota, at least one."""
    allowed = os.sched_getaffinity(0) if root == Path("/") else set(range(os.cpu_count() or 1))
    cores = {_core_of(root, cpu) for cpu in allowed}
    return max(1, min(len(cores), int(_cpu_quota(root))))


def _core_of(root: Path, cpu: int) -> tuple[str, str]:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    try:
        return (topology / "physical_package_id").read_text().strip(), (topology / "core_id").read_text().strip()
    except OSError:
        return "", str(cpu)


def _cpu_quota(root: Path) -> float:
    group = _own_cgroup(root)
    quota = float(_NO_LIMIT)
    for folder in (group, *group.parents):
        try:
            limit, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if limit != "max":
            quota = min(quota, int(limit) / int(period))
    return quota


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _stat_value(path: Path, key: str) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(key + " ")), 0)
