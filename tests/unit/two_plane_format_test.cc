// The two-plane format as a property: every finite key is within step / 512 of its exact value.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/float_convert.h"
#include "cpu/two_plane.h"

namespace longdecode::cpu {
namespace {

struct Page {
  KvFormat format;
  DType dtype;
  std::vector<float> keys;    // [page_size][key_dim], rounded to dtype
  std::vector<uint8_t> rows;  // the same in dtype, rows `stride` elements apart, NaN between
  std::vector<uint8_t> chunk;
  std::vector<uint8_t> residuals;

  float key(int32_t token, int32_t channel) const {
    return keys[size_t(token) * format.key_dim + channel];
  }
};

using KeyFunction = std::function<float(int32_t token, int32_t channel)>;

Page make_page(const KvFormat& format, DType dtype, const KeyFunction& key) {
  Page page{format, dtype, {}, {}, {}, {}};
  const int64_t stride = format.key_dim + 16;
  page.rows.assign(size_t(format.page_size * stride * dtype_bytes(dtype)), 0xff);
  page.keys.resize(size_t(format.page_size) * format.key_dim);
  std::vector<const void*> rows;
  for (int32_t t = 0; t < format.page_size; ++t) {
    for (int32_t c = 0; c < format.key_dim; ++c) {
      store_element(page.rows.data(), dtype, t * stride + c, key(t, c));
      page.keys[size_t(t) * format.key_dim + c] =
          load_element(page.rows.data(), dtype, t * stride + c);
    }
    rows.push_back(page.rows.data() + t * stride * dtype_bytes(dtype));
  }
  page.chunk.assign(size_t(format.chunk_bytes()), 0xa5);
  page.residuals.assign(size_t(format.residual_bytes()), 0xa5);
  quantize_page(format, rows.data(), dtype, page.chunk.data(), page.residuals.data());
  return page;
}

ChannelGrid grid_of(const Page& page, int32_t channel) {
  ChannelGrid grid;
  std::memcpy(&grid.step_bits,
              page.chunk.data() + page.format.step_offset_bytes() + 2 * size_t(channel), 2);
  std::memcpy(&grid.zero_bits,
              page.chunk.data() + page.format.zero_offset_bytes() + 2 * size_t(channel), 2);
  return grid;
}

// |exact - key| <= step / 512 and |scan - key| <= step / 2, up to fp32 rounding of the value.
void expect_within_format(const Page& page, const std::string& what) {
  for (int32_t c = 0; c < page.format.key_dim; ++c) {
    const double step = grid_of(page, c).step();
    for (int32_t t = 0; t < page.format.page_size; ++t) {
      const double key = page.key(t, c);
      const double exact = exact_key(page.format, page.chunk.data(), page.residuals.data(), t, c);
      const double scan = scan_key(page.format, page.chunk.data(), t, c);
      const double rounding = std::fabs(key) * 0x1p-23;
      ASSERT_LE(std::fabs(exact - key), step / 512 * (1 + 0x1p-12) + rounding)
          << what << " token " << t << " channel " << c << " key " << key << " step " << step;
      ASSERT_LE(std::fabs(scan - key), step / 2 * (1 + 0x1p-12) + rounding) << what;
    }
  }
}

std::vector<KvFormat> formats() {
  std::vector<KvFormat> all;
  for (int32_t dim : {64, 80, 96, 128, 256}) {
    for (int32_t page : {64, 128}) {
      all.push_back(KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kBF16, 1, dim, page));
    }
  }
  return all;
}

struct KeyCase {
  const char* name;
  bool fits_f16;
  float max_step_per_spread;  // step / (range / 4) of the widest grid that is acceptable; 0: any
  KeyFunction key;
};

// About normal with deviation 1, a function of (token, channel) alone: four uniform numbers.
float gaussian(int32_t token, int32_t channel) {
  uint64_t x = static_cast<uint64_t>(token * 1024 + channel + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(x >> (16 * i) & 0xffff) * 0x1p-16f - 0.5f;
  return sum * 1.7320508f;
}

std::vector<KeyCase> key_cases() {
  const float max = std::numeric_limits<float>::max();
  return {
      {"gaussian", true, 1.04f, gaussian},
      {"bias 50..200", true, 1.1f,
       [](int32_t t, int32_t c) { return 50.0f + c % 150 + gaussian(t, c); }},
      {"bias 1e4", true, 1.05f, [](int32_t t, int32_t c) { return 1e4f + gaussian(t, c); }},
      {"bias -1e4", true, 1.05f, [](int32_t t, int32_t c) { return -1e4f + gaussian(t, c); }},
      {"outlier channels", true, 1.04f,
       [](int32_t t, int32_t c) { return gaussian(t, c) * (c % 17 == 3 ? 100.0f : 1.0f); }},
      {"one huge token", true, 1.04f,
       [](int32_t t, int32_t c) { return gaussian(t, c) * (t == 11 ? 1e4f : 1.0f); }},
      {"zero", true, 0, [](int32_t, int32_t) { return 0.0f; }},
      {"minus zero", true, 0, [](int32_t, int32_t) { return -0.0f; }},
      {"constant", true, 0, [](int32_t, int32_t c) { return 0.37f * float(c - 31); }},
      {"two values", true, 0, [](int32_t t, int32_t c) { return t % 2 ? 1.0f + c : 1.0f + c; }},
      {"one ulp apart", true, 0,
       [](int32_t t, int32_t c) { return std::nextafter(float(c + 1), t % 3 ? 0.0f : 1e9f); }},
      {"huge", false, 0, [](int32_t t, int32_t c) { return (t + c) % 2 ? 3e38f : -3e38f; }},
      {"huge constant", false, 0, [](int32_t, int32_t c) { return c % 2 ? 3e38f : -3e38f; }},
      {"largest bf16", false, 0, [](int32_t t, int32_t) { return t % 2 ? kMaxKey : -kMaxKey; }},
      {"one huge, rest small", false, 0,
       [max](int32_t t, int32_t c) { return t == 5 ? max * 0.99f : gaussian(t, c); }},
      {"subnormal", true, 0, [](int32_t t, int32_t c) { return 1e-45f * float(t * c); }},
      {"subnormal fp16", true, 0, [](int32_t t, int32_t c) { return 6e-8f * float(t * c % 1000); }},
      {"tiny", true, 0, [](int32_t t, int32_t c) { return 1.2e-38f * gaussian(t, c); }},
      {"mixed magnitudes", false, 0,
       [](int32_t t, int32_t c) {
         return std::ldexp(gaussian(t, c), (t * 7 + c * 3) % 230 - 115);
       }},
  };
}

TEST(TwoPlaneFormat, EveryFiniteKeyIsWithinTheFormatsError) {
  for (const KvFormat& format : formats()) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const KeyCase& key_case : key_cases()) {
        if (dtype == DType::kF16 && !key_case.fits_f16) continue;
        const Page page = make_page(format, dtype, key_case.key);
        const std::string what = std::string(key_case.name) + " dtype " +
                                 std::to_string(int(dtype)) + " dim " +
                                 std::to_string(format.key_dim);
        ASSERT_NO_FATAL_FAILURE(expect_within_format(page, what));
      }
    }
  }
}

