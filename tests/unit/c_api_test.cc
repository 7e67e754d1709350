// The C ABI: sized structs, refusals, and that every function reaches its C++ twin.
#include "longdecode/c_api.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "capi/convert.h"
#include "capi/status.h"
#include "longdecode/longdecode.h"
#include "tests/unit/c_api_rig.h"

namespace longdecode {
namespace {

using namespace test;

TEST(CApi, DefaultsAreThoseOfCpp) {
  const KvFormat format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF16, 4, 80, 128);
  const ld_kv_format c_format = ld_kv_format_gqa(LD_KEYS_TWO_PLANE, LD_DTYPE_F16, 4, 80, 128);
  ld_decode_desc c_desc = ld_decode_desc_default();
  c_desc.format = &c_format;
  const DecodeDesc desc;
  const DecodeDesc converted = capi::to_decode_desc(&c_desc).value();
  EXPECT_EQ(converted.method, desc.method);
  EXPECT_EQ(converted.q_dtype, desc.q_dtype);
  EXPECT_EQ(converted.num_q_heads, desc.num_q_heads);
  EXPECT_EQ(converted.max_batch, desc.max_batch);
  EXPECT_EQ(converted.max_query_len, desc.max_query_len);
  EXPECT_EQ(converted.max_kv_len, desc.max_kv_len);
  EXPECT_EQ(converted.softmax_scale, desc.softmax_scale);
  EXPECT_EQ(converted.soft_cap, desc.soft_cap);
  EXPECT_EQ(converted.sliding_window, desc.sliding_window);
  EXPECT_EQ(converted.learned_sinks, desc.learned_sinks);
  EXPECT_EQ(converted.causal, desc.causal);
  EXPECT_EQ(converted.batch_invariant, desc.batch_invariant);
  EXPECT_EQ(converted.ffd.delta, desc.ffd.delta);
  EXPECT_EQ(converted.ffd.margin_sigmas, desc.ffd.margin_sigmas);
  EXPECT_EQ(converted.ffd.certified, desc.ffd.certified);
  EXPECT_EQ(converted.ffd.sink_tokens, desc.ffd.sink_tokens);
  EXPECT_EQ(converted.ffd.recent_tokens, desc.ffd.recent_tokens);
  EXPECT_EQ(converted.format.key_dim, format.key_dim);
  EXPECT_EQ(converted.format.value_dim, format.value_dim);
  EXPECT_EQ(converted.format.keys, format.keys);
  EXPECT_EQ(converted.format.page_size, format.page_size);

