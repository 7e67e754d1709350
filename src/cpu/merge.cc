#include "cpu/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace longdecode::cpu {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();
// Floats of a thread's work below which starting it costs more than it saves.
constexpr int64_t kMinFloatsPerThread = 1 << 15;

void merge_row(const MergeArgs& args, int64_t row) {
  const auto lse_of = [&](int32_t p) { return args.partial_lse[p * args.num_rows + row]; };
  float max = kEmpty;
  for (int32_t p = 0; p < args.num_partials; ++p) max = std::max(max, lse_of(p));
  float sum = 0.0f;
  for (int32_t p = 0; p < args.num_partials; ++p) {
    if (lse_of(p) != kEmpty) sum += std::exp(lse_of(p) - max);
  }
  const float lse = sum == 0.0f ? kEmpty : max + std::log(sum);
  float* o = args.o + row * args.dim;
  std::fill_n(o, args.dim, 0.0f);
  for (int32_t p = 0; p < args.num_partials; ++p) {
    if (lse_of(p) == kEmpty) continue;
    const float weight = std::exp(lse_of(p) - max) / sum;
    const float* partial = args.partial_o + (p * args.num_rows + row) * args.dim;
    for (int64_t c = 0; c < args.dim; ++c) o[c] += weight * partial[c];
  }
  if (args.lse != nullptr) args.lse[row] = lse;
}

}  // namespace

void merge(const MergeArgs& args, const DeviceInfo& device) {
  const int64_t floats = args.num_rows * args.dim * args.num_partials;
  const auto num_threads =
      static_cast<int>(std::clamp<int64_t>(floats / kMinFloatsPerThread, 1, device.num_threads));
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t row = 0; row < args.num_rows; ++row) merge_row(args, row);
}

}  // namespace longdecode::cpu
