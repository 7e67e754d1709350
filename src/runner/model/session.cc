#include "runner/model/session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "ops/backends.h"
#include "runner/model/decode_attention.h"
#include "runner/model/transformer.h"
#include "runner/model/weights.h"

namespace longdecode::runner {
namespace {

Status check_layers(const ModelConfig& config, const SessionOptions& options) {
  std::vector<bool> seen(static_cast<size_t>(config.num_layers));
  const auto check = [&](const char* name, int32_t layer) {
    if (layer < 0 || layer >= config.num_layers) {
      return invalid_argument("{} has layer {}; the model's layers are 0 to {}", name, layer,
                              config.num_layers - 1);
    }
    return Status();
  };
  for (const int32_t layer : options.dense_layers) {
    LD_RETURN_IF_ERROR(check("dense_layers", layer));
    seen[static_cast<size_t>(layer)] = true;
  }
  for (const LayerDelta& entry : options.layer_deltas) {
    LD_RETURN_IF_ERROR(check("layer_deltas", entry.layer_idx));
    if (seen[static_cast<size_t>(entry.layer_idx)]) {
      return invalid_argument("layer_deltas has layer {}, which it or dense_layers has already",
                              entry.layer_idx);
    }
    seen[static_cast<size_t>(entry.layer_idx)] = true;
    if (!(entry.delta >= 0.0f)) {
      return invalid_argument("layer_deltas has delta {} for layer {}; 0 or more is needed",
                              entry.delta, entry.layer_idx);
    }
  }
  return Status();
}

Status resolve_options(const ModelConfig& config, SessionOptions* options) {
  if (options->device.type != DeviceType::kCpu) {
    return unsupported("device.type is {}; this build runs models on the CPU (0)",
                       static_cast<int32_t>(options->device.type));
  }
  if (options->device.num_threads < 1) {
    return invalid_argument("device.num_threads is {}; 1 or more is needed",
                            options->device.num_threads);
  }
  if (options->context_len == 0) options->context_len = config.context_len;
  if (options->context_len < 1 || options->context_len > config.context_len) {
    return invalid_argument("context_len is {}; the model allows 1 to {}", options->context_len,
                            config.context_len);
  }
  if (options->prefill_chunk < 1) {
    return invalid_argument("prefill_chunk is {}; 1 or more is needed", options->prefill_chunk);
  }
  return check_layers(config, *options);
}

KvFormat cache_format(const ModelConfig& config, const SessionOptions& options) {
  const KeyEncoding keys =
      options.method == Method::kFfd ? KeyEncoding::kTwoPlane : KeyEncoding::kPlain;
  return KvFormat::gqa(keys, options.kv_dtype, config.num_kv_heads, config.head_dim,
                       options.page_size);
}

Result<KvCache> make_cache(const ModelConfig& config, const SessionOptions& options) {
  KvCacheDesc desc;
  desc.format = cache_format(config, options);
  LD_RETURN_IF_ERROR(validate(desc.format));  // page_size divides below
  desc.num_layers = config.num_layers;
  desc.num_pages = (options.context_len + options.page_size - 1) / options.page_size;
  desc.max_sequences = 1;
  desc.max_kv_len = options.context_len;
  return KvCache::create(desc, options.device);
}

class Stopwatch {
 public:
  // Adds the seconds since the construction or the last call.
  void lap(double* seconds) {
    const auto now = std::chrono::steady_clock::now();
    *seconds += std::chrono::duration<double>(now - start_).count();
    start_ = now;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

struct Session::Impl {
  std::shared_ptr<const Model> model;
  SessionOptions options;
  KvCache cache;
  SequenceId sequence;
  DecodeAttention decode_attention;
  Transformer transformer;
  std::vector<float> logits;
  int64_t num_tokens = 0;
  StepTimes prefill_times;
  StepTimes decode_times;

  Status check_tokens(std::span<const int32_t> tokens) const;
  Status step(std::span<const int32_t> tokens, bool decode, bool want_logits);
  Status attend(const AttentionStep& step, bool decode);
  Status prefill_attend(const AttentionStep& step);
};

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<Session> Session::create(std::shared_ptr<const Model> model, const SessionOptions& options) {
  if (model == nullptr) return invalid_argument("model is null");
  const ModelConfig& config = model->config();
  SessionOptions resolved = options;
  LD_RETURN_IF_ERROR(resolve_options(config, &resolved));
  const int64_t max_tokens = std::min<int64_t>(resolved.prefill_chunk, resolved.context_len);
  try {
    LD_ASSIGN_OR_RETURN(KvCache cache, make_cache(config, resolved));
    LD_ASSIGN_OR_RETURN(const SequenceId sequence, cache.add_sequence());
    LD_ASSIGN_OR_RETURN(DecodeAttention decode_attention,
                        DecodeAttention::create(config, resolved, cache.desc().format));
    LD_ASSIGN_OR_RETURN(
        Transformer transformer,
        Transformer::create(config, model->weights(), max_tokens, resolved.device.num_threads));
    return Session(std::unique_ptr<Impl>(new Impl{std::move(model),
                                                  std::move(resolved),
                                                  std::move(cache),
                                                  sequence,
                                                  std::move(decode_attention),
                                                  std::move(transformer),
                                                  {},
                                                  0,
                                                  {},
                                                  {}}));
  } catch (const std::bad_alloc&) {
    return out_of_memory("activations for prefill_chunk {} do not fit", max_tokens);
  }
}

Status Session::Impl::check_tokens(std::span<const int32_t> tokens) const {
  if (tokens.empty()) return invalid_argument("tokens is empty; 1 or more is needed");
  const int32_t vocab_size = model->config().vocab_size;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    return invalid_argument("token {} is {}; the vocabulary allows 0 to {}", i, tokens[i],
                            vocab_size - 1);
  }
  const auto count = static_cast<int64_t>(tokens.size());
  if (count > options.context_len - num_tokens) {
    return invalid_argument("{} tokens after {} exceed the context of {}", count, num_tokens,
                            options.context_len);
  }
  return Status();
}

Status Session::Impl::step(std::span<const int32_t> tokens, bool decode, bool want_logits) {
  Stopwatch watch;
  StepTimes& times = decode ? decode_times : prefill_times;
  const double linear_before = transformer.linear_s();
  const std::array<SequenceId, 1> sequences = {sequence};
  const std::array<int32_t, 1> new_tokens = {static_cast<int32_t>(tokens.size())};
  LD_RETURN_IF_ERROR(cache.reserve(sequences, new_tokens));
  if (want_logits) logits.resize(static_cast<size_t>(model->config().vocab_size));
  LD_RETURN_IF_ERROR(transformer.run(
      tokens, num_tokens, [&](const AttentionStep& layer) { return attend(layer, decode); },
      want_logits ? logits.data() : nullptr));
  LD_RETURN_IF_ERROR(cache.commit());
  num_tokens += static_cast<int64_t>(tokens.size());
  times.linear_s += transformer.linear_s() - linear_before;
  watch.lap(&times.total_s);
  return Status();
}

Status Session::Impl::attend(const AttentionStep& step, bool decode) {
  const ModelConfig& config = model->config();
  const auto view = [&](float* data, int32_t num_heads) {
    return TensorView::contiguous(data, DType::kF32,
                                  {1, step.num_tokens, num_heads, config.head_dim});
  };
  if (options.observer) {
    LD_RETURN_IF_ERROR(
        options.observer({step.layer_idx, num_tokens, step.num_tokens, step.q, step.k, step.v}));
  }
  Stopwatch watch;
  StepTimes& times = decode ? decode_times : prefill_times;
  LD_RETURN_IF_ERROR(cache.append(step.layer_idx, view(step.k, config.num_kv_heads),
                                  view(step.v, config.num_kv_heads), nullptr));
  watch.lap(&times.append_s);
  const Status status = decode
                            ? decode_attention.run(step.layer_idx, view(step.q, config.num_q_heads),
                                                   view(step.o, config.num_q_heads),
                                                   cache.layer(step.layer_idx), cache.step())
                            : prefill_attend(step);
  watch.lap(&times.attention_s);
  return status;
}

Status Session::Impl::prefill_attend(const AttentionStep& step) {
  const ModelConfig& config = model->config();
  PrefillArgs args;
  args.q = TensorView::contiguous(step.q, DType::kF32,
                                  {step.num_tokens, config.num_q_heads, config.head_dim});
  args.o = args.q;
  args.o.data = step.o;
  args.kv = cache.layer(step.layer_idx);
  args.batch = cache.step();
  args.softmax_scale = decode_attention.softmax_scale();
  return prefill_attention(args, options.device, nullptr);
}

Status Session::prefill(std::span<const int32_t> tokens,
                        const std::function<void(int64_t done, int64_t total)>& progress) {
  LD_RETURN_IF_ERROR(impl_->check_tokens(tokens));
  const auto chunk = static_cast<size_t>(impl_->options.prefill_chunk);
  for (size_t done = 0; done < tokens.size();) {
    const size_t count = std::min(chunk, tokens.size() - done);
    LD_RETURN_IF_ERROR(
        impl_->step(tokens.subspan(done, count), false, done + count == tokens.size()));
    done += count;
    if (progress) progress(static_cast<int64_t>(done), static_cast<int64_t>(tokens.size()));
  }
  return Status();
}

Status Session::decode(int32_t token) {
  const std::array<int32_t, 1> tokens = {token};
  LD_RETURN_IF_ERROR(impl_->check_tokens(tokens));
  LD_RETURN_IF_ERROR(impl_->step(tokens, true, true));
  impl_->decode_attention.count_step();
  return Status();
}

const KvCache& Session::cache() const { return impl_->cache; }

Status Session::restore(int64_t num_tokens, std::span<const float> logits,
                        const std::function<Status()>& fill) {
  const int64_t context_len = impl_->options.context_len;
  const auto vocab_size = static_cast<size_t>(impl_->model->config().vocab_size);
  if (num_tokens < 0 || num_tokens > context_len) {
    return invalid_argument("num_tokens is {}; the context allows 0 to {}", num_tokens,
                            context_len);
  }
  if (logits.size() != (num_tokens == 0 ? 0 : vocab_size)) {
    return invalid_argument("logits has {} values; {} are needed", logits.size(),
                            num_tokens == 0 ? 0 : vocab_size);
  }
  impl_->num_tokens = 0;
  impl_->logits.clear();
  LD_RETURN_IF_ERROR(impl_->cache.free_sequence(impl_->sequence));
  LD_ASSIGN_OR_RETURN(impl_->sequence, impl_->cache.add_sequence());
  if (num_tokens == 0) return Status();
  const std::array<SequenceId, 1> sequences = {impl_->sequence};
  const std::array<int32_t, 1> new_tokens = {static_cast<int32_t>(num_tokens)};
  LD_RETURN_IF_ERROR(impl_->cache.reserve(sequences, new_tokens));
  LD_RETURN_IF_ERROR(fill());
  for (int32_t l = 0; l < impl_->cache.desc().num_layers; ++l) {
    LD_RETURN_IF_ERROR(impl_->cache.mark_appended(l));
  }
  LD_RETURN_IF_ERROR(impl_->cache.commit());
  impl_->num_tokens = num_tokens;
  impl_->logits.assign(logits.begin(), logits.end());
  return Status();
}

std::span<const float> Session::logits() const { return impl_->logits; }
int64_t Session::num_tokens() const { return impl_->num_tokens; }
const SessionOptions& Session::options() const { return impl_->options; }
std::string Session::kernel_name() const { return impl_->decode_attention.kernel_name(); }

SessionStats Session::stats() const {
  SessionStats stats;
  impl_->decode_attention.fill(&stats);
  stats.prefill_times = impl_->prefill_times;
  stats.decode_times = impl_->decode_times;
  const KvFormat& format = impl_->cache.desc().format;
  const int64_t pages = impl_->cache.desc().num_pages - impl_->cache.num_free_pages();
  const auto page_bytes = static_cast<int64_t>(format.bytes_per_token() * format.page_size);
  const int64_t ring_bytes = format.keys == KeyEncoding::kTwoPlane
                                 ? format.num_kv_heads * int64_t{format.key_dim} *
                                       dtype_bytes(format.dtype) * format.recent_ring_tokens()
                                 : 0;
  stats.kv_bytes = impl_->model->config().num_layers * (pages * page_bytes + ring_bytes);
  return stats;
}

}  // namespace longdecode::runner
