// The matrix unit inside attend_tile against fp64 before any rounding of the output, and what
// decode makes of it: selection, bits, values that are not finite.
#include "cpu/tile_amx.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "base/float_convert.h"
#include "ref/decode.h"
#include "tests/unit/small_cache.h"

namespace longdecode {
namespace {

using cpu::AmxTiles;
using cpu::kTileCapacity;
using cpu::packed_dim;
using cpu::TokenRange;
using test::dense_desc;
using test::SmallCache;
using test::TestRun;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const DeviceInfo& device() {
  static const DeviceInfo detected = detect_device(DeviceType::kCpu).value();
  return detected;
}

class CpuAmx : public testing::Test {
 protected:
  void SetUp() override {
    DecodeDesc desc = dense_desc(KvFormat::mla(DType::kBF16, 64), 16, 1000);
    desc.q_dtype = DType::kBF16;
    if (!cpu::amx_serves(desc, device())) {
      GTEST_SKIP() << "this CPU or this process has no AMX";
    }
  }
};

struct Aligned {
  explicit Aligned(int64_t num_floats) : storage(static_cast<size_t>(num_floats + 16), kNaN) {}
  float* data() {
    const auto address = reinterpret_cast<uintptr_t>(storage.data());
    return storage.data() + ((address + 63) / 64 * 64 - address) / sizeof(float);
  }
  std::vector<float> storage;
};

// bf16 rows, each followed by NaN. Either at equal distances or not.
class Rows {
 public:
  Rows(std::mt19937& rng, int32_t num_rows, int32_t dim, float deviation, bool is_strided) {
    std::normal_distribution<float> normal(0.0f, deviation);
    const int32_t stride = dim + 24;
    bits_.assign(static_cast<size_t>(num_rows * stride + 16 * num_rows), f32_to_bf16(kNaN));
    for (int32_t i = 0; i < num_rows; ++i) {
      uint16_t* row = bits_.data() + i * stride + (is_strided ? 0 : (i * i) % 3 * 8);
      for (int32_t c = 0; c < dim; ++c) row[c] = f32_to_bf16(normal(rng));
      rows_.push_back(row);
    }
  }
  const void* const* rows() const { return rows_.data(); }
  double at(int32_t row, int32_t c) const {
    return static_cast<double>(bf16_to_f32(static_cast<const uint16_t*>(rows_[row])[c]));
  }

