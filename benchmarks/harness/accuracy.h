// The error columns: a kernel's output and the tiles it attended, against the fp64 reference.
#ifndef LONGDECODE_BENCHMARKS_HARNESS_ACCURACY_H_
#define LONGDECODE_BENCHMARKS_HARNESS_ACCURACY_H_

#include <cstdint>
#include <vector>

#include "benchmarks/harness/workload.h"
#include "longdecode/attention.h"
#include "ref/attention.h"

namespace longdecode::bench {

// Per sequence: dense attention in fp64 over the workload's own keys and values.
std::vector<ref::AttentionOutput> dense_reference(const Workload& work, const DecodeDesc& desc,
                                                  const DecodeArgs& host_args);

struct Accuracy {
  // max |o - ref| / max |ref|; ref: exact softmax over the stored keys of the attended tiles. An
  // output that is not finite has an infinite error.
  double max_rel_err = 0.0;
  // The same against dense_reference: what the method and the format cost, not the kernel.
  double err_dense = 0.0;
  // Of the tokens with s >= m~ - delta for some query row of their kv head (exact scores of the
  // stored keys; sink, recent and unquantised tokens not counted): the share in no attended tile.
  double missed_exact = 0.0;
};

// `host_args`: the arguments of the run with q, o, kv and batch in host memory. tiles: the attended
// tiles of each sequence, for FFD; empty for dense.
Accuracy measure_accuracy(const DecodeDesc& desc, const DecodeArgs& host_args,
                          const std::vector<ref::TileSet>& tiles,
                          const std::vector<ref::AttentionOutput>& dense);

// A row whose max_rel_err is above this is no result.
double max_rel_err_limit(DType dtype);

// Bytes that any kernel must move: dense: K, V, Q and O; FFD: codes, steps and zeros of every
// quantised page, residuals and V of attended tokens, unquantised keys and their V, Q and O.
int64_t necessary_bytes(const DecodeDesc& desc, int32_t query_len,
                        const std::vector<int64_t>& kv_lens,
                        const std::vector<ref::TileSet>& tiles);

// Tokens in attended tiles, over all kv heads.
int64_t attended_tokens(const ref::TileSet& tiles, int32_t num_kv_heads, int64_t kv_len);

}  // namespace longdecode::bench

#endif  // LONGDECODE_BENCHMARKS_HARNESS_ACCURACY_H_