  ld_kv_format_sizes sizes = ld_kv_format_sizes_default();
  ASSERT_EQ(ld_kv_format_get_sizes(&c_format, &sizes), LD_OK);
  EXPECT_EQ(sizes.padded_dim, 96);
  EXPECT_EQ(sizes.recent_ring_tokens, 144);
  EXPECT_EQ(sizes.chunk_bytes, format.chunk_bytes());
  EXPECT_EQ(sizes.zero_offset_bytes, format.zero_offset_bytes());
  EXPECT_EQ(sizes.bytes_per_token, format.bytes_per_token());
  int64_t num_pages = 0;
  ASSERT_EQ(ld_kv_format_num_quantized_pages(&c_format, 136, &num_pages), LD_OK);
  EXPECT_EQ(num_pages, 1);
  EXPECT_EQ(ld_kv_format_num_quantized_pages(&c_format, -1, &num_pages), LD_INVALID_ARGUMENT);
  EXPECT_STREQ(ld_version(), LONGDECODE_VERSION_STRING);
}

TEST(CApi, AnOlderCallersShorterStructGetsTheDefaults) {
  const ld_kv_format format = plain();
  ld_decode_desc desc = ld_decode_desc_default();
  desc.format = &format;
  desc.num_q_heads = 8;
  desc.soft_cap = std::nanf("");  // beyond what the older caller knows: not read
  desc.causal = 77;
  desc.struct_size = offsetof(ld_decode_desc, max_batch);
  const DecodeDesc converted = capi::to_decode_desc(&desc).value();
  EXPECT_EQ(converted.num_q_heads, 8);
  EXPECT_EQ(converted.soft_cap, 0.0f);
  EXPECT_TRUE(converted.causal);
}

TEST(CApi, ANewerCallersLongerStructIsAcceptedWhileItsTailIsZero) {
  struct {
    ld_kv_format format;
    int64_t unknown;
  } longer = {plain(), 0};
  longer.format.struct_size = sizeof longer;
  EXPECT_EQ(ld_kv_format_validate(&longer.format), LD_OK) << ld_last_error();
  longer.unknown = 1;
  EXPECT_EQ(ld_kv_format_validate(&longer.format), LD_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("format.struct_size is 48")) << ld_last_error();
  longer.format.struct_size = sizeof longer.format;
  longer.format.reserved = 1;
  EXPECT_EQ(ld_kv_format_validate(&longer.format), LD_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("format.reserved is 1; allowed: 0")) << ld_last_error();
  longer.format.struct_size = 0;
  EXPECT_EQ(ld_kv_format_validate(&longer.format), LD_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("struct_size is 0")) << ld_last_error();
}

TEST(CApi, OutputsRespectTheCallersSize) {
  struct {
    ld_device_info info;
    int64_t unknown;
  } longer = {ld_device_info_default(), -1};
  longer.info.struct_size = sizeof longer;
  ASSERT_EQ(ld_detect_device(LD_DEVICE_CPU, 0, &longer.info), LD_OK) << ld_last_error();
  EXPECT_EQ(longer.unknown, 0) << "a field that only the caller knows";
  EXPECT_EQ(longer.info.struct_size, sizeof longer);
  EXPECT_GE(longer.info.num_threads, 1);

  ld_device_info shorter = ld_device_info_default();
  shorter.struct_size = offsetof(ld_device_info, memory_bytes);
  shorter.memory_bytes = -7;
  ASSERT_EQ(ld_detect_device(LD_DEVICE_CPU, 0, &shorter), LD_OK);
  EXPECT_EQ(shorter.memory_bytes, -7) << "not the caller's to receive";
  shorter.struct_size = 0;
  EXPECT_EQ(ld_detect_device(LD_DEVICE_CPU, 0, &shorter), LD_INVALID_ARGUMENT);
  shorter.struct_size = sizeof shorter;
  EXPECT_EQ(ld_detect_device(LD_DEVICE_CUDA, 0, &shorter), LD_UNAVAILABLE);
}

TEST(CApi, CacheAndPlanWorkTogether) {
  for (const ld_kv_format& format :
       {plain(), ld_kv_format_gqa(LD_KEYS_TWO_PLANE, LD_DTYPE_F32, 2, 64, 64),
        ld_kv_format_mla(LD_DTYPE_F32, 32)}) {
    SCOPED_TRACE(testing::Message() << "op " << format.op << " keys " << format.keys);
    Handles h(format, format.keys == LD_KEYS_TWO_PLANE ? LD_METHOD_FFD : LD_METHOD_DENSE);
    h.append(h.sequence, 0, 11);  // tokens 0 .. 10
    int32_t child = -1;
    ASSERT_EQ(ld_cache_fork(h.cache, h.sequence, &child), LD_OK) << ld_last_error();
    ASSERT_EQ(ld_cache_truncate(h.cache, child, 3), LD_OK) << ld_last_error();  // 0 .. 7
    h.append(child, 8, 1, true);                                                // 0 .. 8, mean 4
    for (const float value : h.run()) ASSERT_NEAR(value, 4.0f, 1e-5f);
    EXPECT_NEAR(h.lse[3], std::log(9.0f), 1e-5f);
    EXPECT_EQ(h.tokens_attended[0], 9);
    ASSERT_EQ(ld_cache_commit(h.cache), LD_OK);
    h.append(h.sequence, 11, 2, true);  // 0 .. 12, mean 6
    for (const float value : h.run()) ASSERT_NEAR(value, 6.0f, 1e-5f);
    int64_t kv_len = 0;
    ASSERT_EQ(ld_cache_kv_len(h.cache, h.sequence, &kv_len), LD_OK);
    EXPECT_EQ(kv_len, 11) << "not committed";
    int64_t num_free = 0;
    ASSERT_EQ(ld_cache_free_sequence(h.cache, child), LD_OK);
    ASSERT_EQ(ld_cache_free_sequence(h.cache, h.sequence), LD_OK);
    ASSERT_EQ(ld_cache_num_free_pages(h.cache, &num_free), LD_OK);
    EXPECT_EQ(num_free, 8);
    EXPECT_EQ(ld_cache_commit(h.cache), LD_FAILED_PRECONDITION);
    ld_kernel_choice choice = ld_kernel_choice_default();
    ASSERT_EQ(ld_plan_kernel(h.plan, &choice), LD_OK);
    EXPECT_STREQ(std::string(choice.name).substr(0, 4).c_str(), "cpu/");
  }
}

TEST(CApi, ImportAppendAndMerge) {
  Handles h(plain());
  std::vector<float> source(2 * 2 * 8 * 64);  // 2 pages of 8 tokens, 2 heads
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i / (2 * 8 * 64));
  const int64_t shape[] = {2, 2, 8, 64};
  const ld_tensor pool = ld_tensor_contiguous(source.data(), LD_DTYPE_F32, 4, shape);
  const ld_tensor* const pools[] = {&pool, &pool};
  const int32_t block_table[] = {1, 0};
  ASSERT_EQ(
      ld_cache_import_dense(h.cache, h.sequence, pools, pools, 2, block_table, 2, 12, nullptr),
      LD_OK)
      << ld_last_error();
  const int32_t none = 0;
  ASSERT_EQ(ld_cache_reserve(h.cache, &h.sequence, &none, 1), LD_OK);
  for (const float value : h.run()) ASSERT_NEAR(value, 8.0f / 12.0f, 1e-6f);