 private:
  std::vector<uint16_t> bits_;
  std::vector<const void*> rows_;
};

struct Case {
  int32_t key_dim = 128;
  int32_t value_dim = 128;
  int32_t num_queries = 1;
  int32_t group = 4;
  int32_t num_tokens = 2 * kTileCapacity;
  float scale = 0.1f;
  float soft_cap = 0.0f;
  bool is_strided = true;
  std::vector<TokenRange> visible = {};  // of each query; empty: everything
};

// o of every row, fp32, in channel order.
std::vector<float> attend(const Case& c, const Rows& q, const Rows& k, const Rows& v,
                          bool with_amx) {
  const int32_t num_rows = c.num_queries * c.group;
  Aligned packed(num_rows * packed_dim(c.key_dim));
  Aligned scratch(AmxTiles::scratch_bytes(num_rows, c.key_dim, c.value_dim) / 4);
  std::optional<AmxTiles> amx;
  if (with_amx) amx.emplace(scratch.data(), num_rows, c.key_dim, c.value_dim);
  for (int32_t r = 0; r < num_rows; ++r) {
    cpu::pack_query(q.rows()[r], DType::kBF16, DType::kBF16, c.key_dim,
                    packed.data() + r * packed_dim(c.key_dim));
    if (amx) amx->pack_query(r, q.rows()[r]);
  }
  const cpu::QueryRows rows{
      num_rows,     c.group, c.key_dim,  c.value_dim,   DType::kBF16,
      DType::kBF16, c.scale, c.soft_cap, packed.data(), amx ? &*amx : nullptr};
  Aligned memory(cpu::row_state_floats(num_rows, c.value_dim));
  const cpu::RowState state = cpu::row_state_at(memory.data(), num_rows);
  cpu::clear(state, num_rows, c.value_dim);
  std::vector<cpu::Tile> tiles;
  std::vector<std::vector<TokenRange>> ranges;
  for (int32_t begin = 0; begin < c.num_tokens; begin += kTileCapacity) {
    const int32_t count = std::min(kTileCapacity, c.num_tokens - begin);
    std::vector<TokenRange>& tile_ranges = ranges.emplace_back();
    for (const TokenRange& range : c.visible) {
      tile_ranges.push_back(
          {std::clamp(range.begin - begin, 0, count), std::clamp(range.end - begin, 0, count)});
    }
    tiles.push_back({count, k.rows() + begin, v.rows() + begin,
                     tile_ranges.empty() ? nullptr : tile_ranges.data()});
  }
  for (size_t i = 0; i < tiles.size(); ++i) {
    cpu::attend_tile(tiles[i], rows, state, i + 1 < tiles.size() ? &tiles[i + 1] : nullptr);
  }
  const cpu::StateList list{memory.data(), 0, 1, num_rows, c.value_dim, DType::kBF16};
  std::vector<float> o(static_cast<size_t>(num_rows * c.value_dim), kNaN);
  for (int32_t r = 0; r < num_rows; ++r) {
    cpu::finish_row(list, r, nullptr, {o.data() + r * c.value_dim, DType::kF32, nullptr});
  }
  return o;
}

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << "key_dim " << c.key_dim << " queries " << c.num_queries
                                  << " group " << c.group << " tokens " << c.num_tokens);
  std::mt19937 rng(11);
  const int32_t num_rows = c.num_queries * c.group;
  const Rows q(rng, num_rows, c.key_dim, 1.0f, true);
  const Rows k(rng, c.num_tokens, c.key_dim, 1.0f, c.is_strided);
  const Rows v(rng, c.num_tokens, c.value_dim, 1.0f, c.is_strided);
  const std::vector<float> o = attend(c, q, k, v, true);
  for (int32_t r = 0; r < num_rows; ++r) {
    const TokenRange range = c.visible.empty() ? TokenRange{0, c.num_tokens}
                                               : c.visible[static_cast<size_t>(r / c.group)];
    std::vector<double> p;
    for (int32_t j = range.begin; j < range.end; ++j) {
      double s = 0.0;
      for (int32_t i = 0; i < c.key_dim; ++i) s += q.at(r, i) * k.at(j, i);
      s *= static_cast<double>(c.scale);
      if (c.soft_cap > 0.0f) s = c.soft_cap * std::tanh(s / c.soft_cap);
      p.push_back(s);
    }
    const double max = p.empty() ? 0.0 : *std::max_element(p.begin(), p.end());
    double sum = 0.0;
    for (double& s : p) sum += s = std::exp(s - max);
    for (int32_t i = 0; i < c.value_dim; ++i) {
      double expected = 0.0;
      double magnitude = 0.0;
      for (size_t j = 0; j < p.size(); ++j) {
        const double value = v.at(range.begin + static_cast<int32_t>(j), i);
        expected += p[j] / sum * value;
        magnitude += p[j] / sum * std::fabs(value);
      }
      // What two bf16 terms leave of a weight, and fp32 scores of a few nats.
      const double tolerance = (0x1p-18 + 2e-6 * std::max(1.0, std::fabs(max))) * magnitude;
      ASSERT_NEAR(static_cast<double>(o[static_cast<size_t>(r * c.value_dim + i)]), expected,
                  tolerance)
          << "row " << r << " channel " << i;
    }
  }
}

TEST_F(CpuAmx, EveryHeadDimAndGroup) {
  for (int32_t dim : {64, 80, 96, 128, 256}) {
    for (int32_t group : {1, 4, 7}) check({.key_dim = dim, .value_dim = dim, .group = group});
  }
  for (int32_t group = 1; group <= 16; ++group) {
    check({.key_dim = 64, .value_dim = 64, .group = group});
  }
}

TEST_F(CpuAmx, LatentHeads) {
  for (int32_t heads : {1, 15, 16, 17, 33, 128}) {
    check({.key_dim = 576,
           .value_dim = 512,
           .group = heads,
           .num_tokens = heads == 128 ? 64 : 128,
           .scale = 0.04f});
  }
}

TEST_F(CpuAmx, PartialTilesSoftCapAndScatteredRows) {
  for (int32_t tokens : {1, 63, 64, 65, 127, 200}) {
    check({.key_dim = 80, .value_dim = 80, .num_tokens = tokens});
  }
  check({.scale = 0.5f, .soft_cap = 3.0f});
  for (int32_t dim : {80, 128}) {
    check({.key_dim = dim, .value_dim = dim, .group = 5, .is_strided = false});
  }
}

TEST_F(CpuAmx, QueriesThatSeeDifferentTokens) {
  // Blocks of 16 rows hold queries that see a whole tile beside others that do not.
  check({.num_queries = 6,
         .group = 6,
         .num_tokens = 192,
         .visible = {{0, 192}, {0, 100}, {5, 192}, {64, 128}, {0, 0}, {0, 191}}});
}

