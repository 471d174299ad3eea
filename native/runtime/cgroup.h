// What this process's control groups (v1 or v2, every ancestor) leave it of the machine's memory.
#pragma once
#include <cstdint>

namespace gm {

// Bytes that can still be allocated without swapping or being killed: the smaller of the machine's MemAvailable
// and what each memory group has left (its limit - its usage + its reclaimable file cache).
int64_t available_memory_bytes();

}  // namespace gm
