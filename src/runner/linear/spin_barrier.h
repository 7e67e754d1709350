// A barrier for the threads of one parallel region that meet many times in a millisecond.
#ifndef LONGDECODE_RUNNER_LINEAR_SPIN_BARRIER_H_
#define LONGDECODE_RUNNER_LINEAR_SPIN_BARRIER_H_

#include <hwy/cache_control.h>

#include <atomic>
#include <cstdint>
#include <thread>

namespace longdecode::runner {

// Waiting threads spin for some microseconds, as long as the others usually take, then offer their
// core to whoever needs it, perhaps the thread that they wait for.
class SpinBarrier {
 public:
  // Returns when `count` threads have called it; what they wrote before is visible then.
  void wait(int32_t count) {
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int32_t spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins < kSpins) {
        hwy::Pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  static constexpr int32_t kSpins = 500;  // 10 to 25 us
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_LINEAR_SPIN_BARRIER_H_
