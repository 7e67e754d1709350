// Folding and scanning: every kernel gives the bits of the definition, and certified misses
// nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "cpu/ffd_scan.h"

namespace longdecode::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct ScanCase {
  ScanCase(int32_t head_dim, int32_t page_size, int32_t rows, uint32_t seed)
      : format(KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF32, 1, head_dim, page_size)),
        num_rows(rows),
        rng(seed),
        keys(static_cast<size_t>(page_size * head_dim)),
        q(static_cast<size_t>(rows * format.padded_dim() + 16)) {
    std::normal_distribution<float> normal;
    for (float& x : keys) x = normal(rng);
    for (int32_t r = 0; r < rows; ++r) {
      for (int32_t c = 0; c < head_dim; ++c) query(r)[c] = normal(rng);
    }
  }
  float* query(int32_t row) {
    const auto address = reinterpret_cast<uintptr_t>(q.data());
    return reinterpret_cast<float*>((address + 63) / 64 * 64) + row * format.padded_dim();
  }
  float* key(int32_t token) { return keys.data() + int64_t{token} * format.key_dim; }

  void quantize() {
    std::vector<const void*> rows;
    for (int32_t t = 0; t < format.page_size; ++t) rows.push_back(key(t));
    chunk.resize(static_cast<size_t>(format.chunk_bytes()));
    residuals.resize(static_cast<size_t>(format.residual_bytes()));
    quantize_page(format, rows.data(), DType::kF32, chunk.data(), residuals.data());
  }

  // Hit masks of all tiles by one kernel.
  std::vector<uint16_t> scan(const ScanKernel& kernel, const std::vector<float>& thresholds,
                             float margin_sigmas = 0.0f, bool certified = false) {
    PageGrid grid;
    load_page_grid(format, chunk.data(), grid);
    ScanRows rows;
    rows.num_rows = num_rows;
    rows.padded_dim = format.padded_dim();
    rows.q = query(0);
    rows.thresholds = thresholds.data();
    rows.softmax_scale = scale;
    rows.margin_sigmas = margin_sigmas;
    rows.certified = certified;
    fold_rows(grid, rows, folded);
    const int32_t num_tiles = format.page_size / kTileTokens;
    std::vector<uint16_t> hits(static_cast<size_t>(num_tiles * num_rows));
    kernel.scan_tiles(chunk.data(), format.num_blocks(), 0, num_tiles, folded, num_rows,
                      hits.data());
    return hits;
  }
  bool is_hit(const std::vector<uint16_t>& hits, int32_t row, int32_t token) const {
    const uint16_t mask = hits[static_cast<size_t>(token / kTileTokens * num_rows + row)];
    for (int32_t bit = 0; bit < kTileTokens; ++bit) {
      if (hit_token(bit) == token % kTileTokens) return (mask >> bit & 1) != 0;
    }
    return false;
  }
  double exact_score(int32_t row, int32_t token) {
    double sum = 0;
    for (int32_t c = 0; c < format.key_dim; ++c) {
      sum += static_cast<double>(query(row)[c]) *
             exact_key(format, chunk.data(), residuals.data(), token, c);
    }
    return scale * sum;
  }
  double scan_score(int32_t row, int32_t token) {
    double sum = 0;
    for (int32_t c = 0; c < format.key_dim; ++c) {
      sum += static_cast<double>(query(row)[c]) * scan_key(format, chunk.data(), token, c);
    }
    return scale * sum;
  }

  KvFormat format;
  int32_t num_rows;
  float scale = 0.125f;
  std::mt19937 rng;
  std::vector<float> keys;
  std::vector<float> q;
  std::vector<uint8_t> chunk;
  std::vector<uint8_t> residuals;
  FoldedRows folded;
};

TEST(FfdScan, EveryKernelGivesTheSumsOfTheDefinition) {
  for (int32_t head_dim : {64, 80, 96, 128, 256}) {
    for (int32_t num_rows : {1, 2, 3, 4, 5, 7, 16}) {
      ScanCase c(head_dim, num_rows % 2 ? 64 : 128, num_rows, 7);
      c.quantize();
      const std::vector<float> thresholds(static_cast<size_t>(num_rows), 0.5f);
      for (const ScanKernel& kernel : scan_kernels()) {
        const std::vector<uint16_t> hits = c.scan(kernel, thresholds);
        for (int32_t r = 0; r < num_rows; ++r) {
          const int8_t* n = c.folded.q + int64_t{r} * 2 * c.format.padded_dim();
          for (int32_t t = 0; t < c.format.page_size; ++t) {
            int32_t sum = 0;
            for (int32_t i = 0; i < head_dim; ++i) {
              const int32_t byte = c.chunk[static_cast<size_t>(c.format.code_offset_bytes(t, i))];
              sum += (byte >> c.format.code_shift(t, i) & 3) * n[i / 4 * 8 + i % 4];
            }
            ASSERT_EQ(c.is_hit(hits, r, t), sum >= c.folded.thresholds[r])
                << kernel.isa << " head_dim " << head_dim << " row " << r << " token " << t;
          }
        }
      }
    }
  }
}

