// Which layers of the reserved step have their tokens.
#ifndef LONGDECODE_CACHE_STEP_LAYERS_H_
#define LONGDECODE_CACHE_STEP_LAYERS_H_

#include <cstdint>
#include <vector>

#include "longdecode/status.h"

namespace longdecode {

class StepLayers {
 public:
  explicit StepLayers(int32_t num_layers) : states_(static_cast<size_t>(num_layers)) {}

  void reset();  // a new step: no layer is written
  // kFailedPrecondition when the layer was written before, or partly by an append that failed.
  Status check_pending(int32_t layer_idx) const;
  void set_written(int32_t layer_idx) { states_[layer_idx] = State::kWritten; }
  void set_failed(int32_t layer_idx) { states_[layer_idx] = State::kFailed; }
  // kFailedPrecondition when a layer was written or partly written.
  Status check_all_pending() const;
  Status check_all_written() const;  // kFailedPrecondition names the layers that are not

 private:
  enum class State : uint8_t { kPending, kWritten, kFailed };

  std::vector<State> states_;
};

}  // namespace longdecode

#endif  // LONGDECODE_CACHE_STEP_LAYERS_H_
