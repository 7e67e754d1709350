// Requests for batches of prompts whose tokens are kept.
#ifndef LONGDECODE_TESTS_SUPPORT_BATCH_TEXTS_H_
#define LONGDECODE_TESTS_SUPPORT_BATCH_TEXTS_H_

#include <cstdint>
#include <vector>

#include "runner/model/batch.h"

namespace longdecode::runner {

using Texts = std::vector<std::vector<int32_t>>;  // [prompts]

// Tokens go to `texts`, which has to outlive the request.
inline BatchRequest text_request(const std::vector<BatchPrompt>& prompts,
                                 const SamplerOptions& sampler, Texts* texts) {
  texts->assign(prompts.size(), {});
  BatchRequest request;
  request.prompts = prompts;
  request.sampler = sampler;
  request.on_token = [texts](int64_t prompt_idx, int32_t token) {
    (*texts)[static_cast<size_t>(prompt_idx)].push_back(token);
    return TokenVerdict::kContinue;
  };
  return request;
}

}  // namespace longdecode::runner

#endif  // LONGDECODE_TESTS_SUPPORT_BATCH_TEXTS_H_
