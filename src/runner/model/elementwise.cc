#include "runner/model/elementwise.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runner/model/elementwise.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After highway.h: it is included once per target.
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace longdecode::runner::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(DF())); }

void rms_norm_row(const float* x, const float* weight, int64_t dim, float eps, float* out) {
  const DF d;
  auto squares = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes() <= dim; i += lanes()) {
    const auto value = hn::LoadU(d, x + i);
    squares = hn::MulAdd(value, value, squares);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, squares));
  for (; i < dim; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(dim) + eps);
  const auto vscale = hn::Set(d, scale);
  for (i = 0; i + lanes() <= dim; i += lanes()) {
    const auto value = hn::Mul(hn::LoadU(d, x + i), vscale);
    hn::StoreU(hn::Mul(value, hn::LoadU(d, weight + i)), d, out + i);
  }
  for (; i < dim; ++i) out[i] = x[i] * scale * weight[i];
}

void swiglu_row(float* gate, const float* up, int64_t count) {
  const DF d;
  const auto one = hn::Set(d, 1.0f);
  int64_t i = 0;
  for (; i + lanes() <= count; i += lanes()) {
    const auto g = hn::LoadU(d, gate + i);
    // e^88 is still finite; below -88 the sigmoid is 0 for all purposes.
    const auto e = hn::Exp(d, hn::Min(hn::Neg(g), hn::Set(d, 88.0f)));
    const auto value = hn::Div(hn::Mul(g, hn::LoadU(d, up + i)), hn::Add(one, e));
    hn::StoreU(value, d, gate + i);
  }
  for (; i < count; ++i) gate[i] = gate[i] * up[i] / (1.0f + std::exp(-gate[i]));
}

void add_row(float* x, const float* y, int64_t count) {
  const DF d;
  int64_t i = 0;
  for (; i + lanes() <= count; i += lanes()) {
    hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, x + i);
  }
  for (; i < count; ++i) x[i] += y[i];
}

void rotate_adjacent_heads(float* heads, const float* cos, const float* sin, int64_t num_heads,
                           int64_t head_dim, int64_t rope_dim) {
  const DF d;
  for (int64_t h = 0; h < num_heads; ++h) {
    float* head = heads + h * head_dim;
    int64_t i = 0;
    for (; i + lanes() <= rope_dim / 2; i += lanes()) {
      auto even = hn::Undefined(d);
      auto odd = hn::Undefined(d);
      hn::LoadInterleaved2(d, head + 2 * i, even, odd);
      const auto c = hn::LoadU(d, cos + i);
      const auto s = hn::LoadU(d, sin + i);
      hn::StoreInterleaved2(hn::NegMulAdd(odd, s, hn::Mul(even, c)),
                            hn::MulAdd(even, s, hn::Mul(odd, c)), d, head + 2 * i);
    }
    for (; i < rope_dim / 2; ++i) {
      const float even = head[2 * i];
      const float odd = head[2 * i + 1];
      head[2 * i] = even * cos[i] - odd * sin[i];
      head[2 * i + 1] = even * sin[i] + odd * cos[i];
    }
  }
}

void rotate_halves_heads(float* heads, const float* cos, const float* sin, int64_t num_heads,
                         int64_t head_dim, int64_t rope_dim) {
  const DF d;
  const int64_t half = rope_dim / 2;
  for (int64_t h = 0; h < num_heads; ++h) {
    float* first = heads + h * head_dim;
    float* second = first + half;
    int64_t i = 0;
    for (; i + lanes() <= half; i += lanes()) {
      const auto a = hn::LoadU(d, first + i);
      const auto b = hn::LoadU(d, second + i);
      const auto c = hn::LoadU(d, cos + i);
      const auto s = hn::LoadU(d, sin + i);
      hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, first + i);
      hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, second + i);
    }
    for (; i < half; ++i) {
      const float a = first[i];
      const float b = second[i];
      first[i] = a * cos[i] - b * sin[i];
      second[i] = a * sin[i] + b * cos[i];
    }
  }
}

}  // namespace longdecode::runner::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longdecode::runner {

HWY_EXPORT(rms_norm_row);
HWY_EXPORT(swiglu_row);
HWY_EXPORT(add_row);
HWY_EXPORT(rotate_adjacent_heads);
HWY_EXPORT(rotate_halves_heads);

void rms_norm(const float* x, const float* weight, int64_t dim, float eps, float* out) {
  HWY_DYNAMIC_DISPATCH(rms_norm_row)(x, weight, dim, eps, out);
}

void swiglu(float* gate, const float* up, int64_t count) {
  HWY_DYNAMIC_DISPATCH(swiglu_row)(gate, up, count);
}

void add(float* x, const float* y, int64_t count) { HWY_DYNAMIC_DISPATCH(add_row)(x, y, count); }

void rotate_adjacent(float* heads, const float* cos, const float* sin, int64_t num_heads,
                     int64_t head_dim, int64_t rope_dim) {
  HWY_DYNAMIC_DISPATCH(rotate_adjacent_heads)(heads, cos, sin, num_heads, head_dim, rope_dim);
}

void rotate_halves(float* heads, const float* cos, const float* sin, int64_t num_heads,
                   int64_t head_dim, int64_t rope_dim) {
  HWY_DYNAMIC_DISPATCH(rotate_halves_heads)(heads, cos, sin, num_heads, head_dim, rope_dim);
}

}  // namespace longdecode::runner
#endif  // HWY_ONCE