  // The same pools through ld_append_kv: overwrite the last token with 100.
  std::vector<float> k_data, v_data;
  const ld_tensor k = h.rows(k_data, 100, 1, 64);
  const ld_tensor v = h.rows(v_data, 100, 1, 64);
  ld_kv_layer layer = ld_kv_layer_default();
  ld_batch batch = ld_batch_default();
  ASSERT_EQ(ld_cache_layer(h.cache, 1, &layer), LD_OK);
  ASSERT_EQ(ld_cache_step(h.cache, &batch), LD_OK);
  batch.query_lens = nullptr;
  ld_append_args append_args = ld_append_args_default();
  append_args.kv = &layer;
  append_args.batch = &batch;
  append_args.k = &k;
  append_args.v = &v;
  ASSERT_EQ(ld_append_kv(&append_args, &h.device, nullptr), LD_OK) << ld_last_error();
  for (const float value : h.run()) ASSERT_NEAR(value, 9.0f, 1e-5f);

  const float partial_o[] = {1, 2, 5, 6};
  const float partial_lse[] = {0.0f, std::log(3.0f)};
  float o[2] = {};
  float lse = 0.0f;
  ld_merge_args merge_args = ld_merge_args_default();
  merge_args.num_partials = 2;
  merge_args.num_rows = 1;
  merge_args.dim = 2;
  merge_args.partial_o = partial_o;
  merge_args.partial_lse = partial_lse;
  merge_args.o = o;
  merge_args.lse = &lse;
  ASSERT_EQ(ld_merge_partials(&merge_args, &h.device, nullptr), LD_OK) << ld_last_error();
  EXPECT_NEAR(o[0], 4.0f, 1e-5f);
  EXPECT_NEAR(o[1], 5.0f, 1e-5f);
  EXPECT_NEAR(lse, std::log(4.0f), 1e-5f);
}

TEST(CApi, MessagesBelongToTheThreadAndAreBounded) {
  EXPECT_EQ(ld_kv_format_validate(nullptr), LD_INVALID_ARGUMENT);
  std::thread([] { EXPECT_STREQ(ld_last_error(), ""); }).join();
  EXPECT_STRNE(ld_last_error(), "");
  const ld_kv_format format = plain();
  EXPECT_EQ(ld_kv_format_validate(&format), LD_OK);
  EXPECT_STREQ(ld_last_error(), "");
  EXPECT_EQ(capi::report(StatusCode::kInternal, std::string(5000, 'x').c_str()), LD_INTERNAL);
  EXPECT_EQ(std::strlen(ld_last_error()), 1023u);
  EXPECT_EQ(capi::guarded([]() -> Status { throw std::bad_alloc(); }), LD_OUT_OF_MEMORY);
  EXPECT_EQ(capi::guarded([]() -> Status { throw std::runtime_error("boom"); }), LD_INTERNAL);
  EXPECT_STREQ(ld_last_error(), "boom");
  EXPECT_EQ(capi::guarded([]() -> Status { throw 1; }), LD_INTERNAL);
}

}  // namespace
}  // namespace longdecode
