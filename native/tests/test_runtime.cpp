// The thread pool and the KV arena, as a plain program: exit status 0 = all is well.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <vector>

#include "../runtime/kv_arena.h"
#include "../runtime/ops.h"
#include "../runtime/thread_pool.h"

namespace {

int num_failures = 0;

void check(bool is_true, const char* what, int detail) {
  if (is_true) return;
  ++num_failures;
  std::printf("FAILED: %s (%d)\n", what, detail);
}

struct Phases {
  gm::ThreadPool* pool;
  int num_phases;
  std::atomic<int> arrived{0};
  std::atomic<bool> is_ordered{true};
};

// Between two barriers every worker sees that all have finished the phase before.
void run_phases(void* data, int) {
  auto& phases = *static_cast<Phases*>(data);
  for (int phase = 1; phase <= phases.num_phases; ++phase) {
    phases.arrived.fetch_add(1);
    phases.pool->barrier();
    if (phases.arrived.load() < phase * phases.pool->size()) phases.is_ordered = false;
    phases.pool->barrier();
  }
}

void test_barrier_orders_phases(int num_threads) {
  gm::ThreadPool pool(num_threads);
  Phases phases{&pool, 200};
  for (int run = 0; run < 20; ++run) {
    phases.arrived = 0;
    pool.run(run_phases, &phases);
    check(phases.arrived == phases.num_phases * num_threads, "every worker runs every phase", num_threads);
  }
  check(phases.is_ordered, "a barrier orders phases", num_threads);
}

struct Taking {
  gm::ThreadPool* pool;
  std::vector<std::atomic<int>> taken;
};

void take_all(void* data, int) {
  auto& taking = *static_cast<Taking*>(data);
  const auto count = static_cast<int64_t>(taking.taken.size());
  for (int round = 0; round < 3; ++round) {
    for (int64_t i; (i = taking.pool->take(2, 1)) < count;) taking.taken[static_cast<size_t>(i)].fetch_add(1);
    taking.pool->barrier();
  }
}

void test_units_are_taken_once_and_counters_restart(int num_threads) {
  gm::ThreadPool pool(num_threads);
  Taking taking{&pool, std::vector<std::atomic<int>>(1000)};
  pool.run(take_all, &taking);
  for (const auto& times : taking.taken) check(times == 3, "each unit is taken once in each round", times);
}

void test_shares_cover_everything_once() {
  for (int64_t count = 0; count < 200; ++count) {
    for (int workers = 1; workers <= 9; ++workers) {
      int64_t next = 0;
      for (int worker = 0; worker < workers; ++worker) {
        const gm::Range range = gm::share(count, worker, workers, 32);
        check(range.begin == next && (range.end == count || range.end % 32 == 0), "shares are in order", workers);
        next = range.end;
      }
      check(next == count, "shares cover everything", workers);
    }
  }
}

void test_blocks_are_committed_in_slabs_and_copied_over_all_layers() {
  const gm::KvShape shape{3, 2, 64};
  gm::KvArena arena(shape, 1000, 0);
  check(arena.num_committed_blocks() == 0, "a fresh arena has no memory", 0);
  check(arena.commit_now(1), "the first slab is committed", 0);
  check(arena.num_committed_blocks() == arena.blocks_per_slab(), "a slab is committed as a whole", 0);
  check(arena.commit_now(1000) && arena.num_committed_blocks() == 1000, "all of it is committed", 0);
  const int32_t source = 3;
  const int32_t target = 700;
  const auto page = [&](int layer, int64_t block) {
    const gm::KvView view = arena.layer(layer);
    const int64_t mask = (int64_t{1} << view.slab_shift) - 1;
    return view.pool + (block >> view.slab_shift) * view.slab_bytes + view.layer_offset + (block & mask) * view.page_bytes;
  };
  for (int layer = 0; layer < 3; ++layer) std::memset(page(layer, source), layer + 1, static_cast<size_t>(shape.page_bytes()));
  arena.copy_blocks(&source, &target, 1);
  for (int layer = 0; layer < 3; ++layer) {
    check(std::memcmp(page(layer, source), page(layer, target), static_cast<size_t>(shape.page_bytes())) == 0,
          "a copied page is equal", layer);
    check(page(layer, target)[shape.page_bytes()] == 0, "the page behind it is untouched", layer);
  }
}

void test_a_growing_arena_stops_at_the_reserve() {
  gm::KvArena arena({2, 2, 64}, 1000, int64_t{1} << 60);
  check(!arena.commit_now(1), "nothing is committed within the reserve", 0);
  check(arena.is_short_of_memory() && arena.num_committed_blocks() == 0, "shortage is said", 0);
}

}  // namespace

int main() {
  for (int num_threads : {1, 2, 3, 5, 8}) {
    test_barrier_orders_phases(num_threads);
    test_units_are_taken_once_and_counters_restart(num_threads);
  }
  test_shares_cover_everything_once();
  test_blocks_are_committed_in_slabs_and_copied_over_all_layers();
  test_a_growing_arena_stops_at_the_reserve();
  std::printf("runtime: %s\n", num_failures == 0 ? "ok" : "FAILED");
  return num_failures == 0 ? 0 : 1;
}
