"""What this machine has: memory and cores, cgroups included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory that a new process may take now, and the cores that compute threads should use."""

    memory_available_bytes: int
    num_usable_cores: int


def measure_machine(root: Path = Path("/")) -> Machine:
    """Read the kernel's files under `root`; what a cgroup has left counts if it is less than the machine has."""
    available = min([_read_meminfo(root)["MemAvailable"], *_cgroup_memory(root)])
    return Machine(available, _usable_cores(root))


def _read_meminfo(root: Path) -> dict[str, int]:
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}


def _cgroup_memory(root: Path) -> Iterator[int]:
    """Yield the bytes left of each limit that the groups set; reclaimable file cache is not used up.

    An outer group may have less left than an inner one with a lower limit: its other members use it too.
    """
    group = _own_cgroup(root)
    for folder in (group, *group.parents):
        yield from _bound(folder, "memory.max", "memory.current", "inactive_file")
    yield from _bound(root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _bound(folder: Path, limit_name: str, usage_name: str, cache_key: str) -> Iterator[int]:
    limit = _read_number(folder / limit_name)
    if limit is not None:
        used = (_read_number(folder / usage_name) or 0) - _stat_value(folder / "memory.stat", cache_key)
        yield max(limit - max(used, 0), 0)


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
