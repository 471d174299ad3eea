#!/bin/bash
# The native tests under qemu-user: on the oldest x86-64 (only the portable tier may run), on an AVX2 one, and built for
# arm64. The portable tier's results must have the same bits everywhere: each test prints their digest.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"

missing=()
command -v qemu-x86_64 >/dev/null && command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
command -v g++ >/dev/null || missing+=(g++)
command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
command -v cmake >/dev/null || missing+=(cmake)
if ((${#missing[@]})); then
  echo "check-portable needs: ${missing[*]}" >&2
  echo "  Mend: sudo apt-get install -y ${missing[*]}" >&2
  exit 2
fi

build() { # directory, cmake options...
  local directory=$1
  shift
  cmake -S . -B "$directory" -DGRISTMILL_MODULE=OFF -DGRISTMILL_TESTS=ON -DCMAKE_EXE_LINKER_FLAGS=-static "$@" >/dev/null
  cmake --build "$directory" --parallel "$(nproc)" >/dev/null
}

build build/portable-x86
build build/portable-arm64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++

# Kernel tests only: those of the runtime ask the machine about its cores and memory.
tests=()
for source in native/tests/test_*.cpp; do
  name=$(basename "$source" .cpp)
  [[ $name == test_runtime ]] || tests+=("$name")
done

status=0
run() { # label, directory, emulator...
  local label=$1 directory=$2 name output digest
  shift 2
  for name in "${tests[@]}"; do
    if ! output=$("$@" "$directory/$name" 2>&1); then
      printf '%-22s %s\n' "$label" "$output"
      status=1
      continue
    fi
    printf '%-22s %s\n' "$label" "$output"
    digest=${output##*portable digest }
    if [[ ${digests[$name]:=$digest} != "$digest" ]]; then
      echo "$label: $name: the portable tier's bits are not those of the first machine" >&2
      status=1
    fi
  done
}

# Emulators are slow: one tier each, and not the longest cases.
export GRISTMILL_TEST_BRIEF=1
declare -A digests=()
run "this machine" build/portable-x86
run "x86-64 of 2003" build/portable-x86 qemu-x86_64 -cpu Opteron_G1
run "arm64" build/portable-arm64 qemu-aarch64
# No digest here: the tier has its own bits, held to tolerance.
digests=()
GRISTMILL_TEST_TIER=avx2 run "x86-64 with AVX2" build/portable-x86 qemu-x86_64 -cpu Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm
if ((status == 0)); then echo "check-portable: equal digests on all machines"; fi
exit $status
