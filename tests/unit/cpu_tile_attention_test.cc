// attend_tile against a plain fp64 loop, on every instruction set that this machine has: every
// dtype, odd row counts, masks, splits, extremes.
#include "cpu/tile_attention.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/float_convert.h"

namespace longdecode::cpu {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct AlignedFloats {
  explicit AlignedFloats(int64_t count, float value = kNaN)
      : storage(static_cast<size_t>(count + 16), value) {}
  float* data() {
    const auto address = reinterpret_cast<uintptr_t>(storage.data());
    return storage.data() + ((address + 63) / 64 * 64 - address) / sizeof(float);
  }
  std::vector<float> storage;
};

struct Case {
  DType key_dtype = DType::kF32;
  DType value_dtype = DType::kF32;
  int32_t key_dim = 128;
  int32_t value_dim = 128;
  int32_t num_queries = 1;
  int32_t group = 4;
  int32_t num_tokens = 150;
  float scale = 0.1f;
  float soft_cap = 0.0f;
  float deviation = 1.0f;
  const float* sink = nullptr;
  int32_t num_states = 1;
};

// A tensor of `rows` x `dim` random values of dtype, whose rows are 16-byte aligned.
class Rows {
 public:
  Rows(std::mt19937& rng, DType dtype, int32_t rows, int32_t dim, float deviation)
      : dtype_(dtype), stride_(dim + 8), bytes_(static_cast<size_t>(rows * stride_ * 4 + 64)) {
    std::normal_distribution<float> normal(0.0f, deviation);
    for (int32_t i = 0; i < rows * stride_; ++i) {
      store_element(base(), dtype_, i, i % stride_ < dim ? normal(rng) : kNaN);
    }
  }
  void* row(int32_t i) { return base() + int64_t{i} * stride_ * dtype_bytes(dtype_); }
  double at(int32_t i, int32_t c) { return static_cast<double>(load_element(row(i), dtype_, c)); }

