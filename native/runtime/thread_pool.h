// The threads that run a step. The caller is worker 0. All workers walk the same plan and meet at barriers;
// they spin for a bounded time and then sleep, so a server without work uses no CPU, and more workers than
// cores still make progress.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace gm {

constexpr int num_counters = 8;

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Calls body(context, worker) once on every worker and returns when all have returned. One run at a time:
  // a second caller waits. Every worker computes under the same float environment (round to nearest, no flush
  // to zero). `body` must not throw.
  void run(void (*body)(void* context, int worker), void* context);

  // Inside a run: waits until every worker has come here. Also sets all counters to 0.
  void barrier();

  // Inside a run: the next `count` units of counter `slot`; the return value is the first of them.
  int64_t take(int slot, int64_t count) { return counters_[slot].value.fetch_add(count, std::memory_order_relaxed); }

 private:
  struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
  };
  void work(int worker);

  const int size_;
  std::mutex run_mutex_;
  void (*body_)(void*, int) = nullptr;
  void* context_ = nullptr;
  bool is_stopping_ = false;
  alignas(64) std::atomic<int> epoch_{0};  // counts runs; workers sleep on it
  std::atomic<int> epoch_sleepers_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};  // counts barriers
  std::atomic<int> generation_sleepers_{0};
  Counter counters_[num_counters];
  std::vector<std::thread> threads_;
};

}  // namespace gm
