// How long work took, and how far it is.
#ifndef LONGDECODE_TOOLS_PROGRESS_H_
#define LONGDECODE_TOOLS_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace longdecode::tool {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  // seconds(), and starts anew.
  double lap() {
    const double passed = seconds();
    start_ = std::chrono::steady_clock::now();
    return passed;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Shows on stderr how far a long task over tokens (or another unit) is. On a terminal: a bar with
// the rate and the time left, rewritten in place; else, if forced, a plain line per call.
class Progress {
 public:
  Progress(std::string task, bool forced, std::string unit = "tokens");
  void operator()(int64_t done, int64_t total) const;

 private:
  std::string task_;
  std::string unit_;
  bool terminal_;
  bool enabled_;
  Stopwatch watch_;
};

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_PROGRESS_H_