 private:
  char* base() {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + ((address + 15) / 16 * 16 - address);
  }
  DType dtype_;
  int32_t stride_;
  std::vector<char> bytes_;
};

TokenRange clip(TokenRange range, int32_t begin, int32_t count) {
  return {std::clamp(range.begin - begin, 0, count), std::clamp(range.end - begin, 0, count)};
}

void check(const Case& c, const std::vector<TokenRange>& visible) {
  std::mt19937 rng(7);
  const int32_t num_rows = c.num_queries * c.group;
  Rows q(rng, DType::kF32, num_rows, c.key_dim, c.deviation);
  Rows k(rng, c.key_dtype, c.num_tokens, c.key_dim, c.deviation);
  Rows v(rng, c.value_dtype, c.num_tokens, c.value_dim, 1.0f);

  AlignedFloats packed(num_rows * packed_dim(c.key_dim));
  for (int32_t r = 0; r < num_rows; ++r) {
    pack_query(q.row(r), DType::kF32, c.key_dtype, c.key_dim,
               packed.data() + r * packed_dim(c.key_dim));
  }
  const QueryRows rows{num_rows,      c.group, c.key_dim,  c.value_dim,  c.key_dtype,
                       c.value_dtype, c.scale, c.soft_cap, packed.data()};
  const int64_t stride = row_state_floats(num_rows, c.value_dim);
  AlignedFloats states(stride * c.num_states);
  for (int32_t s = 0; s < c.num_states; ++s) {
    const RowState state = row_state_at(states.data() + s * stride, num_rows);
    clear(state, num_rows, c.value_dim);
    const int32_t split_begin = c.num_tokens * s / c.num_states;
    const int32_t split_end = c.num_tokens * (s + 1) / c.num_states;
    for (int32_t begin = split_begin; begin < split_end; begin += kTileCapacity) {
      const int32_t count = std::min(kTileCapacity, split_end - begin);
      std::vector<const void*> k_rows;
      std::vector<const void*> v_rows;
      for (int32_t j = 0; j < count; ++j) {
        k_rows.push_back(k.row(begin + j));
        v_rows.push_back(v.row(begin + j));
      }
      std::vector<TokenRange> ranges;
      for (const TokenRange& range : visible) ranges.push_back(clip(range, begin, count));
      attend_tile({count, k_rows.data(), v_rows.data(), ranges.empty() ? nullptr : ranges.data()},
                  rows, state, nullptr);
    }
  }
  const StateList list{states.data(), stride, c.num_states, num_rows, c.value_dim, c.value_dtype};
  for (int32_t r = 0; r < num_rows; ++r) {
    const TokenRange range =
        visible.empty() ? TokenRange{0, c.num_tokens} : visible[static_cast<size_t>(r / c.group)];
    std::vector<double> scores;
    double max = c.sink != nullptr ? static_cast<double>(*c.sink) : -HUGE_VAL;
    for (int32_t j = range.begin; j < range.end; ++j) {
      double s = 0.0;
      for (int32_t i = 0; i < c.key_dim; ++i) s += q.at(r, i) * k.at(j, i);
      s *= static_cast<double>(c.scale);
      if (c.soft_cap > 0.0f) {
        s = static_cast<double>(c.soft_cap) * std::tanh(s / static_cast<double>(c.soft_cap));
      }
      scores.push_back(s);
      max = std::max(max, s);
    }
    double sum = c.sink != nullptr ? std::exp(static_cast<double>(*c.sink) - max) : 0.0;
    for (double s : scores) sum += std::exp(s - max);
    std::vector<float> o(static_cast<size_t>(c.value_dim), kNaN);
    float lse = kNaN;
    finish_row(list, r, c.sink, {o.data(), DType::kF32, &lse});
    if (scores.empty()) {
      EXPECT_EQ(lse, -kInfinity);
      for (float value : o) EXPECT_EQ(value, 0.0f);
      continue;
    }
    const double tolerance = 2e-6 * std::max(1.0, std::fabs(max));
    EXPECT_NEAR(static_cast<double>(lse), max + std::log(sum), tolerance) << "row " << r;
    for (int32_t i = 0; i < c.value_dim; ++i) {
      double expected = 0.0;
      for (size_t j = 0; j < scores.size(); ++j) {
        expected += std::exp(scores[j] - max) / sum * v.at(range.begin + static_cast<int>(j), i);
      }
      EXPECT_NEAR(static_cast<double>(o[static_cast<size_t>(i)]), expected, 4 * tolerance)
          << "row " << r << " channel " << i;
    }
  }
}

constexpr int64_t kBest = 0;  // what the dispatch picks

class TileAttention : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    const int64_t target = GetParam() == kBest ? hwy::SupportedTargets() : GetParam();
    if ((hwy::SupportedTargets() & target) == 0 && target != HWY_SCALAR) {
      GTEST_SKIP() << hwy::TargetName(target) << " is not supported here";
    }
    hwy::GetChosenTarget().Update(target);
  }
  void TearDown() override { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
};

TEST_P(TileAttention, EveryDtypeAndHeadDim) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int32_t dim : {64, 80, 96, 128, 256}) {
      SCOPED_TRACE(testing::Message() << "dtype " << int(dtype) << " dim " << dim);
      check({.key_dtype = dtype, .value_dtype = dtype, .key_dim = dim, .value_dim = dim}, {});
      check({.value_dtype = dtype, .key_dim = dim, .value_dim = dim, .group = 3}, {});
    }
  }
}

TEST_P(TileAttention, EveryGroupAndTokenCount) {
  for (int32_t group : {1, 2, 3, 4, 5, 6, 7, 8, 16, 21}) {
    check({.key_dim = 64, .value_dim = 64, .group = group, .num_tokens = 13 + group}, {});
  }
  for (int32_t tokens : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 129}) {
    check({.key_dtype = DType::kBF16, .key_dim = 64, .value_dim = 64, .num_tokens = tokens}, {});
  }
}

TEST_P(TileAttention, LatentRows) {
  check({.key_dtype = DType::kBF16,
         .value_dtype = DType::kBF16,
         .key_dim = 576,
         .value_dim = 512,
         .group = 20,
         .num_tokens = 70},
        {});
}

TEST_P(TileAttention, SoftCapSinkAndSplits) {
  const float sink = 1.5f;
  check({.scale = 0.5f, .soft_cap = 3.0f}, {});
  check({.sink = &sink, .num_states = 5}, {});
}

