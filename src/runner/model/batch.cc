#include "runner/model/batch.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/errors.h"
#include "base/integer_math.h"
#include "base/status_macros.h"
#include "runner/model/stopwatch.h"
#include "runner/model/token_checks.h"

namespace longdecode::runner {
namespace {

// A prompt whose sequence is in the cache.
struct Active {
  int64_t prompt_idx = 0;
  int64_t num_pages = 0;  // that it needs in the end
  int64_t tokens_left = 0;
  bool has_ended = false;
  BatchMember member;
};

// The last token is not fed.
int64_t pages_needed(const BatchPrompt& prompt, const BatchTarget& target) {
  const auto tokens = static_cast<int64_t>(prompt.tokens.size()) + prompt.max_tokens - 1;
  return ceil_div(tokens, target.cache->desc().format.page_size);
}

class BatchRun {
 public:
  BatchRun(const BatchRequest& request, const BatchTarget& target)
      : request_(request), target_(target), pages_left_(target.cache->num_free_pages()) {
    logits_.resize(static_cast<size_t>(target.vocab_size));
  }
  ~BatchRun() {
    for (const Active& active : active_) (void)target_.cache->free_sequence(active.member.sequence);
    target_.runner->end_batch();
  }
  BatchRun(const BatchRun&) = delete;
  BatchRun& operator=(const BatchRun&) = delete;

  Status run() {
    LD_RETURN_IF_ERROR(target_.runner->begin_batch(request_.sampler, request_.banned));
    while (true) {
      LD_RETURN_IF_ERROR(admit());
      if (active_.empty()) return Status();
      LD_RETURN_IF_ERROR(decode());
    }
  }

 private:
  // Fills the places that are free with the next prompts, as far as there are pages.
  Status admit() {
    while (next_prompt_ < static_cast<int64_t>(request_.prompts.size()) &&
           static_cast<int32_t>(active_.size()) < target_.max_batch) {
      const BatchPrompt& prompt = request_.prompts[static_cast<size_t>(next_prompt_)];
      Active active;
      active.prompt_idx = next_prompt_;
      active.tokens_left = prompt.max_tokens;
      active.num_pages = pages_needed(prompt, target_);
      active.member.seed = prompt.seed;
      if (active.num_pages > pages_left_) break;  // check_batch: there are enough once all ended
      ++next_prompt_;
      LD_ASSIGN_OR_RETURN(active.member.sequence, target_.cache->add_sequence());
      pages_left_ -= active.num_pages;
      active_.push_back(active);
      LD_RETURN_IF_ERROR(start(prompt, &active_.back()));
      LD_RETURN_IF_ERROR(drop_ended());
    }
    return Status();
  }

  // Prefill and the first token.
  Status start(const BatchPrompt& prompt, Active* active) {
    Stopwatch watch;
    const auto chunk = static_cast<size_t>(target_.prefill_chunk);
    for (size_t done = 0; done < prompt.tokens.size();) {
      const size_t count = std::min(chunk, prompt.tokens.size() - done);
      const bool is_last = done + count == prompt.tokens.size();
      LD_RETURN_IF_ERROR(
          target_.runner->run({prompt.tokens.subspan(done, count), static_cast<int64_t>(done),
                               false, is_last ? logits_.data() : nullptr, target_.prefill_times},
                              active->member.sequence));
      done += count;
      if (request_.on_prefill) {
        request_.on_prefill(active->prompt_idx, static_cast<int64_t>(done),
                            static_cast<int64_t>(prompt.tokens.size()));
      }
    }
    watch.lap(&target_.prefill_times->total_s);
    LD_ASSIGN_OR_RETURN(
        const int32_t token,
        target_.runner->choose_first(active->member, logits_.data(), target_.decode_times));
    deliver(token, active);
    watch.lap(&target_.decode_times->total_s);
    return error_;
  }

