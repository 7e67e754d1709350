// Queries, keys and values of one attention layer, real or made up: the input of the format study.
#ifndef LONGDECODE_BENCHMARKS_STUDY_LAYER_SAMPLE_H_
#define LONGDECODE_BENCHMARKS_STUDY_LAYER_SAMPLE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace longdecode::study {

struct LayerSample {
  std::string source;     // the text, or the kind of synthetic keys
  int32_t layer_idx = 0;  // 0 for synthetic keys, which have one layer
  int32_t num_kv_heads = 1;
  int32_t group = 1;  // query heads per kv head
  int32_t head_dim = 64;
  std::vector<float> k;            // [num_tokens, num_kv_heads, head_dim], after RoPE
  std::vector<float> v;            // as k
  std::vector<int64_t> positions;  // of the queries, ascending; kv_len = position + 1
  std::vector<float> q;            // [positions, num_kv_heads * group, head_dim], after RoPE

  int64_t num_tokens() const {
    return static_cast<int64_t>(k.size()) / (int64_t{num_kv_heads} * head_dim);
  }
};

// count query positions spread over the second half of num_tokens, one in each of count equal
// parts.
std::vector<int64_t> sample_positions(int64_t num_tokens, int64_t count, uint64_t seed);

enum class SyntheticKeys { kGaussian, kBias, kOutlierChannels };

// Gaussian keys with one sink token that most queries attend to and score deviations of 3 nats.
// kBias: every channel has a mean of 50 to 200 times its spread (either sign). kOutlierChannels:
// one channel in 16 is 100 times larger and, the queries being a tenth there, dominates the scores.
LayerSample make_synthetic(SyntheticKeys kind, int64_t num_tokens, int64_t num_positions,
                           uint64_t seed);

}  // namespace longdecode::study

#endif  // LONGDECODE_BENCHMARKS_STUDY_LAYER_SAMPLE_H_
