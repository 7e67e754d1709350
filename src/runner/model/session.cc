#include "runner/model/session.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "base/integer_math.h"
#include "base/status_macros.h"
#include "runner/model/batch.h"
#include "runner/model/step_runner.h"
#include "runner/model/stopwatch.h"
#include "runner/model/token_checks.h"

namespace longdecode::runner {
namespace {

constexpr int32_t kMaxCpuBatch = 1024;

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

Status check_cuda_options(const SessionOptions& options) {
  if (options.kv_dtype != DType::kBF16) {
    return unsupported("kv_dtype is {}; models on CUDA keep keys and values in bf16 ({})",
                       static_cast<int32_t>(options.kv_dtype), static_cast<int32_t>(DType::kBF16));
  }
  if (options.observer) return unsupported("observer: models on CUDA have none; use the CPU");
  return Status();
}

Status resolve_options(const ModelConfig& config, SessionOptions* options) {
  if (options->device.type == DeviceType::kCuda) LD_RETURN_IF_ERROR(check_cuda_options(*options));
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
  const bool on_cuda = options->device.type == DeviceType::kCuda;
  const int32_t max_batch = on_cuda ? kMaxCudaBatch : kMaxCpuBatch;
  if (options->max_batch < 1 || options->max_batch > max_batch) {
    return invalid_argument("max_batch is {}; 1 to {} is allowed", options->max_batch, max_batch);
  }
  if (options->num_pages < 0) {
    return invalid_argument("num_pages is {}; 0 or more is allowed", options->num_pages);
  }
  return check_layers(config, *options);
}

KvFormat cache_format(const ModelConfig& config, const SessionOptions& options) {
  const KeyEncoding keys =
      options.method == Method::kFfd ? KeyEncoding::kTwoPlane : KeyEncoding::kPlain;
  return KvFormat::gqa(keys, options.kv_dtype, config.num_kv_heads, config.head_dim,
                       options.page_size);
}

Result<std::unique_ptr<StepRunner>> make_step_runner(std::shared_ptr<const Model> model,
                                                     const SessionOptions& options,
                                                     KvCache* cache) {
  if (options.device.type == DeviceType::kCpu) return make_cpu_step_runner(model, options, cache);
#ifdef LONGDECODE_HAS_CUDA
  return make_gpu_step_runner(model, options, cache);
#else
  return unsupported("device.type is {}; this build runs models on the CPU (0)",
                     static_cast<int32_t>(options.device.type));
#endif
}

Result<KvCache> make_cache(const ModelConfig& config, const SessionOptions& options) {
  KvCacheDesc desc;
  desc.format = cache_format(config, options);
  LD_RETURN_IF_ERROR(validate(desc.format));  // page_size divides below
#ifdef LONGDECODE_HAS_CUDA
  if (options.device.type == DeviceType::kCuda) {
    LD_RETURN_IF_ERROR(check_gpu_model(config, options, desc.format));
  }
#endif
  desc.num_layers = config.num_layers;
  desc.num_pages = options.num_pages > 0
                       ? options.num_pages
                       : options.max_batch * ceil_div(options.context_len, options.page_size);
  desc.max_sequences = options.max_batch;
  desc.max_kv_len = options.context_len;
  return KvCache::create(desc, options.device);
}

}  // namespace

struct Session::Impl {
  Impl(std::shared_ptr<const Model> the_model, SessionOptions the_options, KvCache the_cache)
      : model(std::move(the_model)), options(std::move(the_options)), cache(std::move(the_cache)) {}

  std::shared_ptr<const Model> model;
  SessionOptions options;
  KvCache cache;
  SequenceId sequence = 0;
  std::unique_ptr<StepRunner> runner;  // refers to the cache
  std::vector<float> logits;
  int64_t num_tokens = 0;
  StepTimes prefill_times;
  StepTimes decode_times;

