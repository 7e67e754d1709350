// A KvCache beside a trivial model: one recognisable number per token.
#ifndef LONGDECODE_TESTS_UNIT_CACHE_RIG_H_
#define LONGDECODE_TESTS_UNIT_CACHE_RIG_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "base/float_convert.h"
#include "longdecode/kv_cache.h"
#include "ref/kv_source.h"

namespace longdecode {

// Channel c of head h of a token in a layer: a bf16 number below 8 in magnitude.
inline float token_value(uint32_t token, int32_t layer, bool is_key, int32_t head, int32_t c) {
  uint32_t x = token * 2654435761u + static_cast<uint32_t>(layer) * 40503u + (is_key ? 1u : 0u);
  x = (x ^ static_cast<uint32_t>(head * 1000 + c)) * 2246822519u;
  x = (x ^ (x >> 15)) * 3266489917u;
  return static_cast<float>(static_cast<int32_t>(x >> 24) - 128) / 16.0f;
}

class CacheRig {
 public:
  explicit CacheRig(const KvCacheDesc& desc)
      : cache(KvCache::create(desc, device()).value()), desc_(desc) {
    for (int32_t l = 0; l < desc.num_layers; ++l) poison(cache.layer(l));
  }

  static DeviceInfo device() {
    DeviceInfo info;
    info.type = DeviceType::kCpu;
    info.num_threads = 1;
    return info;
  }

  // Keys or values [batch, max_new, num_kv_heads, dim] of tokens[b], NaN where there is none.
  TensorView tensor(const std::vector<std::vector<uint32_t>>& tokens, int32_t layer, bool is_key) {
    const int32_t dim = is_key ? desc_.format.key_dim : desc_.format.value_dim;
    size_t max_new = 1;
    for (const auto& list : tokens) max_new = std::max(max_new, list.size());
    std::vector<float>& data = is_key ? k_ : v_;
    const int32_t heads = desc_.format.num_kv_heads;
    data.assign(tokens.size() * max_new * heads * dim, std::nanf(""));
    for (size_t b = 0; b < tokens.size(); ++b) {
      for (size_t t = 0; t < tokens[b].size(); ++t) {
        for (int32_t i = 0; i < heads * dim; ++i) {
          data[(b * max_new + t) * heads * dim + i] =
              token_value(tokens[b][t], layer, is_key, i / dim, i % dim);
        }
      }
    }
    return TensorView::contiguous(
        data.data(), DType::kF32,
        {static_cast<int64_t>(tokens.size()), static_cast<int64_t>(max_new), heads, dim});
  }

  Status append_layers(const std::vector<std::vector<uint32_t>>& tokens) {
    for (int32_t l = 0; l < desc_.num_layers; ++l) {
      Status status = cache.append(l, tensor(tokens, l, true), tensor(tokens, l, false), nullptr);
      if (!status.ok()) return status;
    }
    return {};
  }

  // One whole step; the model follows.
  Status step(const std::vector<SequenceId>& sequences,
              const std::vector<std::vector<uint32_t>>& tokens) {
    std::vector<int32_t> counts;
    for (const auto& list : tokens) counts.push_back(static_cast<int32_t>(list.size()));
    if (Status status = cache.reserve(sequences, counts); !status.ok()) return status;
    if (Status status = append_layers(tokens); !status.ok()) return status;
    for (size_t b = 0; b < sequences.size(); ++b) {
      auto& list = model[sequences[b]];
      list.insert(list.end(), tokens[b].begin(), tokens[b].end());
    }
    return cache.commit();
  }
  Status step(SequenceId sequence, uint32_t first_token, uint32_t count) {
    std::vector<uint32_t> tokens(count);
    for (uint32_t t = 0; t < count; ++t) tokens[t] = first_token + t;
    return step({sequence}, {tokens});
  }

  SequenceId add() {
    const SequenceId sequence = cache.add_sequence().value();
    model[sequence] = {};
    return sequence;
  }
  SequenceId fork(SequenceId parent) {
    const SequenceId child = cache.fork(parent).value();
    model[child] = model[parent];
    return child;
  }
  Status truncate(SequenceId sequence, int32_t count) {
    Status status = cache.truncate(sequence, count);
    if (status.ok()) model[sequence].resize(model[sequence].size() - count);
    return status;
  }

  // Reads every token of every layer of every sequence of the model back.
  void expect_equal_to_model() {
    std::vector<SequenceId> sequences;
    for (const auto& entry : model) sequences.push_back(entry.first);
    ASSERT_TRUE(cache.reserve(sequences, std::vector<int32_t>(sequences.size(), 0)).ok());
    for (size_t b = 0; b < sequences.size(); ++b) {
      const auto& tokens = model[sequences[b]];
      ASSERT_EQ(cache.kv_len(sequences[b]).value(), static_cast<int64_t>(tokens.size()));
      for (int32_t l = 0; l < desc_.num_layers; ++l) {
        const ref::PagedSource source(cache.layer(l), cache.step(), static_cast<int32_t>(b));
        ASSERT_EQ(source.kv_len(), static_cast<int64_t>(tokens.size()));
        for (size_t t = 0; t < tokens.size(); ++t) {
          ASSERT_NO_FATAL_FAILURE(expect_token(source, static_cast<int64_t>(t), tokens[t], l))
              << "sequence " << sequences[b] << " layer " << l << " token " << t;
        }
      }
    }
  }

