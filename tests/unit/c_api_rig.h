// A cache of two layers and a plan through the C ABI.
#ifndef LONGDECODE_TESTS_UNIT_C_API_RIG_H_
#define LONGDECODE_TESTS_UNIT_C_API_RIG_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "longdecode/c_api.h"

namespace longdecode::test {

inline bool last_error_has(const char* text) {
  return std::string(ld_last_error()).find(text) != std::string::npos;
}

inline ld_device_info cpu() {
  ld_device_info device = ld_device_info_default();
  device.type = LD_DEVICE_CPU;
  return device;
}

// A cache of two layers and a plan, on small pages.
struct Handles {
  explicit Handles(const ld_kv_format& kv_format, int32_t method = LD_METHOD_DENSE)
      : format(kv_format), device(cpu()) {
    ld_cache_desc cache_desc = ld_cache_desc_default();
    cache_desc.format = &format;
    cache_desc.num_layers = 2;
    cache_desc.num_pages = 8;
    cache_desc.max_sequences = 3;
    cache_desc.max_kv_len = 256;
    EXPECT_EQ(ld_cache_create(&cache_desc, &device, &cache), LD_OK) << ld_last_error();
    ld_decode_desc desc = ld_decode_desc_default();
    desc.method = method;
    desc.format = &format;
    desc.q_dtype = LD_DTYPE_F32;
    desc.num_q_heads = 4;
    desc.max_kv_len = 256;
    desc.softmax_scale = 0.1f;
    EXPECT_EQ(ld_plan_create(&desc, &device, &plan), LD_OK) << ld_last_error();
    int64_t num_bytes = -1;
    EXPECT_EQ(ld_plan_workspace_bytes(plan, &num_bytes), LD_OK);
    workspace.resize(static_cast<size_t>(num_bytes) / sizeof(double) + 2);
    EXPECT_EQ(ld_plan_init(plan, workspace.data(), nullptr), LD_OK);
    EXPECT_EQ(ld_cache_add_sequence(cache, &sequence), LD_OK);
  }
  ~Handles() {
    ld_plan_destroy(plan);
    ld_cache_destroy(cache);
  }

  // Keys or values of `count` tokens that count up from `first`, one number per token.
  ld_tensor rows(std::vector<float>& data, int32_t first, int32_t count, int32_t dim) const {
    data.resize(static_cast<size_t>(count) * format.num_kv_heads * dim);
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = static_cast<float>(first + static_cast<int32_t>(i) / (format.num_kv_heads * dim));
    }
    const int64_t shape[] = {1, count, format.num_kv_heads, dim};
    return ld_tensor_contiguous(data.data(), LD_DTYPE_F32, 4, shape);
  }

  // Appends tokens to both layers and commits unless `open`.
  void append(int32_t target, int32_t first, int32_t count, bool open = false) {
    std::vector<float> k_data, v_data;
    const ld_tensor k = rows(k_data, first, count, format.key_dim);
    const ld_tensor v = rows(v_data, first, count, format.value_dim);
    ASSERT_EQ(ld_cache_reserve(cache, &target, &count, 1), LD_OK) << ld_last_error();
    for (int32_t l = 0; l < 2; ++l) {
      ASSERT_EQ(ld_cache_append(cache, l, &k, format.op == LD_OP_MLA ? nullptr : &v, nullptr),
                LD_OK)
          << ld_last_error();
    }
    if (!open) {
      ASSERT_EQ(ld_cache_commit(cache), LD_OK);
    }
  }

  // A decode run with q = 0 over the open step: o is the mean of the values.
  std::vector<float> run(ld_status_code expected = LD_OK) {
    std::vector<float> q(static_cast<size_t>(4 * format.key_dim), 0.0f);
    std::vector<float> o(static_cast<size_t>(4 * format.value_dim), -1.0f);
    const int64_t q_shape[] = {1, 1, 4, format.key_dim};
    const int64_t o_shape[] = {1, 1, 4, format.value_dim};
    const ld_tensor q_tensor = ld_tensor_contiguous(q.data(), LD_DTYPE_F32, 4, q_shape);
    const ld_tensor o_tensor = ld_tensor_contiguous(o.data(), LD_DTYPE_F32, 4, o_shape);
    ld_kv_layer layer = ld_kv_layer_default();
    ld_batch batch = ld_batch_default();
    EXPECT_EQ(ld_cache_layer(cache, 1, &layer), LD_OK);
    EXPECT_EQ(ld_cache_step(cache, &batch), LD_OK);
    batch.query_lens = nullptr;
    ld_decode_stats stats = ld_decode_stats_default();
    stats.tokens_attended = tokens_attended;
    ld_decode_args args = ld_decode_args_default();
    args.q = &q_tensor;
    args.o = &o_tensor;
    args.lse = lse;
    args.kv = &layer;
    args.batch = &batch;
    args.stats = &stats;
    EXPECT_EQ(ld_plan_run(plan, &args, nullptr), expected) << ld_last_error();
    return o;
  }

  ld_kv_format format;
  ld_device_info device;
  ld_cache* cache = nullptr;
  ld_plan* plan = nullptr;
  std::vector<double> workspace;
  int32_t sequence = -1;
  float lse[4] = {};
  int64_t tokens_attended[2] = {};
};

inline ld_kv_format plain() { return ld_kv_format_gqa(LD_KEYS_PLAIN, LD_DTYPE_F32, 2, 64, 16); }

}  // namespace longdecode::test

#endif  // LONGDECODE_TESTS_UNIT_C_API_RIG_H_
