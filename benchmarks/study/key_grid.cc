#include "benchmarks/study/key_grid.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/float_convert.h"
#include "base/status_macros.h"
#include "longdecode/kv_cache.h"
#include "ref/quantize.h"

namespace longdecode::study {
namespace {

struct Grid {
  double step = 0.0;
  double zero = 0.0;  // z
};

struct Moments {
  double low = 0.0;
  double high = 0.0;
  double mean = 0.0;
  double deviation = 0.0;
};

Moments moments_of(const float* keys, int32_t count) {
  Moments m{keys[0], keys[0], 0.0, 0.0};
  for (int32_t t = 0; t < count; ++t) {
    m.low = std::min<double>(m.low, keys[t]);
    m.high = std::max<double>(m.high, keys[t]);
    m.mean += static_cast<double>(keys[t]) / count;
  }
  double variance = 0.0;
  for (int32_t t = 0; t < count; ++t) variance += std::pow(keys[t] - m.mean, 2) / count;
  m.deviation = std::sqrt(variance);
  return m;
}

double round_up_to_bf16(double value) {
  uint16_t bits = f32_to_bf16(static_cast<float>(value));
  while (static_cast<double>(bf16_to_f32(bits)) < value) ++bits;
  return static_cast<double>(bf16_to_f32(bits));
}

// The smallest storable grid of at least `step` around `zero` that reaches low and high.
Grid fit(const Moments& m, double zero, double step, double residual_span) {
  const double reach = 1.5 + residual_span / 2;  // steps from the zero
  step = std::max({step, (m.high - zero) / reach, (zero - m.low) / reach});
  if (step <= 0.0) step = std::max(std::fabs(zero) / 4096.0, 0x1p-100);
  for (;;) {
    Grid grid;
    grid.step = round_up_to_bf16(step);
    const uint16_t bits = f32_to_f16(static_cast<float>(zero / grid.step));
    grid.zero = static_cast<double>(f16_to_f32(bits)) * grid.step;
    if (m.high - grid.zero <= reach * grid.step && grid.zero - m.low <= reach * grid.step) {
      return grid;
    }
    step = grid.step * 1.03125;
  }
}

int32_t code_of(const Grid& grid, double key) {
  return static_cast<int32_t>(std::clamp(std::floor((key - grid.zero) / grid.step + 2), 0.0, 3.0));
}

double scan_error2(const Grid& grid, const float* keys, int32_t count) {
  double sum = 0.0;
  for (int32_t t = 0; t < count; ++t) {
    const double scan = grid.zero + grid.step * (code_of(grid, keys[t]) - 1.5);
    sum += std::pow(scan - keys[t], 2);
  }
  return sum;
}

Grid least_error_grid(const GridVariant& variant, const Moments& m, const float* keys,
                      int32_t count) {
  Grid best = fit(m, (m.low + m.high) / 2, (m.high - m.low) / 4, variant.residual_span);
  double least = scan_error2(best, keys, count);
  for (int32_t i = 6; i <= 16; ++i) {
    for (int32_t j = -2; j <= 2; ++j) {
      const Grid grid =
          fit(m, m.mean + 0.25 * j * m.deviation, 0.1 * i * m.deviation, variant.residual_span);
      const double error = scan_error2(grid, keys, count);
      if (error < least) {
        least = error;
        best = grid;
      }
    }
  }
  return best;
}

Grid choose_grid(const GridVariant& variant, const float* keys, int32_t count) {
  const Moments m = moments_of(keys, count);
  const double zero = variant.zero == ZeroRule::kMean ? m.mean : (m.low + m.high) / 2;
  switch (variant.step) {
    case StepRule::kRange:
      return fit(m, zero, 0.0, 1.0);
    case StepRule::kDeviation:
      return fit(m, zero, variant.deviations * m.deviation, variant.residual_span);
    case StepRule::kLeastError:
      return least_error_grid(variant, m, keys, count);
  }
  return {};
}

PageGrid empty_page(int32_t dim, int32_t page_size) {
  PageGrid page;
  page.step.resize(static_cast<size_t>(dim));
  page.zero.resize(static_cast<size_t>(dim));
  page.codes.resize(static_cast<size_t>(dim) * static_cast<size_t>(page_size));
  page.exact = page.codes;
  return page;
}

PageGrid read_page(const KvFormat& format, const uint8_t* chunk, const uint8_t* residuals) {
  PageGrid page = empty_page(format.key_dim, format.page_size);
  for (int32_t c = 0; c < format.key_dim; ++c) {
    const ref::ChannelGrid grid = ref::read_grid(format, chunk, c);
    page.step[static_cast<size_t>(c)] = grid.step;
    page.zero[static_cast<size_t>(c)] = grid.step * grid.zero;
    for (int32_t t = 0; t < format.page_size; ++t) {
      const int32_t code = ref::read_code(format, chunk, t, c);
      const int32_t n = 256 * code + residuals[format.residual_offset_bytes(t, c)];
      const auto i = static_cast<size_t>(c * format.page_size + t);
      page.codes[i] = static_cast<float>(code) - 1.5f;
      page.exact[i] = static_cast<float>(grid.step * (n + 0.5 - 512) / 256);
    }
  }
  return page;
}

}  // namespace

std::vector<GridVariant> grid_variants() {
  using enum StepRule;
  using enum ZeroRule;
  return {
      {"range, midrange (product)", kRange, kMidrange, 0, 1, true, false},
      {"the same, 8-bit query", kRange, kMidrange, 0, 1, true, true},
      {"range, mean", kRange, kMean, 0, 1, false, false},
      {"1.0 dev, midrange, residual x2", kDeviation, kMidrange, 1.0, 2, false, false},
      {"1.2 dev, midrange, residual x2", kDeviation, kMidrange, 1.2, 2, false, false},
      {"1.0 dev, mean, residual x2", kDeviation, kMean, 1.0, 2, false, false},
      {"0.8 dev, mean, residual x4", kDeviation, kMean, 0.8, 4, false, false},
      {"1.0 dev, mean, residual x4", kDeviation, kMean, 1.0, 4, false, false},
      {"least error, residual x4", kLeastError, kMean, 0, 4, false, false},
  };
}

PageGrid quantize_page(const GridVariant& variant, const float* keys, int32_t dim,
                       int32_t page_size) {
  PageGrid page = empty_page(dim, page_size);
  const double span = variant.residual_span;
  for (int32_t c = 0; c < dim; ++c) {
    const float* channel = keys + int64_t{c} * page_size;
    const Grid grid = choose_grid(variant, channel, page_size);
    page.step[static_cast<size_t>(c)] = grid.step;
    page.zero[static_cast<size_t>(c)] = grid.zero;
    for (int32_t t = 0; t < page_size; ++t) {
      const double offset = channel[t] - grid.zero;
      const double centre = code_of(grid, channel[t]) - 1.5;
      const double residual =
          std::clamp(std::floor((offset / grid.step - centre) / span * 256 + 128), 0.0, 255.0);
      const auto i = static_cast<size_t>(c * page_size + t);
      page.codes[i] = static_cast<float>(centre);
      page.exact[i] =
          static_cast<float>(grid.step * (centre + span * (residual + 0.5 - 128) / 256));
    }
  }
  return page;
}

Result<std::vector<PageGrid>> quantize_by_product(const std::vector<float>& keys, int32_t dim,
                                                  int32_t page_size) {
  constexpr int64_t kChunk = 512;
  const auto num_tokens = static_cast<int64_t>(keys.size()) / dim;
  KvCacheDesc desc;
  desc.format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF16, 1, dim, page_size);
  desc.num_layers = 1;
  desc.num_pages = (num_tokens + page_size - 1) / page_size;
  desc.max_sequences = 1;
  desc.max_kv_len = num_tokens;
  DeviceInfo device;
  LD_ASSIGN_OR_RETURN(KvCache cache, KvCache::create(desc, device));
  LD_ASSIGN_OR_RETURN(const SequenceId sequence, cache.add_sequence());
  for (int64_t first = 0; first < num_tokens; first += kChunk) {
    const int64_t count = std::min(kChunk, num_tokens - first);
    const std::array<SequenceId, 1> sequences = {sequence};
    const std::array<int32_t, 1> new_tokens = {static_cast<int32_t>(count)};
    LD_RETURN_IF_ERROR(cache.reserve(sequences, new_tokens));
    auto* rows = const_cast<float*>(keys.data() + first * dim);  // append only reads
    const auto view = TensorView::contiguous(rows, DType::kF32, {1, count, 1, dim});
    LD_RETURN_IF_ERROR(cache.append(0, view, view, nullptr));
    LD_RETURN_IF_ERROR(cache.commit());
  }
  const KvLayerView layer = cache.layer(0);
  std::vector<PageGrid> pages;
  for (int64_t i = 0; i < desc.format.num_quantized_pages(num_tokens); ++i) {
    const int64_t page = cache.step().block_table[i];
    pages.push_back(read_page(desc.format, layer.chunks + page * layer.chunk_page_stride_bytes,
                              layer.residuals + page * layer.residual_page_stride_bytes));
  }
  return pages;
}

}  // namespace longdecode::study
