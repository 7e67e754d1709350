#include "runner/gpu/decode_loop.h"

#include <algorithm>
#include <memory>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/host/status.h"

namespace longdecode::runner {

using cuda::cuda_status;

Result<std::unique_ptr<DecodeLoop>> DecodeLoop::create(GpuDecoder* decoder, StepGraphs* graphs,
                                                       KvCache* cache) {
  std::unique_ptr<DecodeLoop> loop(new DecodeLoop(decoder, graphs, cache));
  for (cudaEvent_t& event : loop->chosen_) {
    LD_RETURN_IF_ERROR(
        cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate"));
  }
  return loop;
}

DecodeLoop::~DecodeLoop() {
  for (cudaEvent_t event : chosen_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

// The lengths of the first step; later ones are counted on the device.
Status DecodeLoop::upload_lens(std::span<const SequenceId> sequences) {
  lens_.clear();
  for (const SequenceId sequence : sequences) {
    LD_ASSIGN_OR_RETURN(const int64_t kv_len, cache_->kv_len(sequence));
    lens_.push_back(static_cast<int32_t>(kv_len) + 1);
  }
  batch_ = static_cast<int32_t>(lens_.size());
  longest_kv_len_ = *std::max_element(lens_.begin(), lens_.end());
  return decoder_->set_kv_lens(lens_);
}

// What sampling needs: a token's position is the number of tokens before it.
Status DecodeLoop::upload_choices(const DecodeLoopRequest& request) {
  first_ = lens_;
  if (request.samples_first) {
    for (int32_t& position : first_) --position;
  }
  num_chosen_ = num_delivered_ = 0;
  LD_RETURN_IF_ERROR(decoder_->set_positions(first_));
  if (request.seeds.empty()) return Status();
  return decoder_->set_seeds(request.seeds);
}

Status DecodeLoop::record_choice() {
  return cuda_status(cudaEventRecord(chosen_[num_chosen_++ % 2], decoder_->stream()),
                     "cudaEventRecord");
}

Status DecodeLoop::sample_first(const DecodeLoopRequest& request) {
  LD_RETURN_IF_ERROR(decoder_->enqueue_sample(batch_, request.sampler));
  return record_choice();
}

Result<TokenVerdict> DecodeLoop::deliver_next(const DecodeLoopRequest& request) {
  LD_RETURN_IF_ERROR(
      cuda_status(cudaEventSynchronize(chosen_[num_delivered_ % 2]), "decode steps"));
  row_.clear();
  for (int32_t b = 0; b < batch_; ++b) {
    row_.push_back(decoder_->chosen(batch_, b, first_[static_cast<size_t>(b)] + num_delivered_));
  }
  ++num_delivered_;
  return request.on_tokens(row_);
}

Status DecodeLoop::reserve(std::span<const SequenceId> sequences, int64_t num_steps) {
  const std::vector<int32_t> new_tokens(sequences.size(), static_cast<int32_t>(num_steps));
  LD_RETURN_IF_ERROR(cache_->reserve(sequences, new_tokens));
  reserved_steps_ = num_steps;
  return Status();
}

Status DecodeLoop::commit(int64_t num_steps) {
  if (num_steps < reserved_steps_) {
    const std::vector<int32_t> new_tokens(static_cast<size_t>(batch_),
                                          static_cast<int32_t>(num_steps));
    LD_RETURN_IF_ERROR(cache_->shrink_step(new_tokens));
  }
  reserved_steps_ = 0;
  for (int32_t l = 0; num_steps > 0 && l < cache_->desc().num_layers; ++l) {
    LD_RETURN_IF_ERROR(cache_->mark_appended(l));
  }
  return cache_->commit();
}

Status DecodeLoop::launch(const StepKind& kind, int64_t longest_kv_len) {
  return graphs_->launch(kind, longest_kv_len, [&]() -> Status {
    LD_RETURN_IF_ERROR(decoder_->enqueue_decode(*cache_, kAllParts));
    if (kind.samples) LD_RETURN_IF_ERROR(decoder_->enqueue_sample(kind.batch, kind.sampler));
    return decoder_->enqueue_end(kind.batch);
  });
}

Status DecodeLoop::step(std::span<const SequenceId> sequences, std::span<const int32_t> ids) {
  LD_RETURN_IF_ERROR(upload_lens(sequences));
  LD_RETURN_IF_ERROR(decoder_->set_ids(ids));
  LD_RETURN_IF_ERROR(reserve(sequences, 1));
  LD_RETURN_IF_ERROR(launch({batch_, false, {}}, longest_kv_len_));
  return commit(1);
}

Result<DecodeLoopResult> DecodeLoop::run(std::span<const SequenceId> sequences,
                                         const DecodeLoopRequest& request) {
  Result<DecodeLoopResult> result = run_steps(sequences, request);
  // The steps of the window are lost, but may have overwritten recent keys: the cache is told.
  if (!result.ok() && reserved_steps_ > 0) (void)cache_->mark_appended(0);
  return result;
}

Result<DecodeLoopResult> DecodeLoop::run_steps(std::span<const SequenceId> sequences,
                                               const DecodeLoopRequest& request) {
  reserved_steps_ = 0;  // an error may have left a window open
  LD_RETURN_IF_ERROR(upload_lens(sequences));
  LD_RETURN_IF_ERROR(upload_choices(request));
  const StepKind kind{batch_, true, request.sampler};
  const int64_t first_token = request.samples_first ? 1 : 0;
  if (request.samples_first) LD_RETURN_IF_ERROR(sample_first(request));
  int64_t launched = 0;
  int64_t in_window = 0;
  TokenVerdict verdict = TokenVerdict::kContinue;
  while (launched < request.max_steps && verdict == TokenVerdict::kContinue) {
    if (in_window == reserved_steps_) {
      if (in_window > 0) LD_RETURN_IF_ERROR(commit(in_window));
      in_window = 0;
      LD_RETURN_IF_ERROR(reserve(sequences, std::min(kWindowSteps, request.max_steps - launched)));
    }
    LD_RETURN_IF_ERROR(launch(kind, longest_kv_len_ + launched));
    LD_RETURN_IF_ERROR(record_choice());
    ++launched;
    ++in_window;
    if (request.on_tokens && num_chosen_ - num_delivered_ == 2) {
      LD_ASSIGN_OR_RETURN(verdict, deliver_next(request));
    }
  }
  while (request.on_tokens && num_delivered_ < num_chosen_ &&
         (request.keeps_later_tokens || verdict == TokenVerdict::kContinue)) {
    LD_ASSIGN_OR_RETURN(verdict, deliver_next(request));
  }
  LD_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(decoder_->stream()), "decode steps"));
  // Token i is fed by step i + 1 - first_token: the tokens before the last one delivered, and that
  // one unless it is dropped or never was fed.
  int64_t wanted = launched;
  if (!request.keeps_later_tokens && verdict != TokenVerdict::kContinue) {
    const int64_t kept = num_delivered_ - (verdict == TokenVerdict::kStopAndDrop ? 1 : 0);
    wanted = std::min(launched, kept + 1 - first_token);
  }
  LD_RETURN_IF_ERROR(finish(sequences, launched - wanted, in_window));
  return DecodeLoopResult{wanted, wanted < launched};
}

// Commits every step that was launched and takes the `surplus` last ones back: so the cache knows
// how far the ring of recent keys has been overwritten.
Status DecodeLoop::finish(std::span<const SequenceId> sequences, int64_t surplus,
                          int64_t window_steps) {
  if (reserved_steps_ > 0) LD_RETURN_IF_ERROR(commit(window_steps));
  for (const SequenceId sequence : sequences) {
    LD_RETURN_IF_ERROR(cache_->truncate(sequence, surplus));
  }
  return Status();
}

}  // namespace longdecode::runner
