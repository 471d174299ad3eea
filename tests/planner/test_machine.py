from pathlib import Path

from gristmill.planner.machine import measure_machine


def _machine(root: Path, *, cgroup: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:   8000000 kB\n")
    (root / "proc/self/cgroup").write_text("0::/service/ours\n")
    group = root / "sys/fs/cgroup/service/ours"
    group.mkdir(parents=True)
    for name, text in cgroup.items():
        (group / name).write_text(text)
    return root


def test_without_a_cgroup_limit_the_machine_counts(tmp_path: Path) -> None:
    machine = measure_machine(_machine(tmp_path, cgroup={"memory.max": "max\n"}))
    assert machine.memory_available_bytes == 8_192_000_000


def test_a_cgroup_limit_counts_and_its_file_cache_is_free(tmp_path: Path) -> None:
    files = {"memory.max": "4000000000\n", "memory.current": "3000000000\n", "memory.stat": "anon 1\ninactive_file 1000000000\n"}
    machine = measure_machine(_machine(tmp_path, cgroup=files))
    assert machine.memory_available_bytes == 2_000_000_000


def test_an_outer_group_with_less_left_counts_though_its_limit_is_higher(tmp_path: Path) -> None:
    root = _machine(tmp_path, cgroup={"memory.max": "4000000000\n", "memory.current": "1000000000\n"})
    outer = root / "sys/fs/cgroup/service"
    (outer / "memory.max").write_text("6000000000\n")
    (outer / "memory.current").write_text("5500000000\n")
    machine = measure_machine(root)
    assert machine.memory_available_bytes == 500_000_000


def test_a_cpu_quota_bounds_the_cores(tmp_path: Path) -> None:
    machine = measure_machine(_machine(tmp_path, cgroup={"cpu.max": "100000 100000\n"}))
    assert machine.num_usable_cores == 1


def test_this_machine_can_be_measured() -> None:
    machine = measure_machine()
    assert machine.memory_available_bytes > 0
    assert machine.num_usable_cores >= 1
