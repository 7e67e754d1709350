// Scores made of codes and residuals are those of the exact keys, to fp32.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cpu/cpu_features.h"
#include "cpu/plane_scores.h"
#include "cpu/tile_attention.h"

namespace longdecode::cpu {
namespace {

bool can_score() {
  DecodeDesc desc;
  desc.format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kBF16, 1, 64, 64);
  desc.num_q_heads = 1;
  return PlaneScores::serves(desc, detect_cpu());
}

template <class T>
T* aligned(std::vector<T>& memory) {
  return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
}

struct ScoreCase {
  ScoreCase(int32_t head_dim, int32_t num_rows, float bias)
      : format(KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF32, 1, head_dim, 64)),
        rows(num_rows),
        rng(static_cast<uint32_t>(head_dim + num_rows)),
        keys(static_cast<size_t>(64 * head_dim)),
        q_memory(static_cast<size_t>(num_rows * format.padded_dim() + 16)),
        chunk_memory(static_cast<size_t>(format.chunk_bytes() + 64)),
        residual_memory(static_cast<size_t>(format.residual_bytes() + 64)) {
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < keys.size(); ++i) {
      const size_t channel = i % static_cast<size_t>(head_dim);
      keys[i] = normal(rng) * (channel == 3 ? 40.0f : 1.0f) + (channel % 8 == 5 ? bias : 0.0f);
    }
    for (int32_t r = 0; r < rows; ++r) {
      for (int32_t c = 0; c < head_dim; ++c) q(r)[c] = normal(rng);
    }
    quantize();
  }
  float* q(int32_t row) { return aligned(q_memory) + row * format.padded_dim(); }
  void quantize() {
    std::vector<const void*> key_rows;
    for (int32_t t = 0; t < 64; ++t) key_rows.push_back(keys.data() + t * format.key_dim);
    quantize_page(format, key_rows.data(), DType::kF32, chunk(), residuals());
  }
  uint8_t* chunk() { return aligned(chunk_memory); }
  uint8_t* residuals() { return aligned(residual_memory); }

  KvFormat format;
  int32_t rows;
  std::mt19937 rng;
  std::vector<float> keys;
  std::vector<float> q_memory;
  std::vector<uint8_t> chunk_memory;
  std::vector<uint8_t> residual_memory;
};

TEST(PlaneScores, AreThoseOfTheExactKeys) {
  if (!can_score()) GTEST_SKIP() << "needs AVX512-VNNI";
  for (const float bias : {0.0f, 500.0f}) {
    for (int32_t head_dim : {64, 80, 96, 128, 256}) {
      for (int32_t rows : {1, 3, 4, 5, 16}) {
        ScoreCase c(head_dim, rows, bias);
        PlaneScores scores(c.format, c.q(0), rows);
        ASSERT_TRUE(scores.take_page(c.chunk()));
        std::vector<float> out(static_cast<size_t>(rows * kTileCapacity), NAN);
        for (int32_t tile = 0; tile < 4; ++tile) {
          TilePrefetch none(nullptr, 0, 0);
          scores.score(c.chunk(), c.residuals(), tile, out.data() + tile * kTileTokens, none, none);
        }
        for (int32_t r = 0; r < rows; ++r) {
          for (int32_t t = 0; t < 64; ++t) {
            double expected = 0.0;
            double magnitude = 0.0;
            double largest = 0.0;
            for (int32_t i = 0; i < head_dim; ++i) {
              const double key = exact_key(c.format, c.chunk(), c.residuals(), t, i);
              expected += c.q(r)[i] * key;
              magnitude += std::fabs(c.q(r)[i] * key);
              largest = std::max(largest, std::fabs(c.q(r)[i] * key));
            }
            // Sums and products in fp32, and 2^-24 of the largest |f_c|, which reaches keys of two
            // steps, in every channel.
            const double limit = 0x1p-21 * magnitude + 0x1p-23 * head_dim * largest;
            ASSERT_NEAR(out[static_cast<size_t>(r * kTileCapacity + t)], expected, limit)
                << "head_dim " << head_dim << " row " << r << " token " << t << " bias " << bias;
          }
        }
      }
    }
  }
}

TEST(PlaneScores, LeaveNonFinitePagesToOthers) {
  if (!can_score()) GTEST_SKIP() << "needs AVX512-VNNI";
  for (const float bad : {std::numeric_limits<float>::infinity(), NAN}) {
    ScoreCase key(64, 2, 0.0f);
    key.keys[70] = bad;
    key.quantize();
    EXPECT_FALSE(PlaneScores(key.format, key.q(0), 2).take_page(key.chunk()));
    ScoreCase query(64, 2, 0.0f);
    query.q(1)[9] = bad;
    EXPECT_FALSE(PlaneScores(query.format, query.q(0), 2).take_page(query.chunk()));
  }
}

}  // namespace
}  // namespace longdecode::cpu
