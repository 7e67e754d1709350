// append_kv and KvCache: the stored bytes depend on the tokens, not on how they came.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/float_convert.h"
#include "longdecode/kv_cache.h"
#include "ref/append.h"
#include "ref/kv_source.h"
#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

using AppendFn = std::function<Status(const AppendArgs&)>;

Status append_on_cpu(const AppendArgs& args) { return append_kv(args, cpu_device(), nullptr); }
Status append_by_reference(const AppendArgs& args) {
  ref::append(args);
  return {};
}

// Appends tokens [from[b], to[b]) of every sequence; rows past a sequence's new tokens are NaN.
void append_tokens(PagedProblem* problem, const std::vector<int32_t>& from,
                   const std::vector<int32_t>& to, DType dtype, const AppendFn& append) {
  const KvFormat& f = problem->desc().format;
  std::vector<int32_t> new_lens;
  for (size_t b = 0; b < from.size(); ++b) new_lens.push_back(to[b] - from[b]);
  const int64_t max_new = *std::max_element(new_lens.begin(), new_lens.end());
  const int64_t rows = problem->batch() * max_new * f.num_kv_heads;
  GuardedBuffer k(rows * f.key_dim * dtype_bytes(dtype));
  GuardedBuffer v(rows * f.value_dim * dtype_bytes(dtype));
  for (int32_t b = 0; b < problem->batch(); ++b) {
    LogicalSequence& s = problem->sequence(b);
    for (int32_t i = 0; i < new_lens[static_cast<size_t>(b)]; ++i) {
      for (int32_t h = 0; h < f.num_kv_heads; ++h) {
        const int64_t row = (b * max_new + i) * f.num_kv_heads + h;
        const int32_t token = from[static_cast<size_t>(b)] + i;
        for (int32_t c = 0; c < f.key_dim; ++c) {
          store_element(k.data(), dtype, row * f.key_dim + c, s.key(token, h)[c]);
        }
        for (int32_t c = 0; c < f.value_dim && f.op == Op::kGqa; ++c) {
          store_element(v.data(), dtype, row * f.value_dim + c, s.value(token, h)[c]);
        }
      }
    }
  }
  AppendArgs args;
  args.kv = problem->args().kv;
  args.batch = problem->args().batch;
  args.batch.kv_lens = to.data();
  args.batch.query_lens = new_lens.data();
  args.k = TensorView::contiguous(k.data(), dtype,
                                  {problem->batch(), max_new, f.num_kv_heads, f.key_dim});
  args.v = TensorView::contiguous(v.data(), dtype,
                                  {problem->batch(), max_new, f.num_kv_heads, f.value_dim});
  const Status status = append(args);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(k.canaries_intact() && v.canaries_intact() && problem->canaries_intact());
}

// Appends in steps whose sizes follow `sizes` in turn, all sequences at their own pace.
void append_in_steps(PagedProblem* problem, const std::vector<int32_t>& sizes, DType dtype,
                     const AppendFn& append) {
  const std::vector<int32_t>& total = problem->spec().kv_lens;
  std::vector<int32_t> lens(total.size(), 0);
  size_t step = 0;
  while (lens != total) {
    std::vector<int32_t> next = lens;
    for (size_t b = 0; b < lens.size(); ++b) {
      next[b] = std::min(total[b], lens[b] + sizes[(step + b) % sizes.size()]);
    }
    ASSERT_NO_FATAL_FAILURE(append_tokens(problem, lens, next, dtype, append));
    lens = next;
    ++step;
  }
}

// The ring's rows that may still be read, now or after `truncate`.
std::vector<float> live_ring_rows(const PagedProblem& problem) {
  std::vector<float> rows;
  const KvFormat& f = problem.desc().format;
  if (f.keys == KeyEncoding::kPlain) return rows;
  const TensorView& ring = problem.args().kv.recent_k;
  for (int32_t b = 0; b < problem.batch(); ++b) {
    const int32_t kv_len = problem.spec().kv_lens[static_cast<size_t>(b)];
    const int64_t first =
        f.num_quantized_pages(std::max(0, kv_len - kMaxTruncateTokens)) * f.page_size;
    for (int64_t j = first; j < kv_len; ++j) {
      for (int32_t h = 0; h < f.num_kv_heads; ++h) {
        const int64_t row =
            (int64_t{problem.args().batch.slots[b]} * f.num_kv_heads + h) * f.recent_ring_tokens() +
            j % f.recent_ring_tokens();
        for (int32_t c = 0; c < f.key_dim; ++c) {
          rows.push_back(load_element(ring.data, ring.dtype, row * f.key_dim + c));
        }
      }
    }
  }
  return rows;
}

std::vector<ProblemSpec> append_specs() {
  std::vector<ProblemSpec> specs;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    specs.push_back(gqa_spec(Method::kDense, dtype, 2, 2, 64, 16, {45, 3}));
    specs.push_back(gqa_spec(Method::kFfd, dtype, 2, 2, 80, 64, {330, 71, 72, 7}));
    specs.push_back(gqa_spec(Method::kFfd, dtype, 3, 1, 128, 128, {sized(700, 300), 136}));
  }
  specs.push_back(mla_spec(DType::kBF16, 1, 64, {100, 64}));
  specs.push_back(gqa_spec(Method::kFfd, DType::kF32, 2, 1, 64, 64, {200}));
  specs.back().note = "K bias";
  specs.back().edit = [](LogicalSequence& s, int32_t) {
    for (float& x : s.k) x += 150.0f;
  };
  for (ProblemSpec& spec : specs) spec.empty_pools = true;
  return specs;
}

