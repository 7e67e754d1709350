#include "cuda/kernels/dense_stats/dense_stats.h"

#include "cuda/host/status.h"
#include "cuda/kernels/dense_stats/kernel.h"

namespace longdecode::cuda {

Status write_dense_stats(const DecodeDesc& desc, const DecodeArgs& args, cudaStream_t stream) {
  const DecodeStats& stats = args.stats;
  if (stats.tokens_scanned == nullptr && stats.tokens_attended == nullptr &&
      stats.bytes_read == nullptr && stats.pseudo_max == nullptr &&
      stats.dropped_mass_bound == nullptr && stats.kept_tiles == nullptr) {
    return Status();
  }
  const KvFormat& format = desc.format;
  StatsParams p{};
  p.stats = stats;
  p.g_kv_lens = args.batch.kv_lens;
  p.g_query_lens = args.batch.query_lens;
  p.batch = args.batch.batch;
  p.query_len = args.query_len;
  p.num_kv_heads = format.num_kv_heads;
  p.num_q_heads = desc.num_q_heads;
  p.sliding_window = desc.sliding_window;
  // MLA reads values with the keys.
  const int64_t dims = format.key_dim + (format.op == Op::kMla ? 0 : format.value_dim);
  p.token_bytes = dtype_bytes(format.dtype) * dims;
  return cuda_status(launch_stats(p, stream), "launch of dense statistics");
}

}  // namespace longdecode::cuda