TEST(TwoPlaneFormat, StepsStayNearAQuarterOfTheRange) {
  for (DType dtype : {DType::kF32, DType::kF16}) {
    for (const KeyCase& key_case : key_cases()) {
      if (key_case.max_step_per_spread == 0) continue;
      const Page page = make_page(formats()[6], dtype, key_case.key);
      for (int32_t c = 0; c < page.format.key_dim; ++c) {
        float low = page.key(0, c);
        float high = low;
        for (int32_t t = 0; t < page.format.page_size; ++t) {
          low = std::min(low, page.key(t, c));
          high = std::max(high, page.key(t, c));
        }
        if (high == low) continue;  // a spread of 1 around 1e4 in fp16
        EXPECT_GE(4 * grid_of(page, c).step(), (high - low) * (1 - 1e-6f)) << key_case.name;
        // Half the range and the rounding of the zero, at most a step, fit into two steps.
        const float needed =
            std::max((high - low) / 4, std::min((high - low) / 2, std::fabs(high) / kMaxZero));
        EXPECT_LE(grid_of(page, c).step(), key_case.max_step_per_spread * needed)
            << key_case.name << " channel " << c;
      }
    }
  }
}

// The vectors that choose the grids of a page against the definition.
TEST(TwoPlaneFormat, StoredGridsAreTheChosenOnes) {
  for (const KvFormat& format : formats()) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const KeyCase& key_case : key_cases()) {
        const Page page = make_page(format, dtype, key_case.key);
        for (int32_t c = 0; c < format.key_dim; ++c) {
          float low = page.key(0, c);
          float high = low;
          for (int32_t t = 0; t < format.page_size; ++t) {
            low = std::min(low, page.key(t, c));
            high = std::max(high, page.key(t, c));
          }
          const ChannelGrid grid = grid_of(page, c);
          const ChannelGrid expected = choose_grid(low, high);
          ASSERT_EQ(grid.step_bits, expected.step_bits) << key_case.name << " channel " << c;
          ASSERT_EQ(grid.zero_bits, expected.zero_bits) << key_case.name << " channel " << c;
        }
      }
    }
  }
}

