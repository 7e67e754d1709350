// What every call that takes tokens refuses.
#ifndef LONGDECODE_RUNNER_MODEL_TOKEN_CHECKS_H_
#define LONGDECODE_RUNNER_MODEL_TOKEN_CHECKS_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "base/errors.h"

namespace longdecode::runner {

inline Status check_vocabulary(std::string_view name, std::span<const int32_t> tokens,
                               int32_t vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    return invalid_argument("{}[{}] is {}; the vocabulary allows 0 to {}", name, i, tokens[i],
                            vocab_size - 1);
  }
  return Status();
}

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_TOKEN_CHECKS_H_