TEST(FfdScan, PartsOfAPageGiveTheSameHits) {
  for (int32_t head_dim : {64, 80, 128, 256}) {
    ScanCase c(head_dim, 128, 3, 9);
    c.quantize();
    const std::vector<float> thresholds(3, 0.2f);
    for (const ScanKernel& kernel : scan_kernels()) {
      const std::vector<uint16_t> all = c.scan(kernel, thresholds);
      for (int32_t begin = 0; begin < 8; ++begin) {
        std::vector<uint16_t> part(all.size(), 0xabcd);
        kernel.scan_tiles(c.chunk.data(), c.format.num_blocks(), begin, 8, c.folded, 3,
                          part.data());
        EXPECT_TRUE(std::equal(all.begin() + 3 * begin, all.end(), part.begin())) << kernel.isa;
        EXPECT_EQ(std::count(part.end() - 3 * begin, part.end(), 0xabcd), 3 * begin);
      }
    }
  }
}

TEST(FfdScan, HitsFollowTheScanScore) {
  for (int32_t head_dim : {64, 80, 128, 256}) {
    ScanCase c(head_dim, 64, 4, 11);
    c.quantize();
    for (float threshold : {-1.0f, 0.0f, 0.7f}) {
      const std::vector<uint16_t> hits =
          c.scan(scan_kernels()[0], std::vector<float>(4, threshold));
      int32_t num_hits = 0;
      for (int32_t r = 0; r < 4; ++r) {
        // 8 bits of the query: half a unit of it per channel, 1.5 steps from the zero at most.
        const double slack = 0.02 * std::sqrt(head_dim / 64.0);
        for (int32_t t = 0; t < 64; ++t) {
          const double score = c.scan_score(r, t);
          num_hits += c.is_hit(hits, r, t);
          if (std::fabs(score - threshold) < slack) continue;
          ASSERT_EQ(c.is_hit(hits, r, t), score >= threshold) << score << " " << threshold;
        }
      }
      EXPECT_GT(num_hits, 0);
      EXPECT_LT(num_hits, 4 * 64);
    }
  }
}

struct Edit {
  const char* name;
  std::function<void(ScanCase&)> apply;
};

std::vector<Edit> edits() {
  const auto scale_keys = [](ScanCase& c, auto factor) {
    for (int32_t t = 0; t < c.format.page_size; ++t) {
      for (int32_t i = 0; i < c.format.key_dim; ++i) c.key(t)[i] *= factor(t, i);
    }
  };
  return {
      {"gaussian", [](ScanCase&) {}},
      {"outlier channels",
       [=](ScanCase& c) {
         scale_keys(c, [](int32_t, int32_t i) { return i % 31 ? 1.0f : 100.0f; });
       }},
      {"outlier tokens",
       [=](ScanCase& c) {
         scale_keys(c, [](int32_t t, int32_t) { return t % 13 ? 1.0f : 50.0f; });
       }},
      {"tiny keys", [=](ScanCase& c) { scale_keys(c, [](int32_t, int32_t) { return 1e-30f; }); }},
      {"large keys", [=](ScanCase& c) { scale_keys(c, [](int32_t, int32_t) { return 1e15f; }); }},
      {"bias",
       [](ScanCase& c) {
         for (float& x : c.keys) x += 100.0f;
       }},
      {"all equal", [](ScanCase& c) { std::fill(c.keys.begin(), c.keys.end(), 0.75f); }},
      {"all zero", [](ScanCase& c) { std::fill(c.keys.begin(), c.keys.end(), 0.0f); }},
      {"one query channel",
       [](ScanCase& c) {
         for (int32_t r = 0; r < c.num_rows; ++r) c.query(r)[5] = 1e4f;
       }},
      {"zero query",
       [](ScanCase& c) {
         for (int32_t r = 0; r < c.num_rows; ++r) std::fill_n(c.query(r), c.format.key_dim, 0.0f);
       }},
      {"saturated codes",
       [](ScanCase& c) {
         for (float& x : c.keys) x = x > 0 ? 1.0f : -1.0f;
       }},
  };
}

