#include "cache/step_layers.h"

#include <algorithm>
#include <string>

#include "base/errors.h"
#include "base/status_macros.h"

namespace longdecode {

void StepLayers::reset() { std::fill(states_.begin(), states_.end(), State::kPending); }

Status StepLayers::check_pending(int32_t layer_idx) const {
  switch (states_[layer_idx]) {
    case State::kPending:
      return {};
    case State::kWritten:
      return failed_precondition(
          "layer_idx is {}, whose tokens of this step are already written; allowed: every layer "
          "once (to write others, reserve again)",
          layer_idx);
    case State::kFailed:
      break;
  }
  return failed_precondition(
      "layer_idx is {}, whose append failed half-way in this step; reserve again", layer_idx);
}

Status StepLayers::check_all_pending() const {
  for (size_t l = 0; l < states_.size(); ++l) {
    LD_RETURN_IF_ERROR(check_pending(static_cast<int32_t>(l)));
  }
  return {};
}

Status StepLayers::check_all_written() const {
  std::string missing;  // "0, 3-5"
  const auto num_layers = static_cast<int32_t>(states_.size());
  for (int32_t l = 0; l < num_layers; ++l) {
    if (states_[l] == State::kWritten) continue;
    int32_t last = l;
    while (last + 1 < num_layers && states_[last + 1] != State::kWritten) ++last;
    if (!missing.empty()) missing += ", ";
    missing += last == l ? fmt::format("{}", l) : fmt::format("{}-{}", l, last);
    l = last;
  }
  if (missing.empty()) return {};
  return failed_precondition(
      "commit of a step without the tokens of layers {} (of {}); append each layer, or "
      "mark_appended those that a replayed graph or another kernel has written",
      missing, num_layers);
}

}  // namespace longdecode
