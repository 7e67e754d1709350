#include "tests/support/guarded_memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace longdecode::testing {
namespace {

constexpr int64_t kCanaryBytes = 256;
constexpr int64_t kAlignment = 64;

uint8_t canary(int64_t i) { return static_cast<uint8_t>(0xa5 ^ (i * 7)); }

}  // namespace

GuardedBuffer::GuardedBuffer(int64_t num_bytes)
    : memory_(static_cast<size_t>(num_bytes + 2 * kCanaryBytes + kAlignment), kPoisonByte),
      num_bytes_(num_bytes) {
  const auto address = reinterpret_cast<uintptr_t>(memory_.data()) + kCanaryBytes;
  offset_ = kCanaryBytes + static_cast<int64_t>((kAlignment - address % kAlignment) % kAlignment);
  for (int64_t i = 0; i < kCanaryBytes; ++i) {
    memory_[static_cast<size_t>(offset_ - kCanaryBytes + i)] = canary(i);
    memory_[static_cast<size_t>(offset_ + num_bytes_ + i)] = canary(i);
  }
}

bool GuardedBuffer::canaries_intact() const {
  for (int64_t i = 0; i < kCanaryBytes; ++i) {
    if (memory_[static_cast<size_t>(offset_ - kCanaryBytes + i)] != canary(i)) return false;
    if (memory_[static_cast<size_t>(offset_ + num_bytes_ + i)] != canary(i)) return false;
  }
  return true;
}

uint64_t GuardedBuffer::fingerprint() const {
  uint64_t hash = 0xcbf29ce484222325u;
  const uint8_t* bytes = memory_.data() + offset_;
  int64_t i = 0;
  for (; i + 8 <= num_bytes_; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, 8);
    hash = (hash ^ word) * 0x100000001b3u;
    hash ^= hash >> 29;
  }
  for (; i < num_bytes_; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

SparseMemory::SparseMemory(int64_t num_bytes) : num_bytes_(num_bytes) {
  void* memory = mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap of a sparse pool");
    std::abort();
  }
  data_ = static_cast<uint8_t*>(memory);
}

SparseMemory::~SparseMemory() { munmap(data_, static_cast<size_t>(num_bytes_)); }

}  // namespace longdecode::testing
