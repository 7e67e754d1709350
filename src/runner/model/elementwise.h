// The small vector functions of a transformer layer, fp32.
#ifndef LONGDECODE_RUNNER_MODEL_ELEMENTWISE_H_
#define LONGDECODE_RUNNER_MODEL_ELEMENTWISE_H_

#include <cstdint>

namespace longdecode::runner {

// out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]; out may be x.
void rms_norm(const float* x, const float* weight, int64_t dim, float eps, float* out);

// gate[i] = gate[i] * sigmoid(gate[i]) * up[i]
void swiglu(float* gate, const float* up, int64_t count);

// x[i] += y[i]
void add(float* x, const float* y, int64_t count);

// Rotates the first rope_dim channels of each of num_heads heads [num_heads, head_dim], channels
// (2 i, 2 i + 1) by the angle whose cosine and sine are cos[i], sin[i] ([rope_dim / 2] each).
void rotate_adjacent(float* heads, const float* cos, const float* sin, int64_t num_heads,
                     int64_t head_dim, int64_t rope_dim);
// The same for channels (i, i + rope_dim / 2).
void rotate_halves(float* heads, const float* cos, const float* sin, int64_t num_heads,
                   int64_t head_dim, int64_t rope_dim);

}  // namespace longdecode::runner

#endif  // LONGDECODE_RUNNER_MODEL_ELEMENTWISE_H_