  Status check_tokens(std::span<const int32_t> tokens) const;
  Status step(std::span<const int32_t> tokens, bool is_decode, bool want_logits);
  Result<int64_t> generate(const GenerateRequest& request);
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
  LD_ASSIGN_OR_RETURN(KvCache cache, make_cache(config, resolved));
  auto impl = std::make_unique<Impl>(std::move(model), std::move(resolved), std::move(cache));
  LD_ASSIGN_OR_RETURN(impl->sequence, impl->cache.add_sequence());
  LD_ASSIGN_OR_RETURN(impl->runner, make_step_runner(impl->model, impl->options, &impl->cache));
  return Session(std::move(impl));
}

Status Session::Impl::check_tokens(std::span<const int32_t> tokens) const {
  if (tokens.empty()) return invalid_argument("tokens is empty; 1 or more is needed");
  LD_RETURN_IF_ERROR(check_vocabulary("tokens", tokens, model->config().vocab_size));
  const auto count = static_cast<int64_t>(tokens.size());
  if (count > options.context_len - num_tokens) {
    return invalid_argument("{} tokens after {} exceed the context of {}", count, num_tokens,
                            options.context_len);
  }
  return Status();
}

Status Session::Impl::step(std::span<const int32_t> tokens, bool is_decode, bool want_logits) {
  Stopwatch watch;
  StepTimes& times = is_decode ? decode_times : prefill_times;
  if (want_logits) logits.resize(static_cast<size_t>(model->config().vocab_size));
  LD_RETURN_IF_ERROR(runner->run(
      {tokens, num_tokens, is_decode, want_logits ? logits.data() : nullptr, &times}, sequence));
  num_tokens += static_cast<int64_t>(tokens.size());
  watch.lap(&times.total_s);
  return Status();
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
  return impl_->step(tokens, true, true);
}

Result<int64_t> Session::Impl::generate(const GenerateRequest& request) {
  const int64_t room = options.context_len - num_tokens;
  if (num_tokens == 0) return failed_precondition("generate after no token: prefill first");
  if (!request.on_token) return invalid_argument("on_token is empty; a function is needed");
  if (request.max_tokens < 1 || request.max_tokens - 1 > room) {
    return invalid_argument("max_tokens is {}; the context allows 1 to {}", request.max_tokens,
                            room + 1);
  }
  LD_RETURN_IF_ERROR(check_vocabulary("banned", request.banned, model->config().vocab_size));
  Stopwatch watch;
  int32_t last = -1;  // that the caller wants
  GenerateRequest watched = request;
  watched.on_token = [&](int32_t token) {
    const TokenVerdict verdict = request.on_token(token);
    if (verdict != TokenVerdict::kStopAndDrop) last = token;
    return verdict;
  };
  LD_ASSIGN_OR_RETURN(const Generation generation,
                      runner->generate(watched, sequence, logits.data()));
  num_tokens += generation.num_fed;
  watch.lap(&decode_times.total_s);
  // The device went on with a token that the caller dropped: its logits are gone. Those before the
  // first token are still here.
  if (generation.logits_are_later && generation.num_fed > 0) {
    LD_RETURN_IF_ERROR(cache.truncate(sequence, 1));
    --num_tokens;
    LD_RETURN_IF_ERROR(step({&last, 1}, true, true));
  }
  return generation.num_fed;
}

Result<int64_t> Session::generate(const GenerateRequest& request) {
  return impl_->generate(request);
}

Status Session::generate_batch(const BatchRequest& request) {
  BatchTarget target;
  target.vocab_size = impl_->model->config().vocab_size;
  target.context_len = impl_->options.context_len;
  target.max_batch = impl_->options.max_batch;
  target.prefill_chunk = impl_->options.prefill_chunk;
  target.cache = &impl_->cache;
  target.runner = impl_->runner.get();
  target.prefill_times = &impl_->prefill_times;
  target.decode_times = &impl_->decode_times;
  LD_RETURN_IF_ERROR(check_batch(request, target));
  impl_->num_tokens = 0;
  impl_->logits.clear();
  LD_RETURN_IF_ERROR(impl_->cache.free_sequence(impl_->sequence));
  Status status = run_batch(request, target);
  LD_ASSIGN_OR_RETURN(impl_->sequence, impl_->cache.add_sequence());
  return status;
}

bool Session::generates() const { return impl_->runner->generates(); }

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
std::string Session::kernel_name() const { return impl_->runner->kernel_name(); }

SessionStats Session::stats() const {
  SessionStats stats;
  impl_->runner->fill(&stats);
  stats.prefill_times = impl_->prefill_times;
  stats.decode_times = impl_->decode_times;
  const KvFormat& format = impl_->cache.desc().format;
  const int64_t pages = impl_->cache.desc().num_pages - impl_->cache.num_free_pages();
  const auto page_bytes = static_cast<int64_t>(format.bytes_per_token() * format.page_size);
  const int64_t ring_bytes = format.keys == KeyEncoding::kTwoPlane
                                 ? format.num_kv_heads * int64_t{format.key_dim} *
                                       dtype_bytes(format.dtype) * format.recent_ring_tokens() *
                                       impl_->options.max_batch
                                 : 0;
  stats.kv_bytes = impl_->model->config().num_layers * (pages * page_bytes + ring_bytes);
  return stats;
}

}  // namespace longdecode::runner
