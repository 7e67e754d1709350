// Memory for kernel tests: canaries on both sides, poison inside, page-granular sparse pools.
#ifndef LONGDECODE_TESTS_SUPPORT_GUARDED_MEMORY_H_
#define LONGDECODE_TESTS_SUPPORT_GUARDED_MEMORY_H_

#include <cstdint>
#include <vector>

namespace longdecode::testing {

// Every 16-bit and 32-bit word of it is a NaN in f32, f16 and bf16, and a NaN step and zero.
inline constexpr uint8_t kPoisonByte = 0xff;

// num_bytes of poison, 64-byte aligned, between two canaries.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(int64_t num_bytes = 0);

  template <typename T = uint8_t>
  T* data() {
    return reinterpret_cast<T*>(memory_.data() + offset_);
  }
  int64_t num_bytes() const { return num_bytes_; }
  bool canaries_intact() const;
  // A hash of the contents: equal before and after a run for what the run may only read.
  uint64_t fingerprint() const;

 private:
  std::vector<uint8_t> memory_;
  int64_t offset_ = 0;
  int64_t num_bytes_ = 0;
};

// Address space without memory behind it until it is written: pools with page ids above 2^16.
// Reads as zeros where nothing was written, which is wrong data too.
class SparseMemory {
 public:
  explicit SparseMemory(int64_t num_bytes);
  ~SparseMemory();
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace longdecode::testing

#endif  // LONGDECODE_TESTS_SUPPORT_GUARDED_MEMORY_H_
