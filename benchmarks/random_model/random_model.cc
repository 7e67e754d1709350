#include "benchmarks/random_model/random_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "benchmarks/random_model/planted_cache.h"
#include "benchmarks/random_model/random_model_bench.h"
#include "cuda/host/status.h"
#include "ops/backends.h"

namespace longdecode::gpu_bench {
namespace {

using cuda::cuda_status;
using runner::ModelConfig;

constexpr int64_t kFillTokens = 2048;

ModelConfig shape(const char* name, int32_t num_layers, int32_t hidden_dim, int32_t num_q_heads,
                  int32_t num_kv_heads, int32_t head_dim, int32_t ffn_dim, int32_t vocab_size) {
  ModelConfig config;
  config.name = name;
  config.num_layers = num_layers;
  config.hidden_dim = hidden_dim;
  config.num_q_heads = num_q_heads;
  config.num_kv_heads = num_kv_heads;
  config.head_dim = head_dim;
  config.rope_dim = head_dim;
  config.ffn_dim = ffn_dim;
  config.vocab_size = vocab_size;
  config.rms_eps = 1e-5f;
  config.rope_freq_base = 500000.0;
  return config;
}

std::vector<ModelConfig> shapes() {
  ModelConfig llama = shape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256);
  ModelConfig qwen = shape("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064);
  qwen.rope_pairs = runner::RopePairs::kHalves;
  qwen.has_qkv_bias = true;
  ModelConfig smol = shape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152);
  return {llama, qwen, smol};
}

}  // namespace

std::vector<std::string> random_model_names() {
  std::vector<std::string> names;
  for (const ModelConfig& config : shapes()) names.push_back(config.name);
  return names;
}

Result<ModelConfig> random_model_config(const std::string& name) {
  for (const ModelConfig& config : shapes()) {
    if (config.name == name) return config;
  }
  return invalid_argument("the model is \"{}\"; allowed: {}", name,
                          fmt::join(random_model_names(), ", "));
}

double kept_share(int32_t layer_idx, int64_t depth) {
  if (layer_idx == 0) return 0.2;
  struct Point {
    double depth, kept;
  };
  constexpr Point kPoints[] = {{16384, 0.1}, {131072, 0.01}, {262144, 0.005}};
  const int segment = depth <= 131072 ? 0 : 1;
  const Point& a = kPoints[segment];
  const Point& b = kPoints[segment + 1];
  const double at = std::log(static_cast<double>(depth) / a.depth) / std::log(b.depth / a.depth);
  return std::min(0.2, a.kept * std::pow(b.kept / a.kept, at));
}

Result<PlantedBatch> PlantedBatch::create(const ModelConfig& config,
                                          const runner::SessionOptions& options, int32_t batch,
                                          int64_t depth, cudaStream_t stream) {
  KvCacheDesc desc;
  desc.format =
      KvFormat::gqa(options.method == Method::kFfd ? KeyEncoding::kTwoPlane : KeyEncoding::kPlain,
                    DType::kBF16, config.num_kv_heads, config.head_dim, options.page_size);
  desc.num_layers = config.num_layers;
  const int64_t pages = (options.context_len - 1) / options.page_size + 1;
  desc.num_pages = batch * (pages + (options.context_len - depth) / options.page_size + 2);
  desc.max_sequences = 2 * batch;
  desc.max_kv_len = options.context_len;
  LD_ASSIGN_OR_RETURN(KvCache cache, KvCache::create(desc, options.device));
  PlantedBatch planted(std::move(cache));
  LD_RETURN_IF_ERROR(planted.cache_.set_stream(stream));
  for (int32_t b = 0; b < batch; ++b) {
    LD_ASSIGN_OR_RETURN(const SequenceId sequence, planted.cache_.add_sequence());
    planted.sequences_.push_back(sequence);
  }
  LD_RETURN_IF_ERROR(planted.fill(config, options, depth, stream));
  return planted;
}

Status PlantedBatch::fill(const ModelConfig& config, const runner::SessionOptions& options,
                          int64_t depth, cudaStream_t stream) {
  const auto batch = static_cast<int32_t>(sequences_.size());
  LD_ASSIGN_OR_RETURN(const Backend* const backend, find_backend(DeviceType::kCuda));
  LD_ASSIGN_OR_RETURN(queries_, DeviceBuffer::create(2 * config.num_layers * batch * config.q_dim(),
                                                     *backend, options.device));
  const int64_t staged = batch * std::min(kFillTokens, depth) * config.kv_dim();
  LD_ASSIGN_OR_RETURN(const DeviceBuffer k,
                      DeviceBuffer::create(2 * staged, *backend, options.device));
  LD_ASSIGN_OR_RETURN(const DeviceBuffer v,
                      DeviceBuffer::create(2 * staged, *backend, options.device));
  const double always_kept =
      static_cast<double>(options.ffd.sink_tokens + options.ffd.recent_tokens) /
      static_cast<double>(std::max<int64_t>(depth, 1));
  PlantedShape shape{batch, config.num_q_heads, config.num_kv_heads, config.head_dim, 0.0f, 1};
  shape.softmax_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  const auto layer_queries = [&](int32_t layer) {
    return reinterpret_cast<uint16_t*>(queries_.data()) + layer * batch * config.q_dim();
  };
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    shape.seed = static_cast<uint64_t>(layer) + 1;
    LD_RETURN_IF_ERROR(
        cuda_status(plant_queries(shape, layer_queries(layer), stream), "plant_queries"));
  }
  for (int64_t first = 0; first < depth; first += kFillTokens) {
    const auto count = static_cast<int32_t>(std::min(kFillTokens, depth - first));
    const std::vector<int32_t> counts(sequences_.size(), count);
    LD_RETURN_IF_ERROR(cache_.reserve(sequences_, counts));
    const auto view = [&](const DeviceBuffer& buffer) {
      return TensorView::contiguous(buffer.data(), DType::kBF16,
                                    {batch, count, config.num_kv_heads, config.head_dim});
    };
    for (int32_t layer = 0; layer < config.num_layers; ++layer) {
      shape.seed = static_cast<uint64_t>(layer) + 1;
      const auto hits = static_cast<float>(std::max(0.0, kept_share(layer, depth) - always_kept));
      LD_RETURN_IF_ERROR(cuda_status(plant_tokens(shape, layer_queries(layer), first, count, hits,
                                                  reinterpret_cast<uint16_t*>(k.data()),
                                                  reinterpret_cast<uint16_t*>(v.data()), stream),
                                     "plant_tokens"));
      LD_RETURN_IF_ERROR(cache_.append(layer, view(k), view(v), stream));
    }
    LD_RETURN_IF_ERROR(cache_.commit());
  }
  return cuda_status(cudaStreamSynchronize(stream), "filling the cache");
}

Result<std::vector<SequenceId>> PlantedBatch::fork() {
  std::vector<SequenceId> forks;
  for (const SequenceId sequence : sequences_) {
    LD_ASSIGN_OR_RETURN(const SequenceId fork, cache_.fork(sequence));
    forks.push_back(fork);
  }
  return forks;
}

Status PlantedBatch::free_forks(const std::vector<SequenceId>& forks) {
  for (const SequenceId fork : forks) LD_RETURN_IF_ERROR(cache_.free_sequence(fork));
  return Status();
}

}  // namespace longdecode::gpu_bench