  // The stored keys and values of a sequence, bit for bit (as doubles).
  std::vector<double> contents(SequenceId sequence) {
    std::vector<double> all;
    const std::vector<SequenceId> sequences = {sequence};
    const std::vector<int32_t> counts = {0};
    EXPECT_TRUE(cache.reserve(sequences, counts).ok());
    std::vector<double> row(desc_.format.key_dim);
    for (int32_t l = 0; l < desc_.num_layers; ++l) {
      const ref::PagedSource source(cache.layer(l), cache.step(), 0);
      for (int64_t t = 0; t < source.kv_len(); ++t) {
        for (int32_t h = 0; h < source.num_kv_heads(); ++h) {
          source.key(h, t, row.data());
          all.insert(all.end(), row.begin(), row.end());
          source.value(h, t, row.data());
          all.insert(all.end(), row.begin(), row.begin() + source.value_dim());
        }
      }
    }
    return all;
  }

  // One query token over the stored sequence, layer 0: FFD on two planes, else dense.
  std::vector<float> decode(SequenceId sequence) {
    const KvFormat& format = desc_.format;
    DecodeDesc desc;
    desc.method = format.keys == KeyEncoding::kTwoPlane ? Method::kFfd : Method::kDense;
    desc.format = format;
    desc.q_dtype = DType::kF32;
    desc.num_q_heads = 4;
    desc.max_kv_len = desc_.max_kv_len;
    desc.softmax_scale = 0.05f;
    desc.ffd = {.delta = 1.0f, .sink_tokens = 16, .recent_tokens = 16};
    auto plan = DecodePlan::create(desc, device());
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    std::vector<double> workspace(plan->workspace_bytes() / sizeof(double) + 2);
    EXPECT_TRUE(plan->init(workspace.data(), nullptr).ok());
    const std::vector<SequenceId> sequences = {sequence};
    const std::vector<int32_t> counts = {0};
    EXPECT_TRUE(cache.reserve(sequences, counts).ok());
    std::vector<float> q(4 * format.key_dim);
    for (size_t i = 0; i < q.size(); ++i) q[i] = token_value(7, 0, true, 0, static_cast<int>(i));
    std::vector<float> o(4 * format.value_dim);
    DecodeArgs args;
    args.q = TensorView::contiguous(q.data(), DType::kF32, {1, 1, 4, format.key_dim});
    args.o = TensorView::contiguous(o.data(), DType::kF32, {1, 1, 4, format.value_dim});
    args.kv = cache.layer(0);
    args.batch = cache.step();
    args.batch.query_lens = nullptr;
    Status status = plan->run(args, nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
    return o;
  }

  KvCache cache;
  std::map<SequenceId, std::vector<uint32_t>> model;

 private:
  static void poison_tensor(const TensorView& view) {
    if (view.data == nullptr) return;
    std::memset(view.data, 0xff, view.shape[0] * view.stride[0] * dtype_bytes(view.dtype));
  }
  static void poison(const KvLayerView& view) {
    poison_tensor(view.k);
    poison_tensor(view.v);
    poison_tensor(view.recent_k);
    if (view.chunks == nullptr) return;
    std::memset(view.chunks, 0xff, view.num_pages * view.chunk_page_stride_bytes);
    std::memset(view.residuals, 0xff, view.num_pages * view.residual_page_stride_bytes);
  }

  void expect_token(const ref::PagedSource& source, int64_t t, uint32_t token, int32_t layer) {
    const bool mla = desc_.format.op == Op::kMla;
    std::vector<double> key(source.key_dim());
    std::vector<double> value(source.value_dim());
    std::vector<double> steps(source.key_dim(), 0.0);
    for (int32_t h = 0; h < source.num_kv_heads(); ++h) {
      source.key(h, t, key.data());
      source.value(h, t, value.data());
      if (t < source.num_quantized_tokens()) source.steps(h, t, steps.data());
      for (int32_t c = 0; c < source.key_dim(); ++c) {
        ASSERT_NEAR(key[c], token_value(token, layer, true, h, c), steps[c] / 512 * (1 + 1e-9));
      }
      for (int32_t c = 0; c < source.value_dim(); ++c) {
        ASSERT_EQ(value[c], token_value(token, layer, mla, h, c));
      }
    }
  }

  KvCacheDesc desc_;
  std::vector<float> k_;
  std::vector<float> v_;
};

inline KvCacheDesc cache_desc(const KvFormat& format, int64_t num_pages, int32_t max_sequences,
                              int64_t max_kv_len) {
  KvCacheDesc desc;
  desc.format = format;
  desc.num_layers = 2;
  desc.num_pages = num_pages;
  desc.max_sequences = max_sequences;
  desc.max_kv_len = max_kv_len;
  return desc;
}

// The formats that the cache tests run over.
inline std::vector<KvFormat> cache_formats() {
  return {KvFormat::gqa(KeyEncoding::kPlain, DType::kBF16, 2, 64, 16),
          KvFormat::gqa(KeyEncoding::kPlain, DType::kF32, 1, 80, 1),
          KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF16, 2, 80, 64),
          KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kBF16, 1, 64, 128),
          KvFormat::mla(DType::kBF16, 64)};
}

}  // namespace longdecode

#endif  // LONGDECODE_TESTS_UNIT_CACHE_RIG_H_
