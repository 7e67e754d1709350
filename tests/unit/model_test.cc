// The model of a GGUF file: its config, its tensors, and the layers against a double-precision
// forward pass, with attention done here.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "runner/model/elementwise.h"
#include "runner/model/session.h"
#include "runner/model/transformer.h"
#include "runner/model/weights.h"
#include "tests/support/llama_reference.h"
#include "tests/support/tiny_llama.h"

namespace longdecode::runner {
namespace {

using tests::GgufWriter;
using tests::LlamaReference;
using tests::relative_error;
using tests::TinyLlama;

Result<std::shared_ptr<const Model>> load(const GgufWriter& writer) {
  auto file = GgufFile::from_bytes(writer.finish(), "tiny");
  if (!file.ok()) return file.status();
  return Model::from_file(std::move(file).value());
}

// Dense attention over keys and values kept in plain vectors.
class PlainAttention {
 public:
  explicit PlainAttention(const ModelConfig& config)
      : config_(config), k_(config.num_layers), v_(config.num_layers) {}

  Status operator()(const AttentionStep& step) {
    auto& k = k_[size_t(step.layer_idx)];
    auto& v = v_[size_t(step.layer_idx)];
    const int64_t before = int64_t(k.size()) / config_.kv_dim();
    k.insert(k.end(), step.k, step.k + step.num_tokens * config_.kv_dim());
    v.insert(v.end(), step.v, step.v + step.num_tokens * config_.kv_dim());
    for (int64_t t = 0; t < step.num_tokens; ++t) {
      for (int32_t head = 0; head < config_.num_q_heads; ++head) {
        attend(step, t, head, before + t + 1, k, v);
      }
    }
    return Status();
  }

 private:
  void attend(const AttentionStep& step, int64_t t, int32_t head, int64_t visible,
              const std::vector<float>& k, const std::vector<float>& v) const {
    const int64_t dim = config_.head_dim;
    const int64_t kv_at = head / (config_.num_q_heads / config_.num_kv_heads) * dim;
    const float* q = step.q + t * config_.q_dim() + head * dim;
    float* o = step.o + t * config_.q_dim() + head * dim;
    std::vector<double> sum(size_t(dim), 0.0);
    double total = 0.0;
    for (int64_t j = 0; j < visible; ++j) {
      double score = 0.0;
      for (int64_t i = 0; i < dim; ++i) {
        score += double(q[i]) * double(k[size_t(j * config_.kv_dim() + kv_at + i)]);
      }
      const double p = std::exp(score / std::sqrt(double(dim)));
      total += p;
      for (int64_t i = 0; i < dim; ++i) {
        sum[size_t(i)] += p * double(v[size_t(j * config_.kv_dim() + kv_at + i)]);
      }
    }
    for (int64_t i = 0; i < dim; ++i) o[i] = float(sum[size_t(i)] / total);
  }

