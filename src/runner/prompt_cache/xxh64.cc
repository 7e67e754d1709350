#include "runner/prompt_cache/xxh64.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace longdecode::runner {
namespace {

constexpr uint64_t kPrime1 = 0x9e3779b185ebca87;
constexpr uint64_t kPrime2 = 0xc2b2ae3d27d4eb4f;
constexpr uint64_t kPrime3 = 0x165667b19e3779f9;
constexpr uint64_t kPrime4 = 0x85ebca77c2b2ae63;
constexpr uint64_t kPrime5 = 0x27d4eb2f165667c5;

template <typename T>
T load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

uint64_t mix(uint64_t lane, uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

uint64_t merge(uint64_t hash, uint64_t lane) { return (hash ^ mix(0, lane)) * kPrime1 + kPrime4; }

}  // namespace

void Xxh64::consume(const uint8_t* stripe) {
  for (int i = 0; i < 4; ++i) lanes_[i] = mix(lanes_[i], load<uint64_t>(stripe + 8 * i));
}

void Xxh64::update(std::span<const uint8_t> bytes) {
  num_bytes_ += bytes.size();
  if (num_pending_ > 0) {
    const size_t count = std::min(bytes.size(), kStripeBytes - num_pending_);
    std::copy_n(bytes.data(), count, pending_ + num_pending_);
    num_pending_ += count;
    bytes = bytes.subspan(count);
    if (num_pending_ < kStripeBytes) return;
    consume(pending_);
    num_pending_ = 0;
  }
  for (; bytes.size() >= kStripeBytes; bytes = bytes.subspan(kStripeBytes)) consume(bytes.data());
  std::copy_n(bytes.data(), bytes.size(), pending_);
  num_pending_ = bytes.size();
}

uint64_t Xxh64::digest() const {
  uint64_t hash = kPrime5;
  if (num_bytes_ >= kStripeBytes) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = merge(hash, lane);
  }
  hash += num_bytes_;
  size_t i = 0;
  for (; i + 8 <= num_pending_; i += 8) {
    hash = std::rotl(hash ^ mix(0, load<uint64_t>(pending_ + i)), 27) * kPrime1 + kPrime4;
  }
  if (i + 4 <= num_pending_) {
    hash = std::rotl(hash ^ load<uint32_t>(pending_ + i) * kPrime1, 23) * kPrime2 + kPrime3;
    i += 4;
  }
  for (; i < num_pending_; ++i) hash = std::rotl(hash ^ pending_[i] * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace longdecode::runner
