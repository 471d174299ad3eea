// Rates of attention, beside what the machine can do in the same minute. usage: bench_attention [tier [threads]]
// Pages are in random order and cycled through 200 MB, so that the last cache does not help.
#include <algorithm>
#include <cstring>
#include <string>

#include "../runtime/attention_plan.h"
#include "../runtime/memory.h"
#include "../runtime/thread_pool.h"
#include "check.h"
#include "roofs.h"

using namespace gm;
using namespace gm::test;

namespace {

struct Case {
  int32_t num_heads, num_kv_heads, head_dim;
  int32_t num_sequences, rows, context_len;
};

// A step's arrays for one case. Its layers differ in the blocks that they read, so that each finds its pages in memory.
struct Layers {
  Layers(const Case& c, uint8_t* pool, int threads) : c(c) {
    const int64_t page_bytes = int64_t{c.num_kv_heads} * c.head_dim * page_tokens * 4;
    const auto num_blocks = static_cast<int32_t>(pool_bytes / page_bytes);
    kv = {pool, page_bytes * num_blocks, 0, page_bytes, 30, c.num_kv_heads, c.head_dim};
    stride = (c.context_len + page_tokens - 1) / page_tokens;
    num_layers = std::clamp<int64_t>(num_blocks / (stride * c.num_sequences), 1, 64);
    Random random(1);
    blocks.resize(num_layers * stride * c.num_sequences);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
    for (size_t i = blocks.size() - 1; i > 0; --i) std::swap(blocks[i], blocks[random.next() % (i + 1)]);
    for (int32_t s = 0; s < c.num_sequences; ++s) {
      query_start.push_back((s + 1) * c.rows);
      context_len.push_back(c.context_len);
    }
    q.assign(int64_t{c.num_sequences} * c.rows * c.num_heads * c.head_dim, 0.25f);
    out.resize(q.size());
    plan_attention({query_start.data(), context_len.data(), c.num_sequences, c.num_heads, c.num_kv_heads, c.head_dim, 0, threads},
                   plan);
    partials.resize(plan.partial_floats + 1);
  }
  AttentionArgs args(int64_t layer) {
    return {q.data(),
            c.num_heads * c.head_dim,
            out.data(),
            c.num_heads * c.head_dim,
            query_start.data(),
            context_len.data(),
            blocks.data() + layer * stride * c.num_sequences,
            stride,
            kv,
            c.num_heads,
            0.125f,
            0,
            0.0f,
            partials.data()};
  }
  Case c;
  KvView kv;
  int64_t stride, num_layers;
  std::vector<int32_t> query_start{0}, context_len, blocks;
  std::vector<float> q, out, partials;
  AttentionPlan plan;
};

struct Run {
  const Kernels* kernels;
  ThreadPool* pool;
  Layers* layers;
};

void run_layers(void* data, int worker) {
  const Run& run = *static_cast<Run*>(data);
  const AttentionPlan& plan = run.layers->plan;
  const auto num_items = static_cast<int64_t>(plan.items.size());
  for (int64_t layer = 0; layer < run.layers->num_layers; ++layer) {
    run.pool->barrier();
    const AttentionArgs args = run.layers->args(layer);
    for (int64_t i = 0; (i = run.pool->take(0, 1)) < num_items;) run.kernels->attend(args, plan.items[i]);
    if (plan.num_merges == 0) continue;
    run.pool->barrier();
    const int64_t begin = plan.num_merges * worker / run.pool->size(), end = plan.num_merges * (worker + 1) / run.pool->size();
    run.kernels->merge_attention(args, plan.items.data(), num_items, begin, end);
  }
}

// The best of several rounds, each with the roof sampled beside it.
void measure(const Kernels& kernels, const Case& c, uint8_t* memory, ThreadPool& pool) {
  Layers layers(c, memory, pool.size());
  Run run{&kernels, &pool, &layers};
  double best = 1e9, bandwidth = 0, arithmetic = 0;
  for (int repetition = 0; repetition < 15; ++repetition) {
    bandwidth = std::max(bandwidth, memory_rate(memory, pool.size()));
    arithmetic = std::max(arithmetic, fma_rate(pool.size()));
    const double started = now();
    pool.run(run_layers, &run);
    best = std::min(best, (now() - started) / static_cast<double>(layers.num_layers));
  }
  const double bytes = 4.0 * c.num_sequences * c.context_len * c.num_kv_heads * c.head_dim / best * 1e-9;
  const double seen = c.rows * (c.context_len - (c.rows - 1) * 0.5);
  const double flops = 4.0 * c.num_sequences * seen * c.num_heads * c.head_dim / best * 1e-9;
  std::printf(
      "%-8s heads %2d/%d of %3d, sequences %2d, rows %3d, context %5d: %9.1f us a layer, %5.1f GB/s (%3.0f %%), %6.1f GFLOP/s "
      "(%3.0f %%)\n",
      kernels.tier, c.num_heads, c.num_kv_heads, c.head_dim, c.num_sequences, c.rows, c.context_len, best * 1e6, bytes,
      100 * bytes / bandwidth, flops, 100 * flops / arithmetic);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  Mapping memory(pool_bytes);
  memory.advise_huge(0, pool_bytes);
  std::memset(memory.data(), 0x21, pool_bytes);
  ThreadPool pool(threads);
  for (const Kernels* kernels : tiers()) {
    if (argc > 1 && std::strcmp(argv[1], kernels->tier) != 0) continue;
    for (const Case& c :
         {Case{9, 3, 64, 1, 1, 128}, Case{9, 3, 64, 1, 1, 512}, Case{9, 3, 64, 1, 1, 2048}, Case{9, 3, 64, 8, 1, 256},
          Case{9, 3, 64, 64, 1, 256}, Case{32, 8, 64, 1, 1, 1024}, Case{32, 8, 64, 1, 1, 8192}, Case{32, 8, 64, 16, 1, 512},
          Case{32, 8, 128, 8, 1, 1024}, Case{9, 3, 64, 1, 512, 512}, Case{9, 3, 64, 1, 128, 2048}, Case{9, 3, 64, 8, 64, 64},
          Case{32, 8, 64, 1, 512, 512}, Case{32, 8, 128, 1, 512, 512}}) {
      measure(*kernels, c, memory.data(), pool);
    }
  }
}