TEST(FfdScan, CertifiedMissesNoStoredKey) {
  for (const Edit& edit : edits()) {
    for (int32_t head_dim : {64, 80, 128, 256}) {
      ScanCase c(head_dim, 64, 4, 13);
      edit.apply(c);
      c.quantize();
      // Each row's threshold is the exact score of some token: equality counts as reached. fp32
      // cannot hold that score exactly, so the next smaller value is taken.
      for (int32_t chosen : {0, 17, 40, 63}) {
        std::vector<float> thresholds;
        for (int32_t r = 0; r < 4; ++r) {
          thresholds.push_back(
              std::nextafter(static_cast<float>(c.exact_score(r, chosen)), -kInfinity));
        }
        const std::vector<uint16_t> hits = c.scan(scan_kernels()[0], thresholds, 0.0f, true);
        for (int32_t r = 0; r < 4; ++r) {
          for (int32_t t = 0; t < 64; ++t) {
            if (c.exact_score(r, t) < thresholds[static_cast<size_t>(r)]) continue;
            ASSERT_TRUE(c.is_hit(hits, r, t)) << edit.name << " row " << r << " token " << t;
          }
        }
      }
    }
  }
}

TEST(FfdScan, CertifiedStillDrops) {
  ScanCase c(128, 64, 1, 15);
  c.quantize();
  const std::vector<uint16_t> hits = c.scan(scan_kernels()[0], {20.0f}, 0.0f, true);
  EXPECT_EQ(std::count(hits.begin(), hits.end(), 0), 4);
}

TEST(FfdScan, MarginsOnlyAddHits) {
  ScanCase c(128, 128, 4, 17);
  c.quantize();
  const std::vector<float> thresholds(4, 1.0f);
  std::vector<uint16_t> previous = c.scan(scan_kernels()[0], thresholds);
  for (float sigmas : {0.5f, 1.0f, 3.0f}) {
    const std::vector<uint16_t> hits = c.scan(scan_kernels()[0], thresholds, sigmas);
    for (size_t i = 0; i < hits.size(); ++i) EXPECT_EQ(previous[i] & ~hits[i], 0);
    EXPECT_NE(hits, previous);
    previous = hits;
  }
}

TEST(FfdScan, WhatCannotBeDecidedIsKept) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto all_kept = [](ScanCase& c, float threshold) {
    c.quantize();
    for (const ScanKernel& kernel : scan_kernels()) {
      for (uint16_t mask : c.scan(kernel, {threshold})) {
        if (mask != 0xffff) return false;
      }
    }
    return true;
  };
  for (float bad : {nan, kInfinity, -kInfinity}) {
    ScanCase key(64, 64, 1, 19);
    key.key(9)[3] = bad;
    EXPECT_TRUE(all_kept(key, 1e30f));
    ScanCase query(64, 64, 1, 19);
    query.query(0)[3] = bad;
    EXPECT_TRUE(all_kept(query, 1e30f));
  }
  ScanCase overflow(64, 64, 1, 19);
  for (float& x : overflow.keys) x *= 1e37f;
  for (int32_t i = 0; i < 64; ++i) overflow.query(0)[i] *= 1e10f;
  EXPECT_TRUE(all_kept(overflow, 1e30f));
  ScanCase c(64, 64, 1, 19);
  EXPECT_TRUE(all_kept(c, nan));
  EXPECT_TRUE(all_kept(c, -kInfinity));
}

TEST(FfdScan, UncappedThreshold) {
  FfdOptions options;
  options.delta = 5.0f;
  EXPECT_FLOAT_EQ(uncapped_threshold(3.0f, options, 0.0f), -2.0f);
  // cap * tanh(x / cap) = m~ - delta at the threshold.
  const float x = uncapped_threshold(9.0f, options, 10.0f);
  EXPECT_NEAR(10.0 * std::tanh(x / 10.0), 4.0, 1e-5);
  EXPECT_EQ(uncapped_threshold(-6.0f, options, 10.0f), -kInfinity);
  options.delta = 0.0f;
  EXPECT_LT(uncapped_threshold(10.0f, options, 10.0f), 100.0f);  // m~ saturated
  options.delta = kInfinity;
  EXPECT_EQ(uncapped_threshold(3.0f, options, 0.0f), -kInfinity);
  EXPECT_EQ(uncapped_threshold(3.0f, options, 10.0f), -kInfinity);
}

}  // namespace
}  // namespace longdecode::cpu
