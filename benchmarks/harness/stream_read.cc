#include "benchmarks/harness/stream_read.h"

#include <algorithm>
#include <bit>

// Highway compiles the namespace below once per instruction set by including this file again.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "benchmarks/harness/stream_read.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace longdecode::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Four independent loads per step; hardware prefetchers do the rest (software prefetch: no gain).
uint64_t read_blocks(const uint64_t* words, int64_t num_words) {
  const hn::ScalableTag<uint64_t> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= num_words; i += 4 * lanes) {
    sum0 = hn::Xor(sum0, hn::LoadU(d, words + i));
    sum1 = hn::Xor(sum1, hn::LoadU(d, words + i + lanes));
    sum2 = hn::Xor(sum2, hn::LoadU(d, words + i + 2 * lanes));
    sum3 = hn::Xor(sum3, hn::LoadU(d, words + i + 3 * lanes));
  }
  HWY_ALIGN uint64_t out[HWY_MAX_BYTES / sizeof(uint64_t)];
  hn::Store(hn::Xor(hn::Xor(sum0, sum1), hn::Xor(sum2, sum3)), d, out);
  uint64_t sum = 0;
  for (int64_t lane = 0; lane < lanes; ++lane) sum ^= out[lane];
  for (; i < num_words; ++i) sum ^= words[i];
  return sum;
}

}  // namespace longdecode::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longdecode::bench {

HWY_EXPORT(read_blocks);

// Dealt out as the threads come for them, as kernels deal out their work: with one half each, a CPU
// that something else slows down would make the floor higher than what memory allows.
constexpr int64_t kPartBytes = int64_t{1} << 20;

uint64_t stream_read(const void* memory, int64_t num_bytes, int32_t num_threads) {
  const auto* words = static_cast<const uint64_t*>(memory);
  const int64_t num_blocks = num_bytes / 256;
  const int64_t num_parts = std::max<int64_t>(num_threads, num_bytes / kPartBytes);
  uint64_t sum = 0;
#pragma omp parallel for num_threads(num_threads) reduction(^ : sum) schedule(dynamic)
  for (int64_t part = 0; part < num_parts; ++part) {
    const int64_t begin = num_blocks * part / num_parts;
    const int64_t end = num_blocks * (part + 1) / num_parts;
    sum ^= HWY_DYNAMIC_DISPATCH(read_blocks)(words + begin * 32, (end - begin) * 32);
  }
  return sum;
}

}  // namespace longdecode::bench
#endif  // HWY_ONCE
