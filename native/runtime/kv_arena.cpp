#include "kv_arena.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "cgroup.h"

namespace gm {
namespace {

// Large enough that committing is rare, small enough that a fresh server stays small.
constexpr int64_t slab_bytes_max = int64_t{16} << 20;
constexpr int32_t slab_shift_max = 8;
constexpr auto retry_interval = std::chrono::seconds(1);

int32_t choose_slab_shift(KvShape shape, int64_t num_blocks) {
  int32_t shift = 0;
  while (shift < slab_shift_max && (shape.block_bytes() << (shift + 1)) <= slab_bytes_max && (int64_t{1} << shift) < num_blocks) {
    ++shift;
  }
  return shift;
}

}  // namespace

KvArena::KvArena(KvShape shape, int64_t num_blocks, int64_t reserve_bytes)
    : shape_(shape),
      num_blocks_(num_blocks),
      reserve_bytes_(reserve_bytes),
      slab_shift_(choose_slab_shift(shape, num_blocks)),
      slab_bytes_(round_up(shape.block_bytes() << slab_shift_, 4096)),
      memory_(std::make_unique<Mapping>(slab_bytes_ * ((num_blocks + (int64_t{1} << slab_shift_) - 1) >> slab_shift_))) {
  thread_ = std::thread([this] { grow(); });
}

KvArena::~KvArena() { release(); }

void KvArena::release() {
  if (!memory_) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  committed_blocks_.store(0, std::memory_order_release);
  memory_.reset();
}

KvView KvArena::layer(int32_t layer) const {
  KvView view{};
  view.pool = memory_->data();
  view.slab_bytes = slab_bytes_;
  view.layer_offset = (layer * shape_.page_bytes()) << slab_shift_;
  view.page_bytes = shape_.page_bytes();
  view.slab_shift = slab_shift_;
  view.num_kv_heads = shape_.num_kv_heads;
  view.head_dim = shape_.head_dim;
  return view;
}

void KvArena::request_blocks(int64_t count) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    wanted_blocks_ = std::max(wanted_blocks_, std::min(count, num_blocks_));
    if (wanted_blocks_ <= num_committed_blocks()) return;
  }
  wake_.notify_one();
}

bool KvArena::commit_now(int64_t count) {
  while (num_committed_blocks() < std::min(count, num_blocks_)) {
    if (!commit_slab()) return false;
  }
  return true;
}

int64_t KvArena::next_slab_end() const { return std::min(num_committed_blocks() + blocks_per_slab(), num_blocks_); }

bool KvArena::commit_slab() {
  const std::lock_guard<std::mutex> lock(commit_mutex_);
  if (!memory_) return false;
  if (num_committed_blocks() >= num_blocks_) return true;
  const int64_t offset = (num_committed_blocks() >> slab_shift_) * slab_bytes_;
  const bool has_room = available_memory_bytes() >= reserve_bytes_ + slab_bytes_;
  if (has_room) memory_->advise_huge(offset, slab_bytes_);
  const bool is_committed = has_room && memory_->populate(offset, slab_bytes_);
  is_short_.store(!is_committed, std::memory_order_relaxed);
  if (is_committed) committed_blocks_.store(next_slab_end(), std::memory_order_release);
  return is_committed;
}

void KvArena::grow() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_stopping_) {
    if (wanted_blocks_ <= num_committed_blocks()) {
      wake_.wait(lock);
      continue;
    }
    lock.unlock();
    const bool is_committed = commit_slab();
    lock.lock();
    // Memory may come back without anybody asking again.
    if (!is_committed && !is_stopping_) wake_.wait_for(lock, retry_interval);
  }
}

uint8_t* KvArena::page(int64_t block, int32_t layer) const {
  const int64_t slab = block >> slab_shift_;
  const int64_t in_slab = block & (blocks_per_slab() - 1);
  return memory_->data() + slab * slab_bytes_ + ((layer * shape_.page_bytes()) << slab_shift_) + in_slab * shape_.page_bytes();
}

void KvArena::copy_blocks(const int32_t* source_ids, const int32_t* target_ids, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
      std::memcpy(page(target_ids[i], layer), page(source_ids[i], layer), static_cast<size_t>(shape_.page_bytes()));
    }
  }
}

}  // namespace gm
