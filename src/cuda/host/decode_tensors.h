// What the parameters of every decode kernel say of q, o, lse and the batch.
#ifndef LONGDECODE_CUDA_HOST_DECODE_TENSORS_H_
#define LONGDECODE_CUDA_HOST_DECODE_TENSORS_H_

#include <cstdint>

#include "longdecode/attention.h"

namespace longdecode::cuda {

// The stride of a dimension; 0 where its size is 1, because the view's stride means nothing then.
inline int64_t stride_of(const TensorView& view, int32_t dimension) {
  return view.shape[dimension] > 1 ? view.stride[dimension] : 0;
}

// Params names these fields as the kernel families' params.h do.
template <class Params>
void set_decode_tensors(const DecodeArgs& args, Params& p) {
  p.g_kv_lens = args.batch.kv_lens;
  p.g_query_lens = args.batch.query_lens;
  p.g_block_table = args.batch.block_table;
  p.block_table_stride = args.batch.block_table_stride;
  p.g_q = static_cast<const uint16_t*>(args.q.data);
  p.q_batch_stride = stride_of(args.q, 0);
  p.q_token_stride = stride_of(args.q, 1);
  p.q_head_stride = stride_of(args.q, 2);
  p.g_o = static_cast<uint16_t*>(args.o.data);
  p.o_batch_stride = stride_of(args.o, 0);
  p.o_token_stride = stride_of(args.o, 1);
  p.o_head_stride = stride_of(args.o, 2);
  p.g_lse = args.lse;
  p.batch = args.batch.batch;
  p.query_len = args.query_len;
}

}  // namespace longdecode::cuda

#endif  // LONGDECODE_CUDA_HOST_DECODE_TENSORS_H_