  const ModelConfig& config_;
  std::vector<std::vector<float>> k_, v_;
};

std::vector<int32_t> random_tokens(size_t count, uint32_t vocab_size) {
  std::mt19937 random(99);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = int32_t(random() % vocab_size);
  return tokens;
}

// Chunks of up to kMaxMatvecX tokens go through products whose inputs are rounded to 2^-16 of a
// block's largest value, about three standard deviations; larger ones may round weights and inputs
// to bf16 (2^-9 each). Seven products in each of two layers, errors adding as random ones do:
// 14^0.5 * 3 * 2^-16 = 1.7e-4 and 14^0.5 * 2^0.5 * 2^-9 = 1.0e-2; softmax may amplify that a
// little.
double allowed_error(int64_t chunk) { return chunk <= kMaxMatvecX ? 5e-4 : 3e-2; }

void expect_matches_reference(const TinyLlama& tiny, size_t num_tokens) {
  const auto model = load(tiny.writer());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const ModelConfig& config = (*model)->config();
  const std::vector<int32_t> tokens = random_tokens(num_tokens, tiny.vocab_size);
  LlamaReference reference(**model);
  std::vector<double> expected;
  for (const int32_t token : tokens) expected = reference.next(token);
  for (const int64_t chunk : {1, 7, 512}) {
    auto transformer = Transformer::create(config, (*model)->weights(), chunk, 1);
    ASSERT_TRUE(transformer.ok());
    PlainAttention attention(config);
    std::vector<float> logits(size_t(config.vocab_size), NAN);
    for (int64_t at = 0; at < int64_t(tokens.size()); at += chunk) {
      const int64_t count = std::min(chunk, int64_t(tokens.size()) - at);
      const std::span<const int32_t> part(tokens.data() + at, size_t(count));
      ASSERT_TRUE(transformer->run(part, at, std::ref(attention), logits.data()).ok());
    }
    EXPECT_LT(relative_error(logits, expected), allowed_error(chunk)) << "chunk " << chunk;
  }
}

TEST(Transformer, MatchesDoubleForward) { expect_matches_reference(TinyLlama(), 20); }

TEST(Transformer, MatchesDoubleForwardInEveryWeightType) {
  for (const GgmlType type : tests::kAllTypes) {
    SCOPED_TRACE(ggml_type_info(type).name);
    TinyLlama tiny;
    tiny.embedding_type = tiny.matrix_type = tiny.down_type = type;
    tiny.hidden_dim = 256;
    tiny.num_q_heads = 4;
    tiny.num_kv_heads = 2;
    tiny.ffn_dim = 256;
    tiny.vocab_size = 40;
    expect_matches_reference(tiny, 9);
  }
}

TEST(Transformer, MatchesDoubleForwardUntiedWithPartialScaledRope) {
  TinyLlama tiny;
  tiny.tied = false;
  tiny.rope_dim = 24;  // 12 pairs: no whole vector on wide machines
  tiny.rope_freqs = true;
  tiny.rope_freq_base = 500.0f;
  tiny.num_layers = 1;
  tiny.embedding_type = GgmlType::kF16;
  expect_matches_reference(tiny, 12);
}

TEST(Transformer, Qwen2MatchesDoubleForward) {
  TinyLlama tiny;
  tiny.architecture = "qwen2";
  tiny.tied = false;
  tiny.rope_freq_base = 1e6f;
  expect_matches_reference(tiny, 12);
}

TEST(Transformer, Qwen3MatchesDoubleForward) {
  TinyLlama tiny;
  tiny.architecture = "qwen3";
  tiny.num_q_heads = 4;
  tiny.num_kv_heads = 2;
  tiny.head_dim = 80;  // not hidden_dim / num_q_heads
  tiny.rope_dim = 40;  // 20 pairs: no whole vectors
  tiny.rope_scale_linear = 4.0f;
  expect_matches_reference(tiny, 12);
}

TEST(Transformer, LlamaWithQkvBiasMatchesDoubleForward) {
  TinyLlama tiny;
  tiny.k_bias_norm = 3.0f;
  expect_matches_reference(tiny, 12);
}

TEST(Model, ArchitecturesDemandTheirTensors) {
  const auto refused = [](const char* architecture, const char* part) {
    TinyLlama tiny;
    tiny.architecture = architecture;
    tiny.leave_out_extras = true;
    const auto model = load(tiny.writer());
    ASSERT_FALSE(model.ok());
    EXPECT_NE(model.status().message().find(part), std::string::npos) << model.status().message();
  };
  refused("qwen2", "no tensor 'blk.0.attn_q.bias'");
  refused("qwen3", "no tensor 'blk.0.attn_q_norm.weight'");
}

TEST(Model, ReadsTheConfig) {
  const auto model = load(TinyLlama().writer());
  ASSERT_TRUE(model.ok()) << model.status().message();
  const ModelConfig& config = (*model)->config();
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.name, "tiny");
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.hidden_dim, 128);
  EXPECT_EQ(config.num_q_heads, 3);
  EXPECT_EQ(config.num_kv_heads, 1);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.ffn_dim, 160);
  EXPECT_EQ(config.vocab_size, 300);
  EXPECT_EQ(config.context_len, 1024);
  EXPECT_EQ(config.rope_dim, 64);
  EXPECT_FLOAT_EQ(config.rms_eps, 1e-5f);
  EXPECT_GT((*model)->weight_bytes(), 300 * 128);
  EXPECT_EQ((*model)->weights().output.data, (*model)->weights().token_embedding.data);
}

struct BadModel {
  const char* name;
  std::function<GgufWriter()> make;
  StatusCode code;
  const char* part;  // of the message
};

GgufWriter with(const std::function<void(TinyLlama*)>& change) {
  TinyLlama tiny;
  change(&tiny);
  return tiny.writer();
}