TEST(TwoPlaneFormat, CodesOfBiasedKeysCarryInformation) {
  const Page page = make_page(formats()[6], DType::kF32,
                              [](int32_t t, int32_t c) { return 200.0f + gaussian(t, c); });
  for (int32_t c = 0; c < page.format.key_dim; ++c) {
    double error = 0;
    for (int32_t t = 0; t < page.format.page_size; ++t) {
      const double d = scan_key(page.format, page.chunk.data(), t, c) - page.key(t, c);
      error += d * d / page.format.page_size;
    }
    EXPECT_LT(std::sqrt(error), 0.6) << c;  // the spread is 1
  }
}

TEST(TwoPlaneFormat, ConstantChannelsKeepTheirValue) {
  for (float value : {1.0f, -1.0f, 0.3f, 777.7f, -65504.0f, 1e-20f, 3e38f}) {
    const ChannelGrid grid = choose_grid(value, value);
    EXPECT_GT(grid.step(), 0.0f) << value;
    EXPECT_LE(grid.step() / 512, std::fabs(value) * 0x1p-20f) << value;
  }
  EXPECT_EQ(choose_grid(0.0f, 0.0f).step_bits, 0);
  EXPECT_EQ(choose_grid(-0.0f, 0.0f).zero_bits, 0);
}

TEST(TwoPlaneFormat, PaddingChannelsAreZero) {
  const KvFormat format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kBF16, 1, 80, 64);
  const Page page = make_page(format, DType::kBF16, gaussian);
  for (int32_t c = 80; c < 96; ++c) {
    EXPECT_EQ(grid_of(page, c).step_bits, 0);
    EXPECT_EQ(grid_of(page, c).zero_bits, 0);
    for (int32_t t = 0; t < 64; ++t) {
      EXPECT_EQ(page.residuals[size_t(format.residual_offset_bytes(t, c))], 0);
      EXPECT_EQ(page.chunk[size_t(format.code_offset_bytes(t, c))] >> format.code_shift(t, c) & 3,
                0);
    }
  }
}

