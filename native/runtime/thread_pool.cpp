#include "thread_pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace gm {
namespace {

// A worker that waits pauses for about 2 us (barriers are close together and the shares even), then lets others have
// the core for a while, then sleeps. Longer pauses were tried: with more workers than cores, or a busy neighbour, each
// burns a time slice that the one waited for needs (3 workers on 2 cores: 5 ms a step with 10 us, 25 ms with 100 us,
// 218 ms with 500 us). A step follows the last one after the host's own work, hence the longer wait between them.
constexpr int num_pauses = 96;
constexpr auto barrier_wait = std::chrono::microseconds(50);
constexpr auto epoch_wait = std::chrono::microseconds(100);

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wait(std::atomic<int>& word, int expected) {
  syscall(SYS_futex, reinterpret_cast<int*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<int>& word) {
  syscall(SYS_futex, reinterpret_cast<int*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// `sleepers` is raised before the kernel compares the word, and read by the waker after it changed the word, both
// sequentially consistent: either the waker sees the sleeper, or the sleeper sees the new word.
void wait_for_change(std::atomic<int>& word, int old, std::atomic<int>& sleepers, std::chrono::microseconds wait) {
  for (int i = 0; i < num_pauses; ++i) {
    if (word.load(std::memory_order_acquire) != old) return;
    pause_cpu();
  }
  const auto end = std::chrono::steady_clock::now() + wait;
  while (std::chrono::steady_clock::now() < end) {
    if (word.load(std::memory_order_acquire) != old) return;
    sched_yield();
  }
  sleepers.fetch_add(1);
  while (word.load() == old) futex_wait(word, old);
  sleepers.fetch_sub(1);
}

void change(std::atomic<int>& word, std::atomic<int>& sleepers) {
  word.fetch_add(1);
  if (sleepers.load() != 0) futex_wake_all(word);
}

// The float control word decides bits (flushing of subnormals, rounding), and the caller's is whatever its host
// process has made of it.
class FloatEnvironment {
 public:
#if defined(__x86_64__)
  FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~FloatEnvironment() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FloatEnvironment() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
  }
  ~FloatEnvironment() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

}  // namespace

ThreadPool::ThreadPool(int num_threads) : size_(num_threads) {
  for (int worker = 1; worker < size_; ++worker) threads_.emplace_back([this, worker] { work(worker); });
}

ThreadPool::~ThreadPool() {
  is_stopping_ = true;
  change(epoch_, epoch_sleepers_);
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(void (*body)(void*, int), void* context) {
  const std::lock_guard<std::mutex> lock(run_mutex_);
  const FloatEnvironment environment;
  body_ = body;
  context_ = context;
  for (Counter& counter : counters_) counter.value.store(0, std::memory_order_relaxed);
  if (size_ > 1) change(epoch_, epoch_sleepers_);
  body(context, 0);
  barrier();
}

void ThreadPool::work(int worker) {
  const FloatEnvironment environment;
  for (int epoch = 0;; ++epoch) {
    wait_for_change(epoch_, epoch, epoch_sleepers_, epoch_wait);
    if (is_stopping_) return;
    body_(context_, worker);
    barrier();
  }
}

void ThreadPool::barrier() {
  if (size_ == 1) {
    for (Counter& counter : counters_) counter.value.store(0, std::memory_order_relaxed);
    return;
  }
  const int generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) {
    wait_for_change(generation_, generation, generation_sleepers_, barrier_wait);
    return;
  }
  arrived_.store(0, std::memory_order_relaxed);
  for (Counter& counter : counters_) {
    if (counter.value.load(std::memory_order_relaxed) != 0) counter.value.store(0, std::memory_order_relaxed);
  }
  change(generation_, generation_sleepers_);
}

}  // namespace gm