TEST(AppendProperty, QuickTokenByTokenEqualsChunksEqualsAtOnce) {
  for (const ProblemSpec& spec : append_specs()) {
    const DType dtype = spec.desc.format.dtype;
    PagedProblem at_once(spec);
    append_tokens(&at_once, std::vector<int32_t>(spec.kv_lens.size(), 0), spec.kv_lens, dtype,
                  append_on_cpu);
    for (const std::vector<int32_t>& sizes :
         std::vector<std::vector<int32_t>>{{1}, {7, 0, 64}, {130, 1, 16}}) {
      PagedProblem stepwise(spec);
      append_in_steps(&stepwise, sizes, dtype, append_on_cpu);
      EXPECT_EQ(stepwise.pools_fingerprint(), at_once.pools_fingerprint()) << repro(spec);
      EXPECT_EQ(live_ring_rows(stepwise), live_ring_rows(at_once)) << repro(spec);
    }
  }
}

TEST(AppendProperty, QuickEqualsTheReference) {
  for (const ProblemSpec& spec : append_specs()) {
    PagedProblem ours(spec);
    PagedProblem reference(spec);
    append_in_steps(&ours, {60, 9}, DType::kF32, append_on_cpu);
    append_in_steps(&reference, {60, 9}, DType::kF32, append_by_reference);
    EXPECT_EQ(live_ring_rows(ours), live_ring_rows(reference)) << repro(spec);
    if (spec.desc.format.keys == KeyEncoding::kPlain) {
      EXPECT_EQ(ours.pools_fingerprint(), reference.pools_fingerprint()) << repro(spec);
    }
    // Which grid a channel gets is free; that every key is within step / 512 of it is not.
    const KvFormat& f = spec.desc.format;
    std::vector<double> stored(static_cast<size_t>(f.key_dim));
    std::vector<double> steps(static_cast<size_t>(f.key_dim));
    for (int32_t b = 0; b < ours.batch(); ++b) {
      LogicalSequence& s = ours.sequence(b);
      const ref::PagedSource kv(ours.args().kv, ours.args().batch, b);
      for (int32_t j = 0; j < s.kv_len; ++j) {
        for (int32_t h = 0; h < f.num_kv_heads; ++h) {
          kv.key(h, j, stored.data());
          std::fill(steps.begin(), steps.end(), 0.0);
          if (j < kv.num_quantized_tokens()) kv.steps(h, j, steps.data());
          for (size_t c = 0; c < stored.size(); ++c) {
            // 2^-22: the quantiser computes n = 256 (key / step - zero) + 512 in fp32.
            const double key{s.key(j, h)[c]};
            const double rounding = steps[c] > 0 ? 0x1p-22 * (std::abs(key) + steps[c]) : 0.0;
            const double limit = steps[c] / 512 + rounding;
            ASSERT_LE(std::abs(stored[c] - key), limit)
                << repro(spec) << " token " << j << " channel " << c;
            ASSERT_LE(steps[c], 7.2 / 4 * 1.1);  // the range of the numbers is below 7
          }
          kv.value(h, j, stored.data());
          for (int32_t c = 0; c < f.value_dim; ++c) {
            const float* value = f.op == Op::kMla ? s.key(j, h) : s.value(j, h);
            ASSERT_EQ(stored[static_cast<size_t>(c)], double{value[c]});
          }
        }
      }
    }
  }
}

TEST(AppendProperty, QuickTruncateThenAppendEqualsAppend) {
  for (const ProblemSpec& spec : append_specs()) {
    const DType dtype = spec.desc.format.dtype;
    for (const int32_t taken_back : {1, 3, 8}) {
      for (int32_t end = 60; end <= 80; ++end) {  // around the first page's quantisation
        ProblemSpec cut = spec;
        for (int32_t& kv_len : cut.kv_lens) kv_len = std::min(kv_len, end);
        PagedProblem straight(cut);
        append_in_steps(&straight, {13}, dtype, append_on_cpu);
        // The same tokens, but the last `taken_back` were other ones first.
        PagedProblem revised(cut);
        std::vector<int32_t> kept = cut.kv_lens;
        for (int32_t& kv_len : kept) kv_len = std::max(0, kv_len - taken_back);
        const std::vector<int32_t> none(kept.size(), 0);
        append_tokens(&revised, none, kept, dtype, append_on_cpu);
        std::vector<LogicalSequence> right;
        for (int32_t b = 0; b < revised.batch(); ++b) {
          right.push_back(revised.sequence(b));
          LogicalSequence& s = revised.sequence(b);
          for (float& x : s.k) x = -3.0f * x + 1.0f;
          for (float& x : s.v) x = 2.0f - x;
        }
        append_tokens(&revised, kept, cut.kv_lens, dtype, append_on_cpu);
        for (int32_t b = 0; b < revised.batch(); ++b) {
          revised.sequence(b) = right[static_cast<size_t>(b)];
        }
        append_tokens(&revised, kept, cut.kv_lens, dtype, append_on_cpu);
        ASSERT_EQ(live_ring_rows(revised), live_ring_rows(straight)) << repro(cut) << taken_back;
        ASSERT_EQ(revised.pools_fingerprint(), straight.pools_fingerprint())
            << repro(cut) << " taken back " << taken_back;
      }
    }
  }
}

}  // namespace
}  // namespace longdecode::testing
