#include "cpu/ffd_scan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "cpu/ffd_scan_x86.h"

namespace longdecode::cpu {
namespace {

constexpr int32_t kGroupBytes = 64;
constexpr int32_t kUnitBytes = 512;

// Word by word, as the code plane stores it; see two_plane-inl.h for the order.
void scan_tiles_portable(const uint8_t* codes, int32_t num_blocks, int32_t tile_begin,
                         int32_t tile_end, const FoldedRows& rows, int32_t num_rows,
                         uint16_t* hits) {
  const int32_t row_bytes = num_blocks * kGroupBytes;
  for (int32_t tile = tile_begin; tile < tile_end; ++tile) {
    for (int32_t r = 0; r < num_rows; ++r) {
      int32_t sums[kTileTokens] = {};
      for (int32_t block = 0; block < num_blocks; ++block) {
        const int32_t unit = tile * num_blocks + block;
        const int32_t shift = 2 * (unit % 4);
        const uint8_t* bytes = codes + unit / 4 * kUnitBytes;
        const int8_t* q = rows.q + r * row_bytes + block * kGroupBytes;
        for (int32_t i = 0; i < kUnitBytes; ++i) {
          const int32_t token = i / kGroupBytes + i / 4 % 2 * 8;
          sums[token] += (bytes[i] >> shift & 3) * q[i % kGroupBytes];
        }
      }
      uint16_t mask = 0;
      for (int32_t bit = 0; bit < kTileTokens; ++bit) {
        if (sums[hit_token(bit)] >= rows.thresholds[r]) mask |= static_cast<uint16_t>(1u << bit);
      }
      *hits++ = mask;
    }
  }
}

std::vector<ScanKernel> runnable_kernels() {
  std::vector<ScanKernel> kernels;
  if (cpu_has_avx512_vnni()) {
    if (cpu_has_gfni()) kernels.push_back({"avx512_gfni", scan_tiles_avx512_gfni});
    kernels.push_back({"avx512_vnni", scan_tiles_avx512_vnni});
  }
  if (cpu_has_avx2()) kernels.push_back({"avx2", scan_tiles_avx2});
  kernels.push_back({"portable", scan_tiles_portable});
  return kernels;
}

}  // namespace

std::span<const ScanKernel> scan_kernels() {
  static const std::vector<ScanKernel> kernels = runnable_kernels();
  return kernels;
}

const ScanKernel& select_scan_kernel(const DeviceInfo& device) {
  const std::span<const ScanKernel> kernels = scan_kernels();
  size_t first = 0;
  while (!device.has_avx512_vnni && std::string_view(kernels[first].isa).starts_with("avx512")) {
    ++first;
  }
  return kernels[first];
}

float uncapped_threshold(float pseudo_max, const FfdOptions& options, float soft_cap) {
  double threshold = static_cast<double>(pseudo_max) - options.delta;
  if (options.certified) threshold -= 0x1p-20 * (std::fabs(pseudo_max) + options.delta);
  if (soft_cap > 0.0f) {
    const double ratio = threshold / soft_cap;
    if (ratio <= -1.0) return -std::numeric_limits<float>::infinity();
    // A saturated m~ rounds to the cap itself; scores that saturate too still reach it.
    threshold = soft_cap * std::atanh(std::min(ratio, 1.0 - 0x1p-20));
  }
  return static_cast<float>(threshold);
}

}  // namespace longdecode::cpu
