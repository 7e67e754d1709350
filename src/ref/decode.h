// DecodePlan::run of one sequence in fp64: same descriptor, same arguments.
#ifndef LONGDECODE_REF_DECODE_H_
#define LONGDECODE_REF_DECODE_H_

#include <cstdint>
#include <vector>

#include "longdecode/attention.h"
#include "ref/attention.h"
#include "ref/ffd.h"

namespace longdecode::ref {

struct DecodeResult {
  // args.query_len rows; rows past the sequence's own query_len are padding (o = 0, lse = -inf).
  AttentionOutput attention;
  // FFD only.
  TileSet tiles;                           // attended tiles
  std::vector<double> pseudo_max;          // [args.query_len, num_q_heads]
  std::vector<double> dropped_mass_bound;  // [args.query_len, num_q_heads]
  std::vector<int64_t> tokens_attended;    // [num_kv_heads], tokens of the attended tiles
};

// The problem of sequence batch_idx over `kv`: query rows, scale, masks, sinks.
AttentionProblem make_problem(const DecodeDesc& desc, const DecodeArgs& args, int32_t batch_idx,
                              const KvSource& kv);

// Over the stored keys of args.kv. tiles: attend to these instead of selecting (FFD).
DecodeResult decode(const DecodeDesc& desc, const DecodeArgs& args, int32_t batch_idx,
                    const TileSet* tiles = nullptr);

// Dense attention over other keys, e.g. the original ones: the format error's reference.
AttentionOutput decode_dense(const DecodeDesc& desc, const DecodeArgs& args, int32_t batch_idx,
                             const KvSource& kv);

}  // namespace longdecode::ref

#endif  // LONGDECODE_REF_DECODE_H_
