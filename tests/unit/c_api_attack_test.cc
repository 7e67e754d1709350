// A caller that gets every field wrong: each word of each struct, one at a time. The answer is
// LD_OK or a refusal with a message; under the sanitizers, nothing else happens either.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <vector>

#include "longdecode/c_api.h"
#include "tests/unit/c_api_rig.h"

namespace longdecode {
namespace {

using namespace test;

// Written over whole words, and over their halves. None makes a plausible stride: whether one
// leaves the caller's memory only the caller can know.
constexpr int64_t kAbsurd64[] = {-1, INT64_MIN, INT64_MAX, int64_t{1} << 61, 3};
constexpr int32_t kAbsurdLow[] = {-1, INT_MIN + 1, INT_MAX, 77};
constexpr int32_t kAbsurdHigh[] = {-1, INT_MIN + 1, INT_MAX};

struct Tally {
  int refused = 0;
  int accepted = 0;
};

// Calls `call` with a copy of `valid` (followed by zeros) for every change of one word. `pointers`
// are the offsets of pointers: those become null.
template <typename T>
Tally attack(const T& valid, std::initializer_list<size_t> pointers,
             const std::function<ld_status_code(const T*)>& call) {
  Tally tally;
  std::vector<unsigned char> bytes(sizeof(T) + 4096, 0);
  const auto attempt = [&](size_t offset, const void* value, size_t size) {
    std::memset(bytes.data(), 0, bytes.size());
    std::memcpy(bytes.data(), &valid, sizeof valid);
    std::memcpy(bytes.data() + offset, value, size);
    const ld_status_code code = call(reinterpret_cast<const T*>(bytes.data()));
    EXPECT_TRUE((code == LD_OK) == (*ld_last_error() == '\0')) << "offset " << offset;
    EXPECT_NE(code, LD_INTERNAL) << "offset " << offset << ": " << ld_last_error();
    ++(code == LD_OK ? tally.accepted : tally.refused);
  };
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{7}, size_t{4097}, SIZE_MAX, SIZE_MAX / 2}) {
    const int before = tally.refused;
    attempt(0, &size, sizeof size);
    EXPECT_EQ(tally.refused, before + 1) << "struct_size " << size;
  }
  for (const size_t size : {sizeof(size_t), sizeof(T) - 8, sizeof(T) - 1, sizeof(T) + 64}) {
    attempt(0, &size, sizeof size);
  }
  for (size_t offset = sizeof(size_t); offset + 8 <= sizeof(T); offset += 8) {
    const bool is_pointer = std::find(pointers.begin(), pointers.end(), offset) != pointers.end();
    if (is_pointer) {
      const void* const null = nullptr;
      attempt(offset, &null, sizeof null);
      continue;
    }
    for (const int64_t value : kAbsurd64) attempt(offset, &value, sizeof value);
    for (const int32_t value : kAbsurdLow) attempt(offset, &value, sizeof value);
    for (const int32_t value : kAbsurdHigh) attempt(offset + 4, &value, sizeof value);
  }
  return tally;
}

// One token in the reserved step of a cache, and everything that a run needs.
struct Call {
  explicit Call(const ld_kv_format& kv_format, int32_t method) : h(kv_format, method) {
    h.device.memory_bytes = int64_t{1} << 26;
    h.append(h.sequence, 0, 90);
    const int32_t one = 1;
    EXPECT_EQ(ld_cache_reserve(h.cache, &h.sequence, &one, 1), LD_OK);
    EXPECT_EQ(ld_cache_layer(h.cache, 0, &layer), LD_OK);
    EXPECT_EQ(ld_cache_step(h.cache, &batch), LD_OK);
    const int64_t q_shape[] = {1, 1, 4, h.format.key_dim};
    const int64_t o_shape[] = {1, 1, 4, h.format.value_dim};
    q_data.resize(4 * static_cast<size_t>(h.format.key_dim));
    o_data.resize(4 * static_cast<size_t>(h.format.value_dim));
    q = ld_tensor_contiguous(q_data.data(), LD_DTYPE_F32, 4, q_shape);
    o = ld_tensor_contiguous(o_data.data(), LD_DTYPE_F32, 4, o_shape);
    k = h.rows(k_data, 1, 1, h.format.key_dim);
    v = h.rows(v_data, 1, 1, h.format.value_dim);
    args.q = &q;
    args.o = &o;
    args.kv = &layer;
    args.batch = &batch;
    args.stats = &stats;
    append.kv = &layer;
    append.batch = &batch;
    append.k = &k;
    append.v = h.format.op == LD_OP_MLA ? nullptr : &v;
  }
  ld_status_code run() { return ld_plan_run(h.plan, &args, nullptr); }
  ld_status_code write() { return ld_append_kv(&append, &h.device, nullptr); }