TEST_F(CpuAmx, BitsDoNotDependOnPlacesOrOtherRows) {
  std::mt19937 strided_rng(5);
  std::mt19937 scattered_rng(5);
  const Case c{.key_dim = 80, .value_dim = 80, .group = 20};
  const Rows q(strided_rng, 20, 80, 1.0f, true);
  const Rows k(strided_rng, c.num_tokens, 80, 1.0f, true);
  const Rows v(strided_rng, c.num_tokens, 80, 1.0f, true);
  const Rows same_q(scattered_rng, 20, 80, 1.0f, false);
  const Rows same_k(scattered_rng, c.num_tokens, 80, 1.0f, false);
  const Rows same_v(scattered_rng, c.num_tokens, 80, 1.0f, false);
  const std::vector<float> o = attend(c, q, k, v, true);
  EXPECT_NE(attend(c, q, k, v, false), o) << "the matrix unit was not used";
  EXPECT_EQ(attend(c, same_q, same_k, same_v, true), o);
  Case fewer = c;
  fewer.group = 3;
  EXPECT_EQ(attend(fewer, q, k, v, true), std::vector<float>(o.begin(), o.begin() + 3 * 80));
}

// infinity or NaN in visible keys and values end where the vector code puts them.
TEST_F(CpuAmx, ValuesThatAreNotFinite) {
  for (const float bad : {kInfinity, -kInfinity, kNaN}) {
    for (const bool in_key : {false, true}) {
      std::mt19937 rng(3);
      const Case c{.key_dim = 96, .value_dim = 256, .group = 17};
      const Rows q(rng, c.group, c.key_dim, 1.0f, true);
      const Rows k(rng, c.num_tokens, c.key_dim, 1.0f, true);
      const Rows v(rng, c.num_tokens, c.value_dim, 1.0f, true);
      auto* row = static_cast<uint16_t*>(const_cast<void*>((in_key ? k : v).rows()[70]));
      row[37] = f32_to_bf16(bad);
      const std::vector<float> o = attend(c, q, k, v, true);
      const std::vector<float> expected = attend(c, q, k, v, false);
      for (size_t i = 0; i < o.size(); ++i) {
        if (std::isfinite(expected[i])) {
          ASSERT_NEAR(o[i], expected[i], 2e-5f) << bad << " " << in_key << " " << i;
        } else if (std::isnan(expected[i])) {
          ASSERT_TRUE(std::isnan(o[i])) << bad << " " << in_key << " " << i;
        } else {
          ASSERT_EQ(o[i], expected[i]) << bad << " " << in_key << " " << i;
        }
      }
    }
  }
}

TEST_F(CpuAmx, SelectedForManyBf16RowsAlone) {
  DecodeDesc desc = dense_desc(KvFormat::mla(DType::kBF16, 64), 16, 1000);
  desc.q_dtype = DType::kBF16;
  EXPECT_EQ(select_kernel(desc, device())->isa, "amx_bf16");
  DeviceInfo plain = device();
  plain.has_amx_bf16 = false;
  EXPECT_EQ(select_kernel(desc, plain)->isa, "avx512");
  desc.q_dtype = DType::kF32;
  EXPECT_EQ(select_kernel(desc, device())->isa, "avx512");
  desc.q_dtype = DType::kBF16;
  desc.num_q_heads = cpu::kMinAmxRows - 1;
  desc.max_query_len = 1;
  EXPECT_EQ(select_kernel(desc, device())->isa, "avx512");
}

TEST_F(CpuAmx, DecodeMatchesReferenceWhateverTheThreads) {
  SmallCache cache(KvFormat::gqa(KeyEncoding::kPlain, DType::kBF16, 2, 80, 16), {1500, 64, 0, 700});
  DecodeDesc desc = dense_desc(cache.layer().format, 24, 2048);
  desc.q_dtype = DType::kBF16;
  desc.sliding_window = 900;
  TestRun run(desc, cache, 3);
  ASSERT_EQ(select_kernel(desc, device())->isa, "amx_bf16");
  DeviceInfo threads = device();
  std::vector<float> first;
  for (int32_t num_threads : {1, 2, 5}) {
    threads.num_threads = num_threads;
    const Status status = run.run(threads);
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<float> o;
    for (int64_t i = 0; i < run.o.count(); ++i) o.push_back(run.o.at(i));
    if (first.empty()) first = o;
    ASSERT_EQ(o, first) << num_threads << " threads";
  }
  const int64_t per_sequence = run.o.count() / run.args.batch.batch;
  for (int32_t b = 0; b < run.args.batch.batch; ++b) {
    const ref::DecodeResult expected = ref::decode(desc, run.args, b);
    for (int64_t i = 0; i < per_sequence; ++i) {
      const double o = expected.attention.o[static_cast<size_t>(i)];
      ASSERT_NEAR(static_cast<double>(run.o.at(b * per_sequence + i)), o,
                  1e-5 + 0x1p-8 * std::fabs(o));
    }
  }
}

}  // namespace
}  // namespace longdecode
