// What the C ABI refuses.
#include <gtest/gtest.h>

#include <vector>

#include "longdecode/c_api.h"
#include "tests/unit/c_api_rig.h"

namespace longdecode {
namespace {

using namespace test;

TEST(CApiRefusal, NullIsRefused) {
  ld_device_info device = cpu();
  const ld_kv_format format = plain();
  ld_decode_desc desc = ld_decode_desc_default();
  ld_cache_desc cache_desc = ld_cache_desc_default();
  ld_kernel_choice choice = ld_kernel_choice_default();
  ld_kv_layer layer = ld_kv_layer_default();
  ld_batch batch = ld_batch_default();
  const ld_tensor tensor = ld_tensor_contiguous(nullptr, LD_DTYPE_F32, 0, nullptr);
  const ld_tensor* const tensors[] = {nullptr, nullptr};
  ld_decode_args args = ld_decode_args_default();
  ld_append_args append_args = ld_append_args_default();
  ld_plan* no_plan = nullptr;
  ld_cache* no_cache = nullptr;
  int64_t count = 0;
  int32_t id = 0;
  const auto refused = [](ld_status_code code, const char* message) {
    EXPECT_EQ(code, LD_INVALID_ARGUMENT) << message;
    EXPECT_TRUE(last_error_has(message)) << ld_last_error();
  };
  refused(ld_detect_device(LD_DEVICE_CPU, 0, nullptr), "info is NULL");
  refused(ld_kv_format_validate(nullptr), "format is NULL");
  refused(ld_kv_format_get_sizes(&format, nullptr), "sizes is NULL");
  refused(ld_kv_format_num_quantized_pages(&format, 1, nullptr), "num_pages is NULL");
  refused(ld_select_kernel(nullptr, &device, &choice), "desc is NULL");
  refused(ld_plan_create(&desc, &device, nullptr), "plan is NULL");
  refused(ld_plan_create(&desc, &device, &no_plan), "desc.format is NULL");
  desc.format = &format;
  refused(ld_plan_create(&desc, nullptr, &no_plan), "device is NULL");
  refused(ld_select_kernel(&desc, &device, nullptr), "choice is NULL");
  desc.causal = 2;
  refused(ld_plan_create(&desc, &device, &no_plan), "desc.causal is 2; allowed: 0 or 1");
  EXPECT_EQ(no_plan, nullptr);
  refused(ld_plan_init(nullptr, nullptr, nullptr), "plan is NULL");
  refused(ld_plan_run(nullptr, &args, nullptr), "plan is NULL");
  refused(ld_plan_kernel(nullptr, &choice), "plan is NULL");
  refused(ld_plan_workspace_bytes(nullptr, &count), "plan is NULL");
  refused(ld_merge_partials(nullptr, &device, nullptr), "args is NULL");
  refused(ld_append_kv(&append_args, &device, nullptr), "kv is NULL");
  refused(ld_cache_create(&cache_desc, &device, nullptr), "cache is NULL");
  refused(ld_cache_create(&cache_desc, &device, &no_cache), "desc.format is NULL");
  refused(ld_cache_add_sequence(nullptr, &id), "cache is NULL");
  refused(ld_cache_free_sequence(nullptr, 0), "cache is NULL");
  refused(ld_cache_kv_len(nullptr, 0, &count), "cache is NULL");
  refused(ld_cache_fork(nullptr, 0, &id), "cache is NULL");
  refused(ld_cache_set_stream(nullptr, nullptr), "cache is NULL");
  refused(ld_cache_truncate(nullptr, 0, 0), "cache is NULL");
  refused(ld_cache_reserve(nullptr, &id, &id, 1), "cache is NULL");
  refused(ld_cache_step(nullptr, &batch), "cache is NULL");
  refused(ld_cache_append(nullptr, 0, &tensor, &tensor, nullptr), "cache is NULL");
  refused(ld_cache_shrink_step(nullptr, &id, 1), "cache is NULL");
  refused(ld_cache_mark_appended(nullptr, 0), "cache is NULL");
  refused(ld_cache_commit(nullptr), "cache is NULL");
  refused(ld_cache_layer(nullptr, 0, &layer), "cache is NULL");
  refused(ld_cache_num_free_pages(nullptr, &count), "cache is NULL");
  refused(ld_cache_memory_bytes(nullptr, &count), "cache is NULL");
  ld_plan_destroy(nullptr);
  ld_cache_destroy(nullptr);

  Handles handles(format);
  refused(ld_plan_run(handles.plan, nullptr, nullptr), "args is NULL");
  refused(ld_plan_run(handles.plan, &args, nullptr), "q is NULL");
  refused(ld_cache_reserve(handles.cache, nullptr, &id, 1), "sequences is NULL");
  refused(ld_cache_reserve(handles.cache, &id, nullptr, 1), "new_tokens is NULL");
  refused(ld_cache_reserve(handles.cache, &id, &id, -1), "num_sequences is -1");
  refused(ld_cache_append(handles.cache, 0, nullptr, &tensor, nullptr), "k is NULL");
  refused(ld_cache_layer(handles.cache, 2, &layer), "layer_idx is 2; allowed: 0 to 1");
  refused(ld_cache_step(handles.cache, nullptr), "batch is NULL");
  refused(ld_cache_kv_len(handles.cache, handles.sequence, nullptr), "kv_len is NULL");
  refused(ld_cache_import_dense(handles.cache, 0, nullptr, nullptr, 2, &id, 1, 1, nullptr),
          "k is NULL");
  refused(ld_cache_import_dense(handles.cache, 0, tensors, tensors, 2, &id, 1, 1, nullptr),
          "k[layer] is NULL");
  refused(ld_cache_import_dense(handles.cache, 0, tensors, tensors, 3, &id, 1, 1, nullptr),
          "num_layers is 3");
}

TEST(CApiRefusal, CommitNeedsEveryLayer) {
  Handles h(plain());
  const int32_t count = 1;
  std::vector<float> data;
  const ld_tensor rows = h.rows(data, 5, 1, 64);
  ASSERT_EQ(ld_cache_reserve(h.cache, &h.sequence, &count, 1), LD_OK);
  ASSERT_EQ(ld_cache_append(h.cache, 1, &rows, &rows, nullptr), LD_OK) << ld_last_error();
  EXPECT_EQ(ld_cache_append(h.cache, 1, &rows, &rows, nullptr), LD_FAILED_PRECONDITION);
  EXPECT_EQ(ld_cache_commit(h.cache), LD_FAILED_PRECONDITION);
  EXPECT_TRUE(last_error_has("layers 0 (of 2)")) << ld_last_error();
  EXPECT_EQ(ld_cache_mark_appended(h.cache, 2), LD_INVALID_ARGUMENT);
  EXPECT_EQ(ld_cache_shrink_step(h.cache, &count, 1), LD_FAILED_PRECONDITION);
  EXPECT_EQ(ld_cache_mark_appended(h.cache, 0), LD_OK) << ld_last_error();
  EXPECT_EQ(ld_cache_commit(h.cache), LD_OK) << ld_last_error();
}

TEST(CApiRefusal, AStepShrinksBeforeItIsWritten) {
  Handles h(plain());
  const int32_t count = 5;
  const int32_t less = 2;
  ASSERT_EQ(ld_cache_reserve(h.cache, &h.sequence, &count, 1), LD_OK);
  EXPECT_EQ(ld_cache_shrink_step(h.cache, nullptr, 1), LD_INVALID_ARGUMENT);
  EXPECT_EQ(ld_cache_shrink_step(h.cache, &less, -1), LD_INVALID_ARGUMENT);
  EXPECT_EQ(ld_cache_shrink_step(h.cache, &less, 1), LD_OK) << ld_last_error();
  EXPECT_EQ(ld_cache_shrink_step(h.cache, &count, 1), LD_INVALID_ARGUMENT);
  // The arrays of the step still say 5 tokens and name the pages that were given back.
  const ld_kv_format format = plain();
  const int64_t shape[] = {1, count, format.num_kv_heads, format.key_dim};
  std::vector<float> values(static_cast<size_t>(shape[1] * shape[2] * shape[3]));
  const ld_tensor rows = ld_tensor_contiguous(values.data(), LD_DTYPE_F32, 4, shape);
  EXPECT_EQ(ld_cache_append(h.cache, 0, &rows, &rows, nullptr), LD_FAILED_PRECONDITION);
  EXPECT_TRUE(last_error_has("append after shrink_step")) << ld_last_error();
  for (const int32_t layer : {0, 1}) {
    EXPECT_EQ(ld_cache_mark_appended(h.cache, layer), LD_OK) << ld_last_error();
  }
  EXPECT_EQ(ld_cache_commit(h.cache), LD_OK) << ld_last_error();
  int64_t kv_len = 0;
  EXPECT_EQ(ld_cache_kv_len(h.cache, h.sequence, &kv_len), LD_OK);
  EXPECT_EQ(kv_len, 2);
  ASSERT_EQ(ld_cache_reserve(h.cache, &h.sequence, &count, 1), LD_OK);
  EXPECT_EQ(ld_cache_append(h.cache, 0, &rows, &rows, nullptr), LD_OK) << ld_last_error();
}

}  // namespace
}  // namespace longdecode