TEST_P(TileAttention, VisibleRanges) {
  // Causal steps, a window, an empty row, ranges inside one tile and across tiles.
  check({.num_queries = 6, .group = 3, .num_tokens = 150, .num_states = 3},
        {{0, 1}, {0, 149}, {5, 150}, {0, 0}, {70, 77}, {130, 150}});
}

TEST_P(TileAttention, HugeScores) {
  // Scores of about +-1e5; only the largest survives, to fp32 rounding of the score.
  check({.key_dim = 64, .value_dim = 64, .num_tokens = 40, .scale = 12500.0f}, {});
  check({.key_dim = 64, .value_dim = 64, .num_tokens = 40, .scale = 0.01f}, {});
}

TEST_P(TileAttention, NanIsSeenWhereItIsVisibleOnly) {
  std::vector<float> key(64, 1.0f);
  std::vector<float> poison(64, kNaN);
  AlignedFloats packed(2 * 64);
  for (int32_t r = 0; r < 2; ++r) {
    pack_query(key.data(), DType::kF32, DType::kF32, 64, packed.data() + r * 64);
  }
  const void* k_rows[] = {key.data(), poison.data()};
  const TokenRange visible[] = {{0, 1}, {0, 2}};
  const QueryRows rows{.num_rows = 2, .key_dim = 64, .value_dim = 64, .q = packed.data()};
  AlignedFloats memory(row_state_floats(2, 64));
  const RowState state = row_state_at(memory.data(), 2);
  clear(state, 2, 64);
  attend_tile({2, k_rows, k_rows, visible}, rows, state, nullptr);
  const StateList list{memory.data(), 0, 1, 2, 64, DType::kF32};
  std::vector<float> o(64);
  float lse = 0.0f;
  finish_row(list, 0, nullptr, {o.data(), DType::kF32, &lse});
  EXPECT_EQ(o[63], 1.0f);
  EXPECT_NEAR(lse, 64.0f, 1e-5f);
  finish_row(list, 1, nullptr, {o.data(), DType::kF32, &lse});
  EXPECT_TRUE(std::isnan(o[63]));
  EXPECT_TRUE(std::isnan(lse));
}

TEST_P(TileAttention, ScoreTileMarksInvisibleTokens) {
  std::mt19937 rng(3);
  Rows k(rng, DType::kF32, 7, 64, 1.0f);
  Rows q(rng, DType::kF32, 2, 64, 1.0f);
  AlignedFloats packed(2 * 64);
  for (int32_t r = 0; r < 2; ++r) {
    pack_query(q.row(r), DType::kF32, DType::kF32, 64, packed.data() + r * 64);
  }
  std::vector<const void*> k_rows;
  for (int32_t j = 0; j < 7; ++j) k_rows.push_back(k.row(j));
  const TokenRange visible[] = {{2, 5}, {0, 7}};
  const QueryRows rows{
      .num_rows = 2, .key_dim = 64, .value_dim = 64, .softmax_scale = 0.5f, .q = packed.data()};
  AlignedFloats scores(2 * kTileCapacity);
  score_tile({7, k_rows.data(), nullptr, visible}, rows, scores.data());
  for (int32_t r = 0; r < 2; ++r) {
    for (int32_t j = 0; j < 7; ++j) {
      double s = 0.0;
      for (int32_t i = 0; i < 64; ++i) s += 0.5 * q.at(r, i) * k.at(j, i);
      const float score = scores.data()[r * kTileCapacity + j];
      if (j < visible[r].begin || j >= visible[r].end) {
        EXPECT_EQ(score, -kInfinity);
      } else {
        EXPECT_NEAR(static_cast<double>(score), s, 1e-5);
      }
    }
  }
}

TEST_P(TileAttention, NamesTheInstructionSet) {
  const std::string isa = dispatched_isa();
  if (GetParam() == HWY_AVX3) {
    EXPECT_EQ(isa, "avx512");
  } else if (GetParam() == HWY_AVX2) {
    EXPECT_EQ(isa, "avx2");
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, TileAttention,
                         testing::Values(kBest, HWY_AVX3, HWY_AVX2, HWY_SCALAR),
                         [](const auto& target) {
                           return std::string(
                               target.param == kBest ? "Best" : hwy::TargetName(target.param));
                         });

}  // namespace
}  // namespace longdecode::cpu
