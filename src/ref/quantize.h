// The two-plane key format of one (page, kv head), written from include/longdecode/kv_format.h:
//   n = 256 * code + residual, code 0..3, residual 0..255, in units of the channel's step d_c
//   scan value  = d_c * (zero + code + 0.5 - 2)
//   exact value = d_c * (zero + (n + 0.5 - 512) / 256)
#ifndef LONGDECODE_REF_QUANTIZE_H_
#define LONGDECODE_REF_QUANTIZE_H_

#include <cstdint>

#include "longdecode/kv_format.h"

namespace longdecode::ref {

struct ChannelGrid {
  double step = 0.0;  // d_c, a bf16 value
  double zero = 0.0;  // z_c / d_c, an fp16 value
};

// The smallest bf16 step, with its fp16 zero, whose grid covers [low, high] without clipping.
ChannelGrid fit_grid(double low, double high);

// keys: [page_size, key_dim] row-major. Writes all of format.chunk_bytes() and residual_bytes();
// the padding channels get step, zero, code and residual 0.
void quantize_page(const KvFormat& format, const double* keys, uint8_t* chunk, uint8_t* residuals);

ChannelGrid read_grid(const KvFormat& format, const uint8_t* chunk, int32_t channel);
int32_t read_code(const KvFormat& format, const uint8_t* chunk, int32_t token, int32_t channel);
double scan_value(const ChannelGrid& grid, int32_t code);
double exact_value(const ChannelGrid& grid, int32_t code, int32_t residual);

}  // namespace longdecode::ref

#endif  // LONGDECODE_REF_QUANTIZE_H_
