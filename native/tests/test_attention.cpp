// Rope, KV pages and attention of every tier against a double reference; bit-equality over chunks, plans and company.
#include <cstring>
#include <string>

#include "../runtime/attention_plan.h"
#include "check.h"

using namespace gm;
using namespace gm::test;

namespace {

struct Model {
  int num_heads, num_kv_heads, head_dim, window;
  float softcap;
  int width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

// One sequence's inputs: q, k, v of every position.
struct Inputs {
  Inputs(const Model& m, int length, uint64_t seed) : length(length), qkv(static_cast<size_t>(length) * m.width()) {
    Random random(seed);
    for (float& value : qkv) value = random.uniform();
  }
  int length;
  std::vector<float> qkv;  // [length, width]
};

constexpr int num_blocks = 256;
constexpr int slab_shift = 3;

// A pool whose unwritten memory is NaN.
struct Cache {
  explicit Cache(const Model& m)
      : page_bytes(int64_t{m.num_kv_heads} * m.head_dim * page_tokens * 4), pool(num_blocks * page_bytes) {
    std::memset(pool.data, 0xff, pool.size);
  }
  KvView view(const Model& m) const {
    return {pool.data, page_bytes << slab_shift, 0, page_bytes, slab_shift, m.num_kv_heads, m.head_dim};
  }
  int64_t page_bytes;
  Aligned<uint8_t> pool;
};

struct Piece {
  int sequence, begin, end;  // positions
};

// Runs one step over pieces of sequences; appends each row's output.
struct Runner {
  Runner(const Kernels& kernels, const Model& m, const std::vector<Inputs>& sequences, uint64_t seed)
      : kernels(kernels), m(m), sequences(sequences), cache(m) {
    Random random(seed);
    std::vector<int> order(num_blocks);
    for (int i = 0; i < num_blocks; ++i) order[i] = i;
    for (int i = num_blocks - 1; i > 0; --i) std::swap(order[i], order[random.next() % (i + 1)]);
    stride = num_blocks / static_cast<int>(sequences.size());
    tables.assign(order.begin(), order.end());
    outputs.resize(sequences.size());
    for (size_t s = 0; s < sequences.size(); ++s) outputs[s].resize(sequences[s].length * m.num_heads * m.head_dim);
  }
  void step(const std::vector<Piece>& pieces, int num_threads) {
    std::vector<int32_t> query_start{0}, context_len, positions, slots, blocks;
    std::vector<float> qkv;
    for (const Piece& piece : pieces) {
      const float* from = sequences[piece.sequence].qkv.data();
      qkv.insert(qkv.end(), from + piece.begin * m.width(), from + piece.end * m.width());
      query_start.push_back(query_start.back() + piece.end - piece.begin);
      context_len.push_back(piece.end);
      const int32_t* table = tables.data() + piece.sequence * stride;
      blocks.insert(blocks.end(), table, table + stride);
      for (int p = piece.begin; p < piece.end; ++p) {
        positions.push_back(p);
        slots.push_back(table[p / page_tokens] * page_tokens + p % page_tokens);
      }
    }
    const int rows = query_start.back(), half = m.head_dim / 2, q_width = m.num_heads * m.head_dim,
              kv_width = m.num_kv_heads * m.head_dim;
    std::vector<double> frequencies(half);
    for (int i = 0; i < half; ++i) frequencies[i] = std::pow(10000.0, -2.0 * i / m.head_dim);
    std::vector<float> cos(rows * half), sin(rows * half), out(rows * q_width);
    kernels.rope_table({positions.data(), frequencies.data(), 1.0, half, cos.data(), sin.data(), 0, rows});
    RopeStoreArgs rope{qkv.data(),
                       qkv.data() + q_width,
                       qkv.data() + q_width + kv_width,
                       m.width(),
                       m.width(),
                       m.width(),
                       {cos.data(), sin.data(), half},
                       slots.data(),
                       cache.view(m),
                       m.num_heads,
                       0,
                       int64_t{rows} * (m.num_heads + m.num_kv_heads)};
    kernels.rope_store(rope);
    AttentionPlan plan;
    plan_attention({query_start.data(), context_len.data(), static_cast<int64_t>(pieces.size()), m.num_heads, m.num_kv_heads,
                    m.head_dim, m.window, num_threads},
                   plan);
    std::vector<float> partials(plan.partial_floats + 1);
    AttentionArgs args{qkv.data(),
                       m.width(),
                       out.data(),
                       q_width,
                       query_start.data(),
                       context_len.data(),
                       blocks.data(),
                       stride,
                       cache.view(m),
                       m.num_heads,
                       1.0f / std::sqrt(static_cast<float>(m.head_dim)),
                       m.window,
                       m.softcap,
                       partials.data()};
    for (auto item = plan.items.rbegin(); item != plan.items.rend(); ++item) kernels.attend(args, *item);
    for (int64_t merge = plan.num_merges - 1; merge >= 0; --merge)
      kernels.merge_attention(args, plan.items.data(), plan.items.size(), merge, merge + 1);
    for (size_t i = 0; i < pieces.size(); ++i) {
      std::memcpy(outputs[pieces[i].sequence].data() + pieces[i].begin * q_width, out.data() + query_start[i] * q_width,
                  (pieces[i].end - pieces[i].begin) * q_width * sizeof(float));
    }
  }
  const Kernels& kernels;
  Model m;
  const std::vector<Inputs>& sequences;
  Cache cache;
  int stride;
  std::vector<int32_t> tables;
  std::vector<std::vector<float>> outputs;  // per sequence [length, heads * head_dim]
};

double rounded(double value) {
  const auto narrow = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &narrow, 4);
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
  float kept;
  std::memcpy(&kept, &bits, 4);
  return kept;
}

std::vector<double> rotated(const Model& m, const float* x, int position) {
  std::vector<double> out(m.head_dim);
  const int half = m.head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * i / m.head_dim);
    out[i] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
    out[i + half] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return out;
}