  // Steps until a sequence ends.
  Status decode() {
    int64_t max_steps = std::numeric_limits<int64_t>::max();
    std::vector<BatchMember> members;
    for (const Active& active : active_) {
      max_steps = std::min(max_steps, active.tokens_left);
      members.push_back(active.member);
    }
    const auto on_row = [&](std::span<const int32_t> row) {
      bool all_go_on = true;
      for (size_t i = 0; i < row.size(); ++i) {
        // One that ended may be in a row that was under way.
        if (!active_[i].has_ended) deliver(row[i], &active_[i]);
        all_go_on = all_go_on && !active_[i].has_ended;
      }
      return all_go_on;
    };
    Stopwatch watch;
    const Status status =
        target_.runner->decode_batch(members, max_steps, on_row, target_.decode_times);
    watch.lap(&target_.decode_times->total_s);
    LD_RETURN_IF_ERROR(status);
    LD_RETURN_IF_ERROR(error_);
    return drop_ended();
  }

  void deliver(int32_t token, Active* active) {
    active->member.token = token;
    --active->tokens_left;
    const Result<TokenVerdict> verdict = judge(token, *active);
    if (!verdict.ok() && error_.ok()) error_ = verdict.status();
    active->has_ended =
        !verdict.ok() || *verdict != TokenVerdict::kContinue || active->tokens_left == 0;
  }

  Result<TokenVerdict> judge(int32_t token, const Active& active) const {
    if (token >= 0) return request_.on_token(active.prompt_idx, token);
    return invalid_argument("prompts[{}]: none of the logits is a number above -infinity",
                            active.prompt_idx);
  }

  Status drop_ended() {
    for (size_t i = 0; i < active_.size();) {
      if (!active_[i].has_ended) {
        ++i;
        continue;
      }
      pages_left_ += active_[i].num_pages;
      const SequenceId sequence = active_[i].member.sequence;
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
      LD_RETURN_IF_ERROR(target_.cache->free_sequence(sequence));
    }
    return Status();
  }

  const BatchRequest& request_;
  const BatchTarget& target_;
  int64_t pages_left_;  // that no sequence has or will need
  int64_t next_prompt_ = 0;
  std::vector<Active> active_;
  std::vector<float> logits_;  // of the prompt that is started
  Status error_;               // of a token, or on_token's; the first one
};

Status check_prompt(const BatchPrompt& prompt, const BatchTarget& target, size_t idx) {
  const auto count = static_cast<int64_t>(prompt.tokens.size());
  if (count == 0) return invalid_argument("prompts[{}] has no tokens; 1 or more is needed", idx);
  LD_RETURN_IF_ERROR(
      check_vocabulary(fmt::format("prompts[{}].tokens", idx), prompt.tokens, target.vocab_size));
  if (count > target.context_len) {
    return invalid_argument("prompts[{}] has {} tokens; the context allows {}", idx, count,
                            target.context_len);
  }
  const int64_t room = target.context_len - count + 1;
  if (prompt.max_tokens < 1 || prompt.max_tokens > room) {
    return invalid_argument("prompts[{}].max_tokens is {}; the context allows 1 to {}", idx,
                            prompt.max_tokens, room);
  }
  const int64_t pages = target.cache->desc().num_pages;
  if (pages_needed(prompt, target) <= pages) return Status();
  return invalid_argument("prompts[{}] needs {} pages with its {} tokens to come; num_pages is {}",
                          idx, pages_needed(prompt, target), prompt.max_tokens, pages);
}

}  // namespace

Status check_batch(const BatchRequest& request, const BatchTarget& target) {
  if (request.prompts.empty()) return invalid_argument("prompts is empty; 1 or more is needed");
  if (!request.on_token) return invalid_argument("on_token is empty; a function is needed");
  LD_RETURN_IF_ERROR(check_vocabulary("banned", request.banned, target.vocab_size));
  LD_RETURN_IF_ERROR(Sampler::create(request.sampler).status());
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    LD_RETURN_IF_ERROR(check_prompt(request.prompts[i], target, i));
  }
  return Status();
}

Status run_batch(const BatchRequest& request, const BatchTarget& target) {
  return BatchRun(request, target).run();
}

}  // namespace longdecode::runner
