// The KV cache: address space for all blocks at once, memory for as many as are needed so far.
// Blocks are grouped in slabs; a slab is committed as a whole, lowest first, by a thread of the arena's own.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "../kernels/attention.h"
#include "memory.h"

namespace gm {

struct KvShape {
  int32_t num_layers;
  int32_t num_kv_heads;
  int32_t head_dim;
  int64_t page_bytes() const { return int64_t{2} * num_kv_heads * head_dim * page_tokens * 2; }  // K and V, bf16
  int64_t block_bytes() const { return num_layers * page_bytes(); }
};

class KvArena {
 public:
  // `reserve_bytes`: a slab is committed only if the machine and the cgroup keep this much besides it.
  KvArena(KvShape shape, int64_t num_blocks, int64_t reserve_bytes);
  ~KvArena();
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;

  KvView layer(int32_t layer) const;

  // Blocks 0 .. n-1 may be used; never shrinks. Any thread.
  int64_t num_committed_blocks() const { return committed_blocks_.load(std::memory_order_acquire); }
  // True while memory was too short for the last slab asked for. Any thread.
  bool is_short_of_memory() const { return is_short_.load(std::memory_order_relaxed); }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t blocks_per_slab() const { return int64_t{1} << slab_shift_; }

  // Asks that `count` blocks in all be committed, in the background. Never blocks for long.
  void request_blocks(int64_t count);
  // Commits the slabs that hold the first `count` blocks, on this thread. False if memory is too short.
  bool commit_now(int64_t count);
  // Gives all memory back; no block is committed any more, and none will be. Not while a step runs.
  void release();
  // target[i] = source[i] over all layers, i ascending. Ids are the caller's to check.
  void copy_blocks(const int32_t* source_ids, const int32_t* target_ids, int64_t count);

 private:
  void grow();
  bool commit_slab();
  int64_t next_slab_end() const;
  uint8_t* page(int64_t block, int32_t layer) const;

  const KvShape shape_;
  const int64_t num_blocks_;
  const int64_t reserve_bytes_;
  const int32_t slab_shift_;
  const int64_t slab_bytes_;
  std::unique_ptr<Mapping> memory_;  // null once released
  std::atomic<int64_t> committed_blocks_{0};
  std::atomic<bool> is_short_{false};
  std::mutex commit_mutex_;
  std::mutex mutex_;
  std::condition_variable wake_;
  int64_t wanted_blocks_ = 0;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace gm
