// Partial selection and sorting of token ids by "larger x first, ties to the lower id". Our own, since the library's
// templates could leave functions of this tier's instruction set for other tiers to link.
#pragma once
#include "simd.h"

namespace gm::GM_TIER {
namespace {

GM_INLINE bool comes_before(const float* x, int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); }

GM_INLINE void exchange(int32_t& a, int32_t& b) {
  const int32_t kept = a;
  a = b;
  b = kept;
}

// Moves the first `k` of `count` ids in order to the front, in any order among themselves (quickselect; the order is
// total, so the set is unique).
void select_first(int32_t* ids, int64_t count, int64_t k, const float* x) {
  int64_t begin = 0, end = count;
  while (end - begin > 1 && k > begin && k < end) {
    int32_t& middle = ids[begin + (end - begin) / 2];
    int32_t& last = ids[end - 1];
    if (comes_before(x, middle, ids[begin])) exchange(middle, ids[begin]);
    if (comes_before(x, last, ids[begin])) exchange(last, ids[begin]);
    if (comes_before(x, middle, last)) exchange(middle, last);
    const int32_t pivot = last;
    int64_t at = begin;
    for (int64_t i = begin; i < end - 1; ++i) {
      if (comes_before(x, ids[i], pivot)) exchange(ids[i], ids[at++]);
    }
    exchange(ids[at], ids[end - 1]);
    if (k <= at) end = at;
    else begin = at + 1;
  }
}

// Heap sort: no worst case, no memory.
template <class Before>
GM_INLINE void heap_sort(int32_t* ids, int64_t count, const Before& before) {
  const auto sift = [&](int64_t root, int64_t end) {
    for (int64_t child; (child = 2 * root + 1) < end; root = child) {
      if (child + 1 < end && before(ids[child], ids[child + 1])) ++child;
      if (!before(ids[root], ids[child])) return;
      exchange(ids[root], ids[child]);
    }
  };
  for (int64_t root = count / 2 - 1; root >= 0; --root) sift(root, count);
  for (int64_t end = count - 1; end > 0; --end) {
    exchange(ids[0], ids[end]);
    sift(0, end);
  }
}

void sort_in_order(int32_t* ids, int64_t count, const float* x) {
  heap_sort(ids, count, [x](int32_t a, int32_t b) { return comes_before(x, a, b); });
}

void sort_by_id(int32_t* ids, int64_t count) {
  heap_sort(ids, count, [](int32_t a, int32_t b) { return a < b; });
}

}  // namespace
}  // namespace gm::GM_TIER
