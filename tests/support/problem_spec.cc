#include "tests/support/problem_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "base/float_convert.h"

namespace longdecode::testing {
namespace {

// Bell-shaped numbers of variance 1 within +-3.5: the sum of four uniforms of 16 bits each.
class Bell {
 public:
  explicit Bell(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  float operator()() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const auto sum =
        static_cast<float>((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
    return (sum / 65536.0f - 2.0f) * 1.7320508f;
  }

 private:
  uint64_t state_;
};

void round_all(std::vector<float>* values, DType dtype) {
  for (float& value : *values) {
    if (dtype == DType::kBF16) value = bf16_to_f32(f32_to_bf16(value));
    if (dtype == DType::kF16) value = f16_to_f32(f32_to_f16(value));
  }
}

std::optional<std::pair<int32_t, DType>>& only_shape() {
  static std::optional<std::pair<int32_t, DType>> shape;
  return shape;
}

}  // namespace

void LogicalSequence::plant_score(int64_t token, int32_t head, double nats, double softmax_scale) {
  const int32_t kv_head = head / (num_q_heads / num_kv_heads);
  float* k_row = key(token, kv_head);
  const float* q_row = query(query_len - 1, head);
  double dot = 0.0;
  double norm = 0.0;
  for (int32_t c = 0; c < key_dim; ++c) {
    dot += double{q_row[c]} * double{k_row[c]};
    norm += double{q_row[c]} * double{q_row[c]};
  }
  const double factor = (nats / softmax_scale - dot) / norm;
  for (int32_t c = 0; c < key_dim; ++c) {
    k_row[c] += static_cast<float>(factor * double{q_row[c]});
  }
}

void set_only_shape(int32_t head_dim, DType dtype) { only_shape() = std::pair(head_dim, dtype); }

ProblemSpec gqa_spec(Method method, DType dtype, int32_t num_q_heads, int32_t num_kv_heads,
                     int32_t head_dim, int32_t page_size, std::vector<int32_t> kv_lens) {
  if (only_shape()) std::tie(head_dim, dtype) = *only_shape();
  ProblemSpec spec;
  const KeyEncoding keys = method == Method::kFfd ? KeyEncoding::kTwoPlane : KeyEncoding::kPlain;
  spec.desc.method = method;
  spec.desc.format = KvFormat::gqa(keys, dtype, num_kv_heads, head_dim, page_size);
  spec.desc.q_dtype = dtype;
  spec.desc.num_q_heads = num_q_heads;
  // Random scores are dense: with a margin these short problems would select nearly everything.
  spec.desc.ffd.margin_sigmas = 0.0f;
  spec.kv_lens = std::move(kv_lens);
  return spec;
}

ProblemSpec mla_spec(DType dtype, int32_t num_q_heads, int32_t page_size,
                     std::vector<int32_t> kv_lens) {
  ProblemSpec spec;
  spec.desc.format = KvFormat::mla(dtype, page_size);
  spec.desc.q_dtype = dtype;
  spec.desc.num_q_heads = num_q_heads;
  spec.desc.softmax_scale = 0.07216878f;  // 1 / sqrt(128 + 64), the head size before absorption
  spec.kv_lens = std::move(kv_lens);
  return spec;
}

double resolved_scale(const DecodeDesc& desc) {
  return desc.softmax_scale != 0.0f ? double{desc.softmax_scale}
                                    : 1.0 / std::sqrt(double(desc.format.key_dim));
}

DecodeDesc resolved_desc(const ProblemSpec& spec) {
  DecodeDesc desc = spec.desc;
  const int32_t longest = *std::max_element(spec.kv_lens.begin(), spec.kv_lens.end());
  desc.max_batch = std::max(desc.max_batch, static_cast<int32_t>(spec.kv_lens.size()));
  desc.max_query_len = std::max(desc.max_query_len, spec.query_len);
  desc.max_kv_len = std::max<int64_t>({1, desc.max_kv_len, longest});
  return desc;
}

std::vector<LogicalSequence> make_sequences(const ProblemSpec& spec) {
  const KvFormat& format = spec.desc.format;
  const double scale = resolved_scale(spec.desc);
  const auto q_deviation =
      static_cast<float>(spec.score_deviation / (scale * std::sqrt(double(format.key_dim))));
  std::vector<LogicalSequence> sequences;
  for (size_t b = 0; b < spec.kv_lens.size(); ++b) {
    LogicalSequence s;
    s.kv_len = spec.kv_lens[b];
    s.query_len = spec.query_lens.empty() ? spec.query_len : spec.query_lens[b];
    s.num_kv_heads = format.num_kv_heads;
    s.num_q_heads = spec.desc.num_q_heads;
    s.key_dim = format.key_dim;
    s.value_dim = format.value_dim;
    const auto stream = spec.stream_ids.empty() ? static_cast<int32_t>(b) : spec.stream_ids[b];
    Bell bell(spec.seed * 1000u + static_cast<uint32_t>(stream));
    const size_t rows = static_cast<size_t>(s.kv_len) * static_cast<size_t>(s.num_kv_heads);
    s.k.resize(rows * static_cast<size_t>(s.key_dim));
    if (format.op == Op::kGqa) s.v.resize(rows * static_cast<size_t>(s.value_dim));
    s.q.resize(static_cast<size_t>(s.query_len * s.num_q_heads * s.key_dim));
    for (float& x : s.q) x = q_deviation * bell();
    for (float& x : s.k) x = bell();
    for (float& x : s.v) x = bell();
    round_all(&s.q, spec.desc.q_dtype);
    if (spec.edit) spec.edit(s, stream);
    round_all(&s.q, spec.desc.q_dtype);
    round_all(&s.k, format.dtype);
    round_all(&s.v, format.dtype);
    if (b > 0 && spec.shared_pages > 0) {
      const auto shared = static_cast<int64_t>(spec.shared_pages * format.page_size);
      std::copy_n(sequences[0].k.data(), shared * s.num_kv_heads * s.key_dim, s.k.data());
      if (!s.v.empty()) {
        std::copy_n(sequences[0].v.data(), shared * s.num_kv_heads * s.value_dim, s.v.data());
      }
    }
    sequences.push_back(std::move(s));
  }
  return sequences;
}

std::string repro(const ProblemSpec& spec) {
  const DecodeDesc& d = spec.desc;
  return fmt::format(
      "repro: method={} op={} dtype={} q_dtype={} q_heads={} kv_heads={} head_dim={} page={} "
      "kv_lens=[{}] query_len={} query_lens=[{}] seed={} deviation={} order={} layout={} "
      "strided={} cap={} window={} sinks={} causal={} delta={} sigmas={} certified={} "
      "sink_tokens={} recent_tokens={} invariant={} {}",
      int(d.method), int(d.format.op), int(d.format.dtype), int(d.q_dtype), d.num_q_heads,
      d.format.num_kv_heads, d.format.key_dim, d.format.page_size, fmt::join(spec.kv_lens, ","),
      spec.query_len, fmt::join(spec.query_lens, ","), spec.seed, spec.score_deviation,
      int(spec.page_order), int(spec.layout), spec.strided_q, d.soft_cap, d.sliding_window,
      d.learned_sinks, d.causal, d.ffd.delta, d.ffd.margin_sigmas, d.ffd.certified,
      d.ffd.sink_tokens, d.ffd.recent_tokens, d.batch_invariant, spec.note);
}

bool quick() {
  const char* value = std::getenv("LONGDECODE_TEST_QUICK");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

}  // namespace longdecode::testing
