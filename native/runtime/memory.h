// Page-aligned anonymous memory on huge pages, and the allocator from which weights take theirs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace gm {

constexpr int64_t cache_line = 64;
constexpr int64_t huge_page = int64_t{2} << 20;

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Zeroed address space that takes memory only as it is touched. Throws std::bad_alloc.
class Mapping {
 public:
  explicit Mapping(int64_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  uint8_t* data() const { return data_; }  // huge-page aligned
  int64_t bytes() const { return bytes_; }

  // Asks for huge pages where they lie wholly within [offset, offset + bytes).
  void advise_huge(int64_t offset, int64_t bytes) const;
  // Makes the pages of [offset, offset + bytes) present. False if the kernel has no memory for them.
  bool populate(int64_t offset, int64_t bytes) const;

 private:
  void* base_;
  int64_t mapped_;
  uint8_t* data_;
  int64_t bytes_;
};

// A run of memory inside a chunk that lives as long as any run of it.
struct Allocation {
  std::shared_ptr<Mapping> chunk;
  uint8_t* data;
};

// Hands out 64-byte aligned memory from large huge-page chunks, one after the other, so that a model's small
// tensors share pages. A chunk is unmapped when the last allocation in it is dropped. Thread-safe.
class ChunkAllocator {
 public:
  Allocation allocate(int64_t bytes);

 private:
  std::mutex mutex_;
  std::weak_ptr<Mapping> current_;
  int64_t used_ = 0;
};

}  // namespace gm
