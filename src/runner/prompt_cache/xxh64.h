// The 64-bit hash XXH64 (seed 0), fed in pieces. It finds accidents, not attacks.
// Definition: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
#ifndef LONGDECODE_RUNNER_PROMPT_CACHE_XXH64_H_
#define LONGDECODE_RUNNER_PROMPT_CACHE_XXH64_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace longdecode::runner {

class Xxh64 {
 public:
  void update(std::span<const uint8_t> bytes);
  uint64_t digest() const;  // of everything so far; more may follow

  static uint64_t hash(std::span<const uint8_t> bytes) {
    Xxh64 state;
    state.update(bytes);
    return state.digest();
  }

 private:
  static constexpr size_t kStripeBytes = 32;
  void consume(const uint8_t* stripe);

  uint64_t lanes_[4] = {0x60ea27eeadc0b5d6, 0xc2b2ae3d27d4eb4f, 0, 0x61c8864e7a143579};
  uint8_t pending_[kStripeBytes] = {};
  size_t num_pending_ = 0;
  uint64_t num_bytes_ = 0;
};

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_PROMPT_CACHE_XXH64_H_