  Handles h;
  ld_kv_layer layer = ld_kv_layer_default();
  ld_batch batch = ld_batch_default();
  std::vector<float> q_data, o_data, k_data, v_data;
  ld_tensor q, o, k, v;
  ld_decode_stats stats = ld_decode_stats_default();
  ld_decode_args args = ld_decode_args_default();
  ld_append_args append = ld_append_args_default();
};

class CApiAttack : public testing::TestWithParam<int> {
 protected:
  ld_kv_format format() const {
    if (GetParam() == 0) return ld_kv_format_gqa(LD_KEYS_PLAIN, LD_DTYPE_F32, 2, 64, 16);
    if (GetParam() == 1) return ld_kv_format_gqa(LD_KEYS_TWO_PLANE, LD_DTYPE_F32, 2, 64, 64);
    return ld_kv_format_mla(LD_DTYPE_F32, 32);
  }
  int32_t method() const { return GetParam() == 1 ? LD_METHOD_FFD : LD_METHOD_DENSE; }
};

TEST_P(CApiAttack, Run) {
  Call call(format(), method());
  ASSERT_EQ(call.run(), LD_OK) << ld_last_error();
  const auto tensor = [&](const ld_tensor& valid, const ld_tensor** slot) {
    const Tally tally =
        attack<ld_tensor>(valid, {offsetof(ld_tensor, data)}, [&](const ld_tensor* t) {
          *slot = t;
          return call.run();
        });
    EXPECT_GT(tally.refused, 20);
    *slot = &valid;
  };
  tensor(call.q, &call.args.q);
  tensor(call.o, &call.args.o);
  attack<ld_kv_layer>(call.layer,
                      {offsetof(ld_kv_layer, format), offsetof(ld_kv_layer, k),
                       offsetof(ld_kv_layer, v), offsetof(ld_kv_layer, chunks),
                       offsetof(ld_kv_layer, residuals), offsetof(ld_kv_layer, recent_k)},
                      [&](const ld_kv_layer* layer) {
                        call.args.kv = layer;
                        return call.run();
                      });
  call.args.kv = &call.layer;
  const Tally batch =
      attack<ld_batch>(call.batch,
                       {offsetof(ld_batch, block_table), offsetof(ld_batch, kv_lens),
                        offsetof(ld_batch, query_lens), offsetof(ld_batch, slots)},
                       [&](const ld_batch* b) {
                         call.args.batch = b;
                         return call.run();
                       });
  EXPECT_GT(batch.refused, 10);
  call.args.batch = &call.batch;
  attack<ld_decode_args>(
      call.args,
      {offsetof(ld_decode_args, q), offsetof(ld_decode_args, o), offsetof(ld_decode_args, lse),
       offsetof(ld_decode_args, kv), offsetof(ld_decode_args, batch),
       offsetof(ld_decode_args, sink_logits), offsetof(ld_decode_args, stats)},
      [&](const ld_decode_args* args) { return ld_plan_run(call.h.plan, args, nullptr); });
  EXPECT_EQ(call.run(), LD_OK) << ld_last_error();
}

TEST_P(CApiAttack, Append) {
  Call call(format(), method());
  ASSERT_EQ(call.write(), LD_OK) << ld_last_error();
  attack<ld_tensor>(call.k, {offsetof(ld_tensor, data)}, [&](const ld_tensor* t) {
    call.append.k = t;
    return call.write();
  });
  call.append.k = &call.k;
  attack<ld_batch>(call.batch,
                   {offsetof(ld_batch, block_table), offsetof(ld_batch, kv_lens),
                    offsetof(ld_batch, query_lens), offsetof(ld_batch, slots)},
                   [&](const ld_batch* b) {
                     call.append.batch = b;
                     return call.write();
                   });
  call.append.batch = &call.batch;
  attack<ld_append_args>(
      call.append,
      {offsetof(ld_append_args, kv), offsetof(ld_append_args, batch), offsetof(ld_append_args, k),
       offsetof(ld_append_args, v)},
      [&](const ld_append_args* args) { return ld_append_kv(args, &call.h.device, nullptr); });
  attack<ld_tensor>(call.k, {offsetof(ld_tensor, data)}, [&](const ld_tensor* t) {
    const int32_t one = 1;
    EXPECT_EQ(ld_cache_reserve(call.h.cache, &call.h.sequence, &one, 1), LD_OK);
    return ld_cache_append(call.h.cache, 0, t, call.append.v, nullptr);
  });
}

