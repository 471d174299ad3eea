#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

namespace gm {
namespace {

constexpr int64_t chunk_bytes = int64_t{64} << 20;
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older C libraries lack the name
#endif

void touch(uint8_t* data, int64_t bytes, int64_t page) {
  for (int64_t offset = 0; offset < bytes; offset += page) {
    volatile uint8_t* byte = data + offset;
    *byte = *byte;
  }
}

}  // namespace

Mapping::Mapping(int64_t bytes) : bytes_(std::max<int64_t>(bytes, 1)) {
  mapped_ = round_up(bytes_, huge_page) + huge_page;
  base_ = mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base_ == MAP_FAILED) throw std::bad_alloc();
  data_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<int64_t>(base_), huge_page));
}

Mapping::~Mapping() { munmap(base_, static_cast<size_t>(mapped_)); }

void Mapping::advise_huge(int64_t offset, int64_t bytes) const {
  const int64_t begin = round_up(offset, huge_page);
  const int64_t end = (offset + bytes) / huge_page * huge_page;
  if (begin < end) madvise(data_ + begin, static_cast<size_t>(end - begin), MADV_HUGEPAGE);
}

bool Mapping::populate(int64_t offset, int64_t bytes) const {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t begin = offset / page * page;
  const int64_t end = std::min(round_up(offset + bytes, page), round_up(bytes_, page));
  if (madvise(data_ + begin, static_cast<size_t>(end - begin), MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  touch(data_ + begin, end - begin, page);
  return true;
}

Allocation ChunkAllocator::allocate(int64_t bytes) {
  const int64_t size = round_up(std::max<int64_t>(bytes, 1), cache_line);
  if (size > chunk_bytes / 4) {
    auto own = std::make_shared<Mapping>(size);
    own->advise_huge(0, size);  // the tail stays on small pages
    return {own, own->data()};
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<Mapping> chunk = current_.lock();
  if (!chunk || used_ + size > chunk->bytes()) {
    chunk = std::make_shared<Mapping>(chunk_bytes);
    chunk->advise_huge(0, chunk_bytes);
    current_ = chunk;
    used_ = 0;
  }
  uint8_t* data = chunk->data() + used_;
  used_ += size;
  return {chunk, data};
}

}  // namespace gm