TEST(Model, RefusesBadModelsByName) {
  const BadModel cases[] = {
      {"no architecture", [] { return GgufWriter().add_u32("x", 1); }, StatusCode::kNotFound,
       "no key 'general.architecture'"},
      {"unknown architecture",
       [] { return GgufWriter().add_string("general.architecture", "mamba"); },
       StatusCode::kUnsupported, "architecture is 'mamba'; supported: llama, qwen2, qwen3"},
      {"no keys", [] { return GgufWriter().add_string("general.architecture", "llama"); },
       StatusCode::kNotFound, "no key 'llama.block_count'"},
      {"missing layer", [] { return with([](TinyLlama* t) { t->num_layers = 0; }); },
       StatusCode::kInvalidArgument, "llama.block_count' is 0"},
      {"heads", [] { return with([](TinyLlama* t) { t->num_kv_heads = 2; }); },
       StatusCode::kInvalidArgument, "3 query heads are no multiple of 2 kv heads"},
      {"odd rope", [] { return with([](TinyLlama* t) { t->rope_dim = 33; }); },
       StatusCode::kInvalidArgument, "rope.dimension_count is 33"},
      {"rope scaling",
       [] { return TinyLlama().writer().add_string("llama.rope.scaling.type", "yarn"); },
       StatusCode::kUnsupported, "is 'yarn'; supported: none, linear"},
      {"experts", [] { return TinyLlama().writer().add_u32("llama.expert_count", 8); },
       StatusCode::kUnsupported, "llama.expert_count' is 8"},
      {"extra tensor",
       [] {
         return TinyLlama().writer().add_tensor("blk.0.attn_output.bias", 0, {4},
                                                std::vector<uint8_t>(16));
       },
       StatusCode::kUnsupported, "tensor 'blk.0.attn_output.bias' has no place"},
      {"tensor type",
       [] {
         return TinyLlama().writer().add_tensor("output.weight", 11, {128, 300},
                                                std::vector<uint8_t>(300 * 55));
       },
       StatusCode::kDataLoss, "Q3_K needs a multiple of 256"},
  };
  for (const BadModel& bad : cases) {
    const auto model = load(bad.make());
    ASSERT_FALSE(model.ok()) << bad.name;
    EXPECT_EQ(model.status().code(), bad.code) << bad.name;
    EXPECT_NE(model.status().message().find(bad.part), std::string::npos)
        << bad.name << ": " << model.status().message();
  }
}

TEST(Model, RefusesWrongShapesAndTypes) {
  TinyLlama tiny;
  tiny.hidden_dim = 256;
  const auto expect = [&](uint32_t type, std::vector<uint64_t> shape, size_t num_bytes,
                          StatusCode code, const std::string& part) {
    const auto model = load(tiny.writer().add_tensor("output.weight", type, std::move(shape),
                                                     std::vector<uint8_t>(num_bytes)));
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.status().code(), code);
    EXPECT_NE(model.status().message().find(part), std::string::npos) << model.status().message();
  };
  expect(0, {256, 2}, 2048, StatusCode::kInvalidArgument,
         "tensor 'output.weight' has shape [256, 2]; [256, 300] is needed");
  expect(0, {256, 300, 2}, 2 * 256 * 300 * 4, StatusCode::kInvalidArgument, "[256, 300, 2]");
  expect(11, {256, 300}, 110 * 300, StatusCode::kUnsupported,
         "tensor 'output.weight' has type Q3_K; supported: F32");
}

TEST(Model, MutatedFilesEndInAStatusOrRun) {
  TinyLlama tiny;
  tiny.num_layers = 1;
  tiny.vocab_size = 8;
  const std::vector<uint8_t> bytes = tiny.writer().finish();
  std::mt19937 random(11);
  int num_loaded = 0;
  for (int round = 0; round < 600; ++round) {
    std::vector<uint8_t> mutant = bytes;
    const int count = 1 + static_cast<int>(random() % 3);
    for (int k = 0; k < count; ++k) {
      mutant[random() % 1600] = static_cast<uint8_t>(random());  // metadata and tensor table
    }
    if (round % 8 == 0) mutant[1600 + random() % (bytes.size() - 1600)] ^= 0x7f;  // weights
    auto file = GgufFile::from_bytes(std::move(mutant), "mutant");
    if (!file.ok()) continue;
    const auto model = Model::from_file(std::move(file).value());
    if (!model.ok()) continue;
    SessionOptions options;
    options.context_len = 1;
    auto session = Session::create(*model, options);
    if (!session.ok()) continue;
    EXPECT_TRUE(session->decode(7).ok());
    ++num_loaded;
  }
  EXPECT_GT(num_loaded, 10);  // e.g. a changed name or RoPE base
}

TEST(Elementwise, TailsAndExtremes) {
  for (const int64_t dim : {1, 7, 16, 37}) {
    std::vector<float> gate(static_cast<size_t>(dim), -200.0f), up(gate.size(), 3.0f);
    std::vector<float> large(gate.size(), 200.0f);
    swiglu(gate.data(), up.data(), dim);
    swiglu(large.data(), up.data(), dim);
    for (const float value : gate) EXPECT_NEAR(value, 0.0f, 1e-30f);
    for (const float value : large) EXPECT_FLOAT_EQ(value, 600.0f);
    std::vector<float> zeros(gate.size(), 0.0f), out(gate.size(), NAN);
    rms_norm(zeros.data(), up.data(), dim, 1e-5f, out.data());
    for (const float value : out) EXPECT_EQ(value, 0.0f);
    add(out.data(), up.data(), dim);
    for (const float value : out) EXPECT_EQ(value, 3.0f);
  }
}

}  // namespace
}  // namespace longdecode::runner