// Largest error of some rows against softmax attention in double over the rounded keys and values.
double error_of(const Model& m, const Inputs& inputs, const std::vector<float>& outputs, int every) {
  const int q_width = m.num_heads * m.head_dim, kv_width = m.num_kv_heads * m.head_dim;
  std::vector<std::vector<double>> keys(inputs.length * m.num_kv_heads);
  for (int p = 0; p < inputs.length; ++p) {
    for (int h = 0; h < m.num_kv_heads; ++h) {
      keys[p * m.num_kv_heads + h] = rotated(m, inputs.qkv.data() + p * m.width() + q_width + h * m.head_dim, p);
      for (double& value : keys[p * m.num_kv_heads + h]) value = rounded(value);
    }
  }
  double worst = 0;
  for (int p = inputs.length - 1; p >= 0; p -= every) {
    for (int h = 0; h < m.num_heads; ++h) {
      const int kv = h / (m.num_heads / m.num_kv_heads);
      const std::vector<double> q = rotated(m, inputs.qkv.data() + p * m.width() + h * m.head_dim, p);
      const int begin = m.window > 0 && p + 1 > m.window ? p + 1 - m.window : 0;
      std::vector<double> weights, result(m.head_dim);
      double sum = 0;
      for (int t = begin; t <= p; ++t) {
        double score = 0;
        for (int d = 0; d < m.head_dim; ++d) score += q[d] * keys[t * m.num_kv_heads + kv][d];
        score /= std::sqrt(static_cast<double>(m.head_dim));
        if (m.softcap > 0) score = m.softcap * std::tanh(score / m.softcap);
        weights.push_back(std::exp(score));
        sum += weights.back();
      }
      for (int t = begin; t <= p; ++t) {
        const float* v = inputs.qkv.data() + t * m.width() + q_width + kv_width + kv * m.head_dim;
        for (int d = 0; d < m.head_dim; ++d) result[d] += weights[t - begin] / sum * rounded(v[d]);
      }
      for (int d = 0; d < m.head_dim; ++d)
        worst = std::fmax(worst, std::fabs(result[d] - outputs[p * q_width + h * m.head_dim + d]));
    }
  }
  return worst;
}

void run_chunks(Runner& runner, int sequence, int chunk, int num_threads) {
  const int length = runner.sequences[sequence].length;
  for (int p = 0; p < length; p += chunk) runner.step({{sequence, p, std::min(p + chunk, length)}}, num_threads);
}

void compare(const Kernels& kernels, const Model& m, int length, Digest& digest) {
  const std::string name = std::string(kernels.tier) + " heads " + std::to_string(m.num_heads) + "/" +
                           std::to_string(m.num_kv_heads) + " width " + std::to_string(m.head_dim) + " window " +
                           std::to_string(m.window) + " length " + std::to_string(length);
  const std::vector<Inputs> sequences{{m, length, 1}, {m, length / 2 + 1, 2}, {m, 1, 3}};
  Runner whole(kernels, m, sequences, 1);
  for (int s = 0; s < 3; ++s) run_chunks(whole, s, length, 1);
  const double error = error_of(m, sequences[0], whole.outputs[0], 37);
  if (!(error < 5e-6)) std::printf("%s: error %g\n", name.c_str(), error);
  check(error < 5e-6, name.c_str());
  if (kernels.tier == kernels_portable()->tier) digest.add(whole.outputs[0].data(), whole.outputs[0].size() * 4);
  for (const int chunk : {1, 16, 33, 64}) {
    for (const int threads : {1, 2, 3}) {
      if (chunk == 1 && length > 300 && threads != 2) continue;
      Runner other(kernels, m, sequences, 7 + chunk);
      for (int s = 0; s < 3; ++s) run_chunks(other, s, chunk, threads);
      check(other.outputs == whole.outputs,
            (name + " chunk " + std::to_string(chunk) + " threads " + std::to_string(threads)).c_str());
    }
  }
  Runner together(kernels, m, sequences, 9);
  const int first = length / 3;
  if (first > 0) together.step({{0, 0, first}, {2, 0, 1}}, 2);
  else together.step({{2, 0, 1}}, 2);
  together.step({{0, first, length - 1}, {1, 0, length / 2}}, 2);
  together.step({{0, length - 1, length}, {1, length / 2, length / 2 + 1}}, 2);
  check(together.outputs == whole.outputs, (name + " together").c_str());
}

}  // namespace

int main() {
  Digest digest;
  for (const Kernels* kernels : tiers()) {
    for (const Model& m : {Model{9, 3, 64, 0, 0.0f}, Model{4, 1, 16, 0, 0.0f}, Model{8, 2, 80, 0, 0.0f},
                           Model{4, 4, 96, 40, 0.0f}, Model{8, 1, 128, 0, 20.0f}, Model{4, 1, 256, 100, 0.0f}}) {
      for (const int length : {2, 31, 64, 65, 200}) {
        if (!is_brief() || length == 65) compare(*kernels, m, length, digest);
      }
    }
    if (!is_brief()) compare(*kernels, {9, 3, 64, 0, 0.0f}, 1500, digest);
  }
  return finish("attention", digest);
}