TEST(TwoPlaneFormat, NonFiniteKeysMakeTheirChannelNaN) {
  for (float bad : {INFINITY, -INFINITY, NAN}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const Page page = make_page(formats()[0], dtype, [bad](int32_t t, int32_t c) {
        return t == 20 && c == 33 ? bad : gaussian(t, c);
      });
      for (int32_t c = 0; c < page.format.key_dim; ++c) {
        for (int32_t t = 0; t < page.format.page_size; ++t) {
          const float exact =
              exact_key(page.format, page.chunk.data(), page.residuals.data(), t, c);
          ASSERT_EQ(std::isnan(exact), c == 33);
          ASSERT_EQ(std::isnan(scan_key(page.format, page.chunk.data(), t, c)), c == 33);
        }
      }
    }
  }
}

TEST(TwoPlaneFormat, FloatKeysBeyondTheLargestBF16Saturate) {
  const float max = std::numeric_limits<float>::max();
  const Page page = make_page(formats()[0], DType::kF32,
                              [max](int32_t t, int32_t c) { return (t ^ c) % 2 ? max : -max; });
  for (int32_t c = 0; c < page.format.key_dim; ++c) {
    const float exact = exact_key(page.format, page.chunk.data(), page.residuals.data(), 0, c);
    EXPECT_TRUE(std::isfinite(exact));
    EXPECT_NEAR(exact / (c % 2 ? kMaxKey : -kMaxKey), 1.0, 2e-3);
  }
}

TEST(TwoPlaneFormat, DequantizedTilesEqualTheScalarAccessor) {
  for (const KvFormat& format : formats()) {
    const Page page = make_page(format, DType::kBF16, [](int32_t t, int32_t c) {
      return gaussian(t, c) * (c % 5 == 0 ? 30.0f : 1.0f) + float(c);
    });
    PageGrid grid;
    load_page_grid(format, page.chunk.data(), grid);
    const int64_t stride = format.key_dim + 16;
    alignas(64) float tile[kTileTokens * (kMaxPlaneDim + 16)];
    for (int32_t i = 0; i < format.page_size / kTileTokens; ++i) {
      dequantize_tile(format, grid, page.chunk.data(), page.residuals.data(), i, tile, stride);
      for (int32_t t = 0; t < kTileTokens; ++t) {
        for (int32_t c = 0; c < format.key_dim; ++c) {
          const float exact =
              exact_key(format, page.chunk.data(), page.residuals.data(), i * kTileTokens + t, c);
          // Without a fused multiply-add the product is rounded too.
          ASSERT_NEAR(tile[t * stride + c], exact, std::fabs(exact) * 0x1p-22f + 0x1p-24f)
              << format.key_dim << " token " << t << " channel " << c;
        }
      }
    }
  }
}

// The numbers of docs/formats/kv-cache.md.
TEST(TwoPlaneFormat, WorkedExample) {
  const KvFormat format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF32, 1, 128, 64);
  const Page page = make_page(format, DType::kF32, [](int32_t t, int32_t) {
    return t == 21 ? 2.3f : (t % 2 ? 3.0f : -1.0f);
  });
  EXPECT_EQ(format.code_offset_bytes(21, 45), 857);
  EXPECT_EQ(format.code_shift(21, 45), 2);
  EXPECT_EQ(format.residual_offset_bytes(21, 45), 2905);
  EXPECT_EQ(format.step_offset_bytes() + 2 * 45, 2138);
  EXPECT_EQ(format.zero_offset_bytes() + 2 * 45, 2394);
  EXPECT_EQ(grid_of(page, 45).step(), 1.0f);
  EXPECT_EQ(grid_of(page, 45).zero(), 1.0f);
  EXPECT_EQ(page.chunk[857] >> 2 & 3, 3);
  EXPECT_EQ(page.residuals[2905], 76);
  EXPECT_EQ(scan_key(format, page.chunk.data(), 21, 45), 2.5f);
  EXPECT_NEAR(exact_key(format, page.chunk.data(), page.residuals.data(), 21, 45), 2.29883, 1e-5);
}

}  // namespace
}  // namespace longdecode::cpu
