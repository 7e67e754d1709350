// Seconds of the steady clock.
#ifndef LONGDECODE_RUNNER_MODEL_STOPWATCH_H_
#define LONGDECODE_RUNNER_MODEL_STOPWATCH_H_

#include <chrono>

namespace longdecode::runner {

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

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_STOPWATCH_H_