TEST_P(CApiAttack, Descriptors) {
  Call call(format(), method());
  const ld_device_info device = call.h.device;
  const auto create = [&](const ld_decode_desc* desc, const ld_device_info* info) {
    ld_plan* plan = nullptr;
    const ld_status_code code = ld_plan_create(desc, info, &plan);
    EXPECT_EQ(plan != nullptr, code == LD_OK);
    ld_plan_destroy(plan);
    EXPECT_EQ(ld_plan_create(desc, info, nullptr), LD_INVALID_ARGUMENT);
    ld_kernel_choice choice = ld_kernel_choice_default();
    EXPECT_EQ(ld_select_kernel(desc, info, &choice), code);
    return code;
  };
  ld_ffd_options ffd = ld_ffd_options_default();
  ld_decode_desc desc = ld_decode_desc_default();
  desc.method = method();
  desc.format = &call.h.format;
  desc.ffd = &ffd;
  desc.num_q_heads = 4;
  desc.max_kv_len = 256;
  desc.softmax_scale = 0.1f;
  ASSERT_EQ(create(&desc, &device), LD_OK) << ld_last_error();
  attack<ld_decode_desc>(desc, {offsetof(ld_decode_desc, format), offsetof(ld_decode_desc, ffd)},
                         [&](const ld_decode_desc* d) { return create(d, &device); });
  attack<ld_kv_format>(call.h.format, {}, [&](const ld_kv_format* f) {
    desc.format = f;
    return create(&desc, &device);
  });
  desc.format = &call.h.format;
  attack<ld_ffd_options>(ffd, {}, [&](const ld_ffd_options* o) {
    desc.ffd = o;
    return create(&desc, &device);
  });
  desc.ffd = &ffd;
  attack<ld_device_info>(device, {}, [&](const ld_device_info* d) { return create(&desc, d); });

  ld_cache_desc cache_desc = ld_cache_desc_default();
  cache_desc.format = &call.h.format;
  cache_desc.num_pages = 8;
  cache_desc.max_kv_len = 256;
  attack<ld_cache_desc>(cache_desc, {offsetof(ld_cache_desc, format)}, [&](const ld_cache_desc* d) {
    ld_cache* cache = nullptr;
    const ld_status_code code = ld_cache_create(d, &device, &cache);
    EXPECT_EQ(cache != nullptr, code == LD_OK);
    ld_cache_destroy(cache);
    return code;
  });
}

INSTANTIATE_TEST_SUITE_P(Formats, CApiAttack, testing::Range(0, 3));

TEST(CApiAttackHandles, IdsAndCountsOfSequences) {
  Handles h(ld_kv_format_gqa(LD_KEYS_PLAIN, LD_DTYPE_F32, 2, 64, 16));
  int64_t kv_len = 0;
  int32_t child = 0;
  for (const int32_t id : {-1, INT_MIN, INT_MAX, 1, 3}) {
    EXPECT_EQ(ld_cache_kv_len(h.cache, id, &kv_len), LD_INVALID_ARGUMENT);
    EXPECT_EQ(ld_cache_fork(h.cache, id, &child), LD_INVALID_ARGUMENT);
    EXPECT_EQ(ld_cache_truncate(h.cache, id, 0), LD_INVALID_ARGUMENT);
    EXPECT_EQ(ld_cache_free_sequence(h.cache, id), LD_INVALID_ARGUMENT);
    const int32_t one = 1;
    EXPECT_EQ(ld_cache_reserve(h.cache, &id, &one, 1), LD_INVALID_ARGUMENT);
    EXPECT_EQ(ld_cache_mark_appended(h.cache, id), LD_FAILED_PRECONDITION) << "nothing reserved";
  }
  for (const int64_t count : {int64_t{-1}, INT64_MIN, INT64_MAX, int64_t{1}}) {
    EXPECT_EQ(ld_cache_truncate(h.cache, h.sequence, count), LD_INVALID_ARGUMENT);
  }
  for (const int32_t count : {-1, INT_MIN, INT_MAX, 257}) {
    EXPECT_EQ(ld_cache_reserve(h.cache, &h.sequence, &count, 1), LD_INVALID_ARGUMENT);
  }
  ASSERT_EQ(ld_cache_free_sequence(h.cache, h.sequence), LD_OK);
  EXPECT_EQ(ld_cache_free_sequence(h.cache, h.sequence), LD_INVALID_ARGUMENT) << "twice";
}

TEST(CApiAttackHandles, Merge) {
  float memory[64] = {};
  const ld_device_info device = cpu();
  ld_merge_args args = ld_merge_args_default();
  args.partial_o = memory;
  args.partial_lse = memory + 24;
  args.o = memory + 30;
  args.lse = memory + 42;
  args.num_rows = 3;
  args.dim = 4;
  args.num_partials = 2;
  ASSERT_EQ(ld_merge_partials(&args, &device, nullptr), LD_OK) << ld_last_error();
  args.num_rows = 0;  // or a count of 3 or 77 would be memory that is not there
  attack<ld_merge_args>(
      args,
      {offsetof(ld_merge_args, partial_o), offsetof(ld_merge_args, partial_lse),
       offsetof(ld_merge_args, o), offsetof(ld_merge_args, lse), offsetof(ld_merge_args, num_rows)},
      [&](const ld_merge_args* a) { return ld_merge_partials(a, &device, nullptr); });
}

}  // namespace
}  // namespace longdecode
